"""A member of the family, described: its slots, sizes, parameters, one block drawn, and the options its recipe takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from formers.core import Part, Slot
from formers.family import MEMBERS
from formers.family import spec as spec_of
from formers.family.members import Member, member
from formers.inspect.blocks import draw_block
from formers.inspect.parameters import parameter_parts, weightless
from formers.inspect.tables import add_row, bar, new_table
from formers.inspect.terminal import sayable
from formers.inspect.words import spell
from formers.model import Spec

VOCAB = 256
"""The vocabulary of a description that is given none: bytes."""
BAR = 30
"""Characters that stand for all parameters of a model."""


class Stack(NamedTuple):
    """One stack of a member and what to call it."""

    title: str
    spec: Spec

    @property
    def slots(self) -> dict[str, Slot]:
        """The part that stands in each slot."""
        fields = {name: getattr(self.spec, name) for name in type(self.spec).model_fields}
        return {name: value for name, value in fields.items() if isinstance(value, Slot)}

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes and rates that have a value."""
        derived = {"head_dim": self.spec.sizes.head_dim, "value_dim": self.spec.sizes.value_dim}
        fields = {name: getattr(self.spec, name) for name in type(self.spec).model_fields if name not in ("name", "encoder", *self.slots)}
        return {name: value for name, value in {**fields, **derived}.items() if value is not None}


def members_facts() -> list[dict[str, Any]]:
    """The members, ready for JSON: name, what it is in a line, its presets."""
    return [{"name": name, "about": about(known), "presets": list(known.presets)} for name, known in MEMBERS.items()]


def list_members(encoding: str = "utf-8") -> Table:
    """The members as a table: name, what it is in a line, its presets."""
    table = new_table("member", "what it is", "presets")
    for fact in members_facts():
        add_row(table, fact["name"], sayable(fact["about"], encoding), ", ".join(fact["presets"]))
    return table


def about(known: Member) -> str:
    """What a member is: the first line of its recipe's docstring."""
    return (inspect.getdoc(known.recipe) or "").partition("\n")[0]


def member_spec(name: str, vocab: int | None = None, preset: str | None = None, options: Mapping[str, Any] | None = None) -> Spec:
    """The spec to describe: options change the preset, and a vocabulary of 256 stands in where nothing says what the member reads."""
    known, chosen = member(name), dict(options or {})
    given = {**known.presets.get(preset or "", {}), **chosen}
    if vocab is not None:
        chosen.setdefault("vocab", vocab)
    elif "vocab" in known.options and given.keys().isdisjoint(("vocab", "features", "levels")):
        chosen["vocab"] = VOCAB
    return spec_of(name, preset=preset, **chosen)


def member_facts(
    name: str, vocab: int | None = None, preset: str | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Everything that a description says, ready for JSON."""
    known, spec = member(name), member_spec(name, vocab, preset, options)
    return {
        "name": name,
        "about": about(known),
        "preset": preset,
        **spec_facts(spec),
        "options": {
            option: {"required": parameter.default is parameter.empty}
            | ({} if parameter.default is parameter.empty else {"default": parameter.default})
            for option, parameter in known.parameters.items()
        },
        "presets": {preset: dict(values) for preset, values in known.presets.items()},
    }


def spec_facts(spec: Spec) -> dict[str, Any]:
    """The parts, sizes and parameters of a spec, ready for JSON."""
    model = weightless(spec)
    return {
        "stacks": [
            {
                "title": stack.title,
                "slots": {k: v.model_dump(mode="json") for k, v in stack.slots.items()},
                "sizes": {k: v.model_dump(mode="json") if isinstance(v, Part) else v for k, v in stack.sizes.items()},
            }
            for stack in stacks(spec)
        ],
        "parameters": {
            "total": model.parameter_count(),
            "inference": model.parameter_count(training=False),
            "parts": parameter_parts(model),
            "tied": getattr(spec.head, "tied", False),
        },
    }


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


def stacks(spec: Spec) -> list[Stack]:
    """The stacks of a spec, the encoder's first."""
    if spec.encoder is None:
        return [Stack("stack", spec)]
    return [Stack("encoder", spec.encoder), Stack("decoder", spec)]


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


def _titles(there: list[Stack]) -> list[str]:
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
