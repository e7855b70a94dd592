"""From recorded figures to Markdown: the generated parts of docs/performance/README.md, and stores.md beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import grow, plot, targets
from bench.figures import count, duration, ratio, size
from bench.stores import WORKS
from bench.subjects import SUBJECTS
from bench.targets import COMMITS, Rows, Target

QUICK = "**A quick run: small sizes and few repetitions, to try the machinery. Its figures say nothing.**\n\n"


def write(out: Path, found: dict[str, Any]) -> list[str]:
    """Writes everything that the figures allow; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    sections: dict[str, str] = {"targets": _targets(found)}
    part = found.get("stores")
    if part:
        rows = part["rows"]
        (out / "stores.md").write_text(_note(part) + _every_row(rows), encoding="utf-8")
        written.append("stores.md")
        picture = plot.stores(rows, out / "stores.png", _title("Stores", part))
        image = "![Medians by size](stores.png)\n\n" if picture else ""
        sections["stores"] = _note(part) + image + _matrix(rows)
        sections["peers"] = _note(part) + _peers(rows)
        written += ["stores.png"] if picture else []
    part = found.get("wire")
    if part:
        picture = plot.wire(part["engines"], out / "wire.png", _title("Over an engine", part))
        image = "![Calls and events over an engine](wire.png)\n\n" if picture else ""
        sections["wire"] = (
            _note(part) + image + "".join(_calls(kind, part["engines"][kind]) for kind in part["engines"])
        )
        sections["events"] = _note(part) + "".join(_events(kind, part["engines"][kind]) for kind in part["engines"])
        written += ["wire.png"] if picture else []
    part = found.get("grow")
    if part:
        sections["grow"] = _note(part) + _grow(part["found"])
    _fill(out / "README.md", sections)
    return ["README.md", *written]


def _fill(file: Path, sections: dict[str, str]) -> None:
    """Replaces what stands between the marks of each section; one without marks is added at the end."""
    text = file.read_text(encoding="utf-8") if file.exists() else "# Performance\n"
    for name, body in sections.items():
        block = f"<!-- {name}: generated -->\n\n{body.strip()}\n\n<!-- {name}: end -->"
        marks = re.compile(rf"<!-- {name}: generated -->.*?<!-- {name}: end -->", re.DOTALL)
        found = marks.search(text)
        text = text.replace(found[0], block) if found else f"{text.rstrip()}\n\n{block}\n"
    file.write_text(text, encoding="utf-8")


def _title(what: str, part: dict[str, Any]) -> str:
    return f"{what}, {part['when']}" + (" (a quick run: the figures say nothing)" if part["quick"] else "")


def _note(part: dict[str, Any]) -> str:
    machine = "; ".join(f"{name} {value}" for name, value in part["machine"].items())
    how = f"{part['rounds']} rounds" if part.get("rounds") else "one run"
    return (QUICK if part["quick"] else "") + f"Run of {part['when']}, {how}, {part['seconds']:.0f} s. {machine}.\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n\n"


# --- targets ---


def all_targets(found: dict[str, Any]) -> list[Target]:
    told: list[Target] = []
    if found.get("stores"):
        told += targets.stores(found["stores"]["rows"], found["stores"]["flat"])
        beside = targets.peers(found["stores"]["rows"])
        if beside:
            met = sum(one.met for one in beside)
            bound = f"all {len(beside)}"
            told.append(
                Target("rows at least 2x (20x where they scan) ahead of a peer", bound, met, met == len(beside), 1)
            )
    if found.get("wire"):
        for kind, part in found["wire"]["engines"].items():
            told += targets.wire(kind, part)
    if found.get("grow"):
        told += targets.grow(found["grow"]["found"])
    return told


def _targets(found: dict[str, Any]) -> str:
    told = all_targets(found)
    quick = any(found.get(part, {}).get("quick") for part in ("stores", "wire", "grow"))
    met = sum(target.met for target in told)
    rows = []
    for target in told:
        verdict = target.verdict if target.short_by > 1 or target.met else "not all"
        rows.append((target.what, target.bound, ratio(target.value), verdict))
    return (
        (QUICK if quick else "")
        + f"{met} of {len(told)} met.\n\n"
        + table(("target", "bound", "this run", "verdict"), rows)
    )


def _peers(rows: list[dict[str, Any]]) -> str:
    beside = targets.peers(rows)
    titles = targets.TITLES
    short = [one for one in beside if not one.met]
    met = len(beside) - len(short)
    text = f"{met} of {len(beside)} rows are 2x ahead, or 20x at the greatest size where the peer scans."
    if not short:
        return text + "\n"
    cells = []
    for one in sorted(short, key=lambda one: (one.work, one.size, one.peer)):
        what = f"{titles[one.work]}{f', {one.size:,}' if one.size else ''}"
        cells.append((what, SUBJECTS[one.peer].title, f"{ratio(one.ahead)}x", f"{one.bound:g}x", one.why))
    return text + " These are not:\n\n" + table(("row", "peer", "ahead", "asked", "what it reads"), cells)


