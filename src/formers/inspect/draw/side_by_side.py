"""The facts of several explanations in one table: what each member is made of and what it costs, a column each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from formers.core import FormersError
from formers.family import MEMBERS
from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.measure.units import in_bytes, in_flops


def refuse_options(members: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuses the same member twice, and of several members an option that one of them lacks."""
    if len(set(members)) < len(members):
        raise FormersError("the same member is named twice: name each once.")
    for name in options if len(members) > 1 else ():
        lacking = next((member for member in members if member in MEMBERS and name not in MEMBERS[member].options), None)
        if lacking is not None:
            raise FormersError(f"{lacking} has no option {name!r}, and --set is for all members that are explained: leave one of them out.")


def side_by_side(facts: Sequence[Mapping[str, Any]]) -> Group:
    """A column for each explanation: slots, parameters, executors, then FLOPs and memory at the lengths that all of them can read."""
    table = new_table("", *(fact["name"] for fact in facts), right=len(facts))
    slots = list(dict.fromkeys(slot for fact in facts for slot in fact["stacks"][-1]["slots"]))
    for slot in slots:
        kinds = [fact["stacks"][-1]["slots"].get(slot, {}).get("kind", "") for fact in facts]
        add_row(table, slot, *kinds)
    add_row(table, "parameters", *(f"{fact['parameters']['total']:,}" for fact in facts), style="bold")
    add_row(table, "executor in training", *(", ".join(_running(fact)) for fact in facts))
    lengths = [
        n for n in sorted({row["length"] for fact in facts for row in fact["lengths"]}) if all(_at(fact, n) is not None for fact in facts)
    ]
    for title, show in (("FLOPs a token of training", _flops), ("memory of a training step", _memory), ("pairs allowed", _pairs)):
        for n in lengths:
            add_row(table, f"{title}, {n:,}", *(show(_at(fact, n) or {}) for fact in facts))
    even = [f"{fact['even']:,}" if fact["even"] is not None else "never" for fact in facts]
    add_row(table, "pairs cost as much as the rest at", *even)
    batch = facts[0]["batch"]
    return Group(table, Text(), Text(f"Lengths that all of them can read; memory at a batch of {batch}, float32. One member alone: more."))


def _at(fact: Mapping[str, Any], length: int) -> Mapping[str, Any] | None:
    return next((row for row in fact["lengths"] if row["length"] == length), None)


def _running(fact: Mapping[str, Any]) -> list[str]:
    """The executors that run in training, each once."""
    groups = fact["passes"]["training"]["attention"]
    return list(dict.fromkeys(verdict["name"] for group in groups for verdict in group["executors"] if verdict["runs"]))


def _flops(row: Mapping[str, Any]) -> str:
    return in_flops(row["flops_per_token"]["training"]) if "training" in row["flops_per_token"] else "-"


def _memory(row: Mapping[str, Any]) -> str:
    return in_bytes(row["bytes"]["training"]) if "training" in row["bytes"] else "-"


def _pairs(row: Mapping[str, Any]) -> str:
    return f"{row['pairs_allowed']:.1%}"
