"""Tables that describe a member: its slots, sizes, parameters, block diagram and options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from formers.core import Part
from formers.inspect.draw.block import draw_block
from formers.inspect.draw.tables import add_row, bar, new_table
from formers.inspect.draw.terminal import sayable
from formers.inspect.measure.members import NamedStack, member_facts, member_spec, members_facts, stacks
from formers.inspect.measure.part_text import spell
from formers.model import Spec

BAR = 30
"""Characters that stand for all parameters of a model."""


def list_members(encoding: str = "utf-8") -> Table:
    """The members as a table: name, what it is in a line, its presets."""
    table = new_table("member", "what it is", "presets")
    for fact in members_facts():
        add_row(table, fact["name"], sayable(fact["about"], encoding), ", ".join(fact["presets"]))
    return table


def describe_member(
    name: str, vocab: int | None = None, preset: str | None = None, options: Mapping[str, Any] | None = None, encoding: str = "utf-8"
) -> Group:
    """The description of a member for rich to print: what it is, slots and sizes, parameters, one block, and its options."""
    facts, spec = member_facts(name, vocab, preset, options), member_spec(name, vocab, preset, options)
    title = Text(name, "bold").append(f" ({preset})" if preset else "", "not bold")
    paragraphs: list[RenderableType] = [
        slots_table(spec),
        sizes_table(spec),
        parameters_table(facts["parameters"], encoding),
        Text(draw_block(spec, encoding), no_wrap=True),
        _options(facts),
    ]
    return Group(title, Text(sayable(facts["about"], encoding)), *(part for paragraph in paragraphs for part in (Text(), paragraph)))


def slots_table(spec: Spec) -> Table:
    """A row for each slot, with the part that each stack has there."""
    there = stacks(spec)
    table = new_table("slot", *_titles(there))
    for slot in there[-1].slots:
        add_row(table, slot, *(spell(stack.slots[slot], defaults=True) for stack in there))
    return table


def sizes_table(spec: Spec) -> Table:
    """A row for each size; an encoder without a vocabulary shares its decoder's."""
    there = stacks(spec)
    table = new_table("size", *_titles(there))
    for size in there[-1].sizes:
        add_row(table, size, *(size_text(stack.sizes.get(size, "shared" if size == "vocab" else "")) for stack in there))
    return table


def size_text(value: object) -> str:
    """A size in words: a number as it is, the order of an image as one writes it in Python."""
    return spell(value) if isinstance(value, Part) else str(value)


def _titles(there: list[NamedStack]) -> list[str]:
    return [stack.title for stack in there] if len(there) > 1 else ["value"]


def parameters_table(facts: Mapping[str, Any], encoding: str) -> Table:
    """A row for each part that the member has, with its share drawn."""
    total = facts["total"]
    table = new_table("parameters", "number", "share", "", right=2)
    for part, count in facts["parts"].items():
        if count:
            add_row(table, part, f"{count:,}", f"{100 * count / total:.1f}%", bar(count / total, BAR, encoding))
        elif part == "head" and facts["tied"]:
            add_row(table, part, "0", "", "reads the embedding's table")
    add_row(table, "total", f"{total:,}", "", "", style="bold")
    if facts["inference"] != total:
        add_row(table, "at inference", f"{facts['inference']:,}", "", "", style="bold")
    return table


def _options(facts: Mapping[str, Any]) -> Table:
    """A row for each option of the recipe, with its default and what each preset makes of it."""
    table = new_table("option", "default", *facts["presets"])
    table.columns[0].no_wrap = True  # a name that is cut in two can neither be read nor copied
    for option, fact in facts["options"].items():
        default = "required" if fact["required"] else _shown(fact["default"])
        add_row(table, option, default, *(_shown(values[option]) if option in values else "" for values in facts["presets"].values()))
    return table


def _shown(value: object) -> str:
    if isinstance(value, (tuple, list)):  # as the command line takes it
        return ",".join(value) if all(isinstance(word, str) for word in value) else str(list(value))
    return "unset" if value is None else str(value)
