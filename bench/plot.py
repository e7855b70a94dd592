"""The pictures. Without matplotlib there are none, and the tables stand alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.stores import WORKS
from bench.subjects import SUBJECTS
from bench.targets import COMMITS, Rows

_STYLE = {
    "floor": ("black", ":"),
    "sqlite": ("tab:blue", "-"),
    "sqlite-disk": ("tab:blue", ":"),
    "memory": ("tab:cyan", "--"),
}
_PEERS = ("tab:orange", "tab:red", "tab:green", "tab:olive", "tab:purple", "tab:brown")


def _style(subject: str) -> tuple[str, str]:
    peers = [name for name, named in SUBJECTS.items() if named.peer]
    return _STYLE.get(subject) or (_PEERS[peers.index(subject) % len(_PEERS)], "-")


def stores(rows: list[dict[str, Any]], file: Path, title: str) -> bool:
    """What grows with what is there, and what does not: medians, both axes logarithmic."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = Rows(rows)
    shown = [work for work in WORKS if work.world != "small" and work.id != "append_alone"]
    figure, axes = pyplot.subplots(2, 4, figsize=(18, 8.5))
    for axis, work in zip(axes.flat, shown, strict=False):
        sizes = found.entries if work.world == "entries" else found.sessions
        for subject, named in SUBJECTS.items():
            points = [(size, value) for size in sizes if (value := found.get(work.id, size, subject))]
            if points:
                colour, line = _style(subject)
                ours = subject == "sqlite"
                axis.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    linestyle=line,
                    marker="o",
                    linewidth=2.6 if ours else 1.2,
                    label=named.title,
                    zorder=3 if ours else 2,
                )
        axis.set(xscale="log", yscale="log", title=work.title, xlabel=work.world, ylabel="median, us")
        axis.title.set_fontsize(10 if len(work.title) < 55 else 8)
        axis.grid(alpha=0.3)
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=5, fontsize=9, frameon=False)
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0.06, 1, 0.98))
    figure.savefig(file, dpi=80)
    pyplot.close(figure)
    return True


def wire(found: dict[str, Any], file: Path, title: str) -> bool:
    """Every function beside the echo of the same engine, and what subscribers cost an append."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = [kind for kind in found if found[kind].get("calls")]
    if not kinds:
        return False
    figure, axes = pyplot.subplots(2, len(kinds), figsize=(9 * len(kinds), 11), squeeze=False)
    for column, kind in enumerate(kinds):
        rows = found[kind]["calls"]
        size = found[kind]["sizes"][0]
        rows = [row for row in rows if row["size"] == size and row["label"] not in COMMITS]
        axis = axes[0][column]
        axis.bar(range(len(rows)), [row["p50"] for row in rows], color="tab:blue")
        axis.axhline(rows[0]["p50"], color="black", linestyle=":")
        axis.set_xticks(range(len(rows)), [row["label"] for row in rows], rotation=90, fontsize=7)
        axis.set(yscale="log", ylabel="median, us", title=f"{kind} engine: one call at a time (dotted: echo)")
        axis = axes[1][column]
        latency = found[kind]["latency"]
        for count in sorted({row["subscribers"] for row in latency}):
            points = [(1e3 * row["pace"], row["p50"]) for row in latency if row["subscribers"] == count]
            axis.plot(*zip(*points, strict=True), marker="o", label=f"append, {count} subscribers")
            delays = [
                (1e3 * row["pace"], row["delay_p50"])
                for row in latency
                if row["subscribers"] == count and "delay_p50" in row
            ]
            if delays:
                axis.plot(
                    *zip(*delays, strict=True), marker="x", linestyle="--", label=f"its event, {count} subscribers"
                )
        axis.set(
            xlabel="ms between appends", ylabel="median, us", ylim=(0, None), title=f"{kind} engine: appends and events"
        )
        axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(file, dpi=80)
    pyplot.close(figure)
    return True
