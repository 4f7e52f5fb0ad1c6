"""The tables of `formers bench attention`: a line for each pattern and length, and the meaning of the names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from formers.inspect.draw.tables import add_row, new_table

NOTE = (
    'CPU seconds of a forward pass, and of both, forward and backward, all by pieces, also where "auto" would take SDPA. What follows is '
    "of both: how many times faster than torch's kernel "
    "(SDPA) over all pairs; the rate, 1 where an allowed pair takes as long as one of SDPA's; peak memory beyond q, k and v, in multiples "
    "of them; and the length from which on it is faster."
)


def times_table(results: Mapping[str, Any]) -> Table:
    """A line for each pattern and length; memory stands at the length where it was measured, the cross-over at the first."""
    table = new_table("pattern", "tokens", "forward", "both", "faster", "rate", "memory", "faster from", right=7)
    for name in dict.fromkeys(row["pattern"] for row in results["rows"]):
        mine = [row for row in results["rows"] if row["pattern"] == name]
        for row in mine:
            add_row(
                table,
                name if row is mine[0] else "",
                f"{row['length']:,}",
                _figure(row["forward_seconds"], ".4f"),
                _figure(row["seconds"], ".4f"),
                _figure(row["speedup"], ".2f"),
                _figure(row["rate"], ".2f"),
                _figure(results["memory"].get(name), ".1f") if row["length"] == results["memory_length"] else "",
                _start(results, name) if row is mine[0] else "",
            )
    return table


def names_table(results: Mapping[str, Any]) -> Table:
    """The pattern of each name, and the kernel it is compared with."""
    table = new_table("name", "pattern", "faster than SDPA")
    beside = {row["pattern"]: row["beside"] for row in results["rows"]}
    for name, words in results["patterns"].items():
        if name in beside:
            add_row(table, name, words, beside[name])
    return table


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _start(results: Mapping[str, Any], name: str) -> str:
    """From which length on a pattern is faster than all pairs."""
    starts = results.get("faster_from", {})
    if name not in starts:
        return ""
    start, lengths = starts[name], [row["length"] for row in results["rows"]]
    if start is None:
        return f"above {max(lengths):,}"
    return f"{start:,.0f} or less" if start == min(lengths) else f"{start:,.0f}"
