"""A member's slots, sizes, parameter counts and recipe options, as JSON-ready facts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from formers.core import Part, Slot
from formers.family import MEMBERS
from formers.family import spec as spec_of
from formers.family.members import Member, member
from formers.inspect.measure.parameters import parameter_parts, weightless
from formers.model import Spec

VOCAB = 256
"""The vocabulary of a description that is given none: bytes."""


class NamedStack(NamedTuple):
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


def stacks(spec: Spec) -> list[NamedStack]:
    """The stacks of a spec, the encoder's first."""
    if spec.encoder is None:
        return [NamedStack("stack", spec)]
    return [NamedStack("encoder", spec.encoder), NamedStack("decoder", spec)]