# --- stores ---


def _matrix(rows: list[dict[str, Any]]) -> str:
    """One line per row of work, one column per store: the median, and how many times ours that is."""
    found = Rows(rows)
    subjects = [name for name in SUBJECTS if any(row["subject"] == name for row in rows)]
    lines = []
    for work in WORKS:
        for at in sorted({row["size"] for row in rows if row["work"] == work.id}):
            cells = [_cell(found, rows, work.id, at, subject) for subject in subjects]
            if any(cell != "–" for cell in cells):
                lines.append((f"{work.title}{f', {at:,}' if at else ''}", *cells))
    head = ("median " + "(times session-manager on sqlite)", *(SUBJECTS[name].title for name in subjects))
    return (
        table(head, lines)
        + "–: not offered, or left out because it would take too long; [stores.md](stores.md) says which.\n"
    )


def _cell(found: Rows, rows: list[dict[str, Any]], work: str, at: int, subject: str) -> str:
    row = found.rows.get((work, at, subject))
    if row is None:
        failed = any(r.get("error") for r in rows if (r["work"], r["size"], r["subject"]) == (work, at, subject))
        return "failed" if failed else "–"
    if "rate" in row and work.startswith("writers"):
        ours = found.get(work, at, key="rate")
        beside = "" if subject == "sqlite" or not ours else f" ({ratio(row['rate'] / ours)}x)"
        return f"{count(row['rate'])}/s{beside}" + (f", {row['failures']} failed" if "failures" in row else "")
    ours = found.get(work, at)
    beside = "" if subject == "sqlite" or not ours else f" ({ratio(row['p50'] / ours)}x)"
    return duration(row["p50"]) + beside


def _every_row(rows: list[dict[str, Any]]) -> str:
    text = "# Stores: every row\n\nHow they were measured and what to make of it: [README.md](README.md).\n\n"
    for work in WORKS:
        mine = [row for row in rows if row["work"] == work.id]
        lines = [_row(row) for row in mine if not row.get("not_offered", "").startswith(("measured on", "has no sub"))]
        if lines:
            text += f"## {work.title}\n\nTimes {work.unit}.\n\n" + table(
                (
                    "store",
                    "there",
                    "p50",
                    "rounds' p50",
                    "p99",
                    "calls",
                    "journal, synchronous",
                    "peak memory",
                    "on disk",
                    "note",
                ),
                lines,
            )
    text += "## How it is done\n\n"
    told: dict[str, dict[str, str]] = {}
    for row in rows:
        told.setdefault(row["subject"], {}).update(row.get("how") or {})
        if row.get("full"):
            told[row["subject"]]["synchronous=FULL"] = row["full"]
    for subject, how in told.items():
        text += (
            f"* **{SUBJECTS[subject].title}**: " + "; ".join(f"{what}: {text_}" for what, text_ in how.items()) + ".\n"
        )
    return text


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if "rate" in row:
        notes.append(f"{count(row['rate'])} per second")
    if "left" in row:
        notes.append(f"leaves {ratio(row['left'])} final sizes on disk, {ratio(row['disk_high'])} at most meanwhile")
    if "failures" in row:
        notes.append(f"{row['failures']} calls failed, such as: {row['failure']}")
    if "beside" in row:
        notes.append(f"without any binding; {duration(row['beside']['p50'])} with 10,000 for other sessions")
    if "encodes" in row:
        notes.append(f"{ratio(row['encodes'])} encodings per event")
    if "parts" in row:
        notes.append(", ".join(f"{part} {duration(value)}" for part, value in row["parts"].items()))
    scans = (row.get("scans") or {}).get("list" if row["work"].startswith("list") else row["work"])
    if scans:
        notes.append(f"reads {scans}")
    notes += [row[key] for key in ("error", "not_offered") if key in row]
    there = f"{row['size']:,}" if row["size"] else ""
    title = SUBJECTS[row["subject"]].title
    if "p50" not in row:
        return (title, there, "", "", "", "", "", "", "", "; ".join(notes))
    settings = f"{row['journal']}, {row['synchronous']}" if "journal" in row else "no file"
    disk = size(row["disk"]) if row.get("disk") else ""
    spread = f"{duration(row['low'])} – {duration(row['high'])}"
    calls = f"{row['n']} in {row['rounds']}"
    peak = size(row.get("peak", 0))
    return (
        title,
        there,
        duration(row["p50"]),
        spread,
        duration(row["p99"]),
        calls,
        settings,
        peak,
        disk,
        "; ".join(notes),
    )


# --- over the wire ---


