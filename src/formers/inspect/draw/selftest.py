"""The self-test of a device as plain text, in a block to paste into an issue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formers.attention import EXECUTORS
from formers.inspect.measure.units import in_bytes

FENCE = "```"
COLUMNS = ("check", "precision", "result", "first call", "later", "difference")


def paste_block(facts: Mapping[str, Any]) -> str:
    """All facts of a self-test between fences: versions, device, and a line for each check."""
    lines = [*_head(facts), "", *_table([COLUMNS, *_executor_rows(facts), *_check_rows(facts)])]
    refusals = _refusals(facts)
    for title, more in (("refused, with the number of cases:", refusals), ("wrong:", _few(facts["wrong"]))):
        lines += ["", title, *(f"  {line}" for line in more)] if more else []
    return "\n".join([FENCE + "text", *lines, FENCE])


def _head(facts: Mapping[str, Any]) -> list[str]:
    device, versions = facts["device"], facts["versions"]
    about = [device["name"], *([] if device["memory_bytes"] is None else [in_bytes(device["memory_bytes"])])]
    about += [f"{word} {device[name]}" for name, word in (("capability", "capability"), ("driver", "driver")) if name in device]
    about += [device[name] for name in ("built_for", "system") if name in device]
    number = len(_executor_rows(facts)) + len(_check_rows(facts))
    failed = len(facts["wrong"])
    memory = "" if facts["peak_bytes"] is None else f", peak memory {in_bytes(facts['peak_bytes'])}"
    compiled = [verdict["times"] for verdict in facts["executors"] if "compiled" in verdict["times"]]
    kernels = "".join(f", {times['compiled']} kernels compiled in {_seconds(times['compile_seconds'])}" for times in compiled)
    result = "ok" if facts["ok"] else f"WRONG in {failed} places"
    return [
        f"formers doctor --device {device['device']}",
        f"formers {versions['formers']}, torch {versions['torch']}, Python {versions['python']}, {versions['system']}",
        f"device: {', '.join(about)}",
        f"precisions: {', '.join(f'{name} {words}' for name, words in facts['precisions'].items())}",
        f"limits: {', '.join(f'{name} {limit:.0e}' for name, limit in facts['limits'].items())}",
        f"result: {result}, {number} lines below, {_seconds(facts['seconds'])}{kernels}{memory}",
    ]


def _executor_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each executor and precision."""
    rows: list[tuple[str, ...]] = []
    for verdict in facts["executors"]:
        name, times = f"executor {verdict['executor']}", verdict["times"]
        seen = {**verdict["largest_difference"], **{line.split(": ")[0].rpartition(", ")[2]: None for line in verdict["wrong"]}}
        for precision in facts["limits"]:
            if precision in seen:
                wrong = any(f", {precision}: " in line for line in verdict["wrong"])
                later = times.get(precision, {}).get("seconds")
                first = times.get(precision, {}).get("first_seconds")
                value = verdict["largest_difference"].get(precision)
                rows.append((name, precision, "WRONG" if wrong else "ok", _seconds(first), _seconds(later), _small(value)))
        if verdict["status"] == "refuses":
            rows.append((name, "all", "refuses", "", "", ""))
    return rows


def _check_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each other check."""
    rows = []
    for check in facts["checks"]:
        result, times = "ok" if check["status"] == "ok" else "WRONG", (check["first_seconds"], check["seconds"])
        rows.append((check["what"], check["precision"], result, *map(_seconds, times), _small(check["largest_difference"])))
    return rows


def _refusals(facts: Mapping[str, Any]) -> list[str]:
    return [f"{verdict['executor']}: {why} ({len(cases)})" for verdict in facts["executors"] for why, cases in verdict["refuses"].items()]


def _few(wrong: list[str]) -> list[str]:
    """What is wrong: the first line of each executor and of equal messages."""
    first: dict[str, list[str]] = {}
    for line in wrong:
        name, _, message = line.partition(": ")
        first.setdefault(name if name in EXECUTORS else message, []).append(line)
    return [lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "") for lines in first.values()]


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _small(value: float | str | None) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{value:.0e}"
