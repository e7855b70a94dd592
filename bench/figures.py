"""Times and what is told of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Microseconds: the median of the rounds' medians and their spread, and the 99th percentile of all."""
    every = [value for times in rounds for value in times]
    medians = [statistics.median(times) for times in rounds if times]
    return {
        "p50": statistics.median(medians),
        "p99": quantile(every, 0.99),
        "low": min(medians),
        "high": max(medians),
        "medians": medians,
        "mean": statistics.fmean(every),
        "n": len(every),
        "rounds": len(medians),
    }


def paired(a: Sequence[float], b: Sequence[float]) -> float:
    """How many times `b` is `a`: the median of the rounds' own ratios, for a round's two figures are of one minute."""
    if len(a) != len(b):
        return statistics.median(a) / statistics.median(b)
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def duration(microseconds: float) -> str:
    """For people: two or three digits and a unit."""
    if microseconds >= 1e6:
        return f"{_digits(microseconds / 1e6)} s"
    if microseconds >= 1e3:
        return f"{_digits(microseconds / 1e3)} ms"
    return f"{_digits(microseconds)} us"


def size(bytes_: float) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if bytes_ >= unit:
            return f"{_digits(bytes_ / unit)} {name}"
    return f"{bytes_:.0f} B"


def count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else _digits(number)


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
