"""What `choose` found, as a table and sentences for rich to print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from formers.choose.recommend import told
from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.measure.units import in_bytes, in_flops


def page(found: Mapping[str, Any]) -> Group:
    """The costs, the recommendation and what would change it."""
    table = new_table("member", "parameters", "FLOPs a token", "memory", "s a step", "tokens/s", "pairs", right=6)
    picked = [each["member"] for each in found["recommended"]]
    for row in found["rows"]:
        cells = (
            f"{row['parameters']:,}", in_flops(row["flops_per_token"]), in_bytes(row["training_bytes"]),
            seconds(row["step_seconds"]), f"{row['tokens_per_second']:,.0f}", f"{row['pairs_share']:.0%}",
        )  # fmt: skip
        style = "bold" if row["member"] in picked else "" if row["fits"] else "dim"
        add_row(table, row["member"], *cells, style=style)
    batches = {row["batch"] for row in found["rows"]}
    lines: list[RenderableType] = [Text(told(found), "bold"), Text(), table, Text()]
    lines.append(
        Text(
            f"A training step reads {', '.join(map(str, sorted(batches)))} row{'' if batches == {1} else 's'}; its time is predicted from "
            "two shorter measured ones and from FLOPs. Memory is its peak in float32. Pairs: the share of attention over pairs in FLOPs."
        )
    )
    lines += [Text(), Text("Try first", "bold")]
    if not found["recommended"]:
        lines.append(Text("  none: no member that can do this fits the memory."))
    for each in found["recommended"]:
        lines.append(Text(f"  {each['member']}", "bold"))
        lines += [Text(f"    - {reason}") for reason in each["reasons"]]
    lines += [Text(), Text("What would change this", "bold"), *(Text(f"  - {change}") for change in found["changes"])]
    lines += [Text(), Text("Cannot do it", "bold"), *(Text(f"  - {why}") for why in found["cannot"].values())] if found["cannot"] else []
    return Group(*lines, Text(), Text(f"$ {found['compare']}"))


def seconds(value: float) -> str:
    """Seconds in two or three digits."""
    return f"{value:.3f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