def _calls(kind: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"### Calls, {kind} engine\n\nNot measured: {found['error']}\n\n"
    text = f"### Calls, {kind} engine\n\n"
    for at in found["sizes"]:
        rows = [row for row in found["calls"] if row["size"] == at]
        echo = next(row for row in rows if row["label"] == "echo")
        lines = []
        for row in rows:
            bare = row["label"] in ("echo", "echo of a page", *COMMITS)
            ours = "" if bare else f"{max(0.0, 1 - echo['p50'] / row['p50']):.0%}"
            cpu = row.get("cpu")
            share = "" if bare or not cpu else f"{max(0.0, 1 - echo['cpu'] / cpu):.0%}"
            note = f"{row['bytes']:,} bytes" if "bytes" in row else ""
            if row["lost"] or row["refused"]:
                note = f"{row['lost']} lost, {row['refused']} refused {row['refusal']}"
            lines.append(
                (
                    row["label"],
                    duration(row["p50"]),
                    duration(row["p99"]),
                    f"{ratio(row['p50'] / echo['p50'])}x",
                    ours,
                    f"{count(row['rate'])}" if "rate" in row else "",
                    f"{ratio(row['rate'] / echo['rate'])}x" if "rate" in row else "",
                    f"{cpu:.0f} us" if cpu else "",
                    share,
                    f"{row['engine_cpu']:.0f} us" if row.get("engine_cpu") else "",
                    f"{row['client_cpu']:.0f} us" if row.get("client_cpu") else "",
                    note,
                )
            )
        text += f"With {at:,} entries in the long session and {at:,} sessions beside:\n\n"
        text += table(
            (
                "function",
                "p50",
                "p99",
                "beside echo",
                "of it ours",
                "per second, 64 in flight",
                "beside echo",
                "its CPU per call",
                "of it ours",
                "engine's CPU",
                "client's CPU",
                "",
            ),
            lines,
        )
    return (
        text + f"Resident memory of the worker afterwards {size(found['resident'])}, at most {size(found['peak'])}.\n\n"
    )


def _events(kind: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"### Events, {kind} engine\n\nNot measured: {found['error']}\n\n"
    latency = [
        (
            str(row["subscribers"]),
            "back to back" if not row["pace"] else f"{1e3 * row['pace']:g} ms",
            duration(row["p50"]),
            duration(row["p99"]),
            duration(row["delay_p50"]) if "delay_p50" in row else "",
            duration(row["delay_p99"]) if "delay_p99" in row else "",
            str(row["missing"]) if row["subscribers"] else "",
            str(row.get("out_of_place", "")),
        )
        for row in found["latency"]
    ]
    head = ("subscribers", "pace", "append p50", "p99", "append to event p50", "p99", "events missing", "out of place")
    rates = [
        (
            str(row["bindings"]),
            count(row["rate"]),
            f"{row['events']:,} of {row['expected']:,}",
            count(row["events_rate"]) if row["events"] else "",
            f"{row['behind']:.2f} s" if row["events"] else "",
        )
        for row in found["rates"]
    ]
    return (
        f"### Events, {kind} engine\n\nSingle appends to one session; subscribers are processes of their own:\n\n"
        + table(head, latency)
        + "Appends at 64 in flight over 64 sessions; all bindings match and belong to one process:\n\n"
        + table(
            ("bindings", "appends per second", "events", "events per second", "last event behind the last append"),
            rates,
        )
    )


# --- growth ---


def _grow(found: dict[str, Any]) -> str:
    small, large = (found[str(at)] for at in found["sizes"])
    lines: list[tuple[str, ...]] = []
    for work, title in grow.WORKS.items():
        a, b = small["rows"][work], large["rows"][work]
        if "p50" not in a or "p50" not in b:
            why = a.get("error") or b.get("error") or a.get("not_offered", "")
            lines.append((title, "", "", "", "", why))
            continue
        rate = f"{count(a['rate'])}/s, {count(b['rate'])}/s" if "rate" in a else ""
        beside = f"{ratio(b['p50'] / a['p50'])}x"
        lines.append((title, duration(a["p50"]), duration(b["p50"]), beside, duration(b["p99"]), rate))
    a, b = small["opened"], large["opened"]
    lines.append(("bytes on disk", size(a["disk"]), size(b["disk"]), f"{ratio(b['disk'] / a['disk'])}x", "", ""))
    lines.append(
        (
            "filled in",
            f"{a['seconds']:.1f} s",
            f"{b['seconds']:.1f} s",
            f"{ratio(b['seconds'] / a['seconds'])}x",
            "",
            "",
        )
    )
    for key, title in (
        ("ready", "worker ready after"),
        ("resident", "resident memory then"),
        ("peak", "at most, under load"),
        ("rate", "appends of 1 KB per second, loopback engine, 64 in flight"),
    ):
        x, y = small["process"].get(key), large["process"].get(key)
        if x is not None and y is not None:
            shown = [f"{v:.2f} s" if key == "ready" else count(v) if key == "rate" else size(v) for v in (x, y)]
            lines.append((title, *shown, f"{ratio(y / x)}x", "", ""))
    names = [f"{at:,} sessions, {10 * at:,} entries, {at * 10 // 20:,} of them in one session" for at in found["sizes"]]
    return table(("", *names, "beside", "p99", ""), lines)
