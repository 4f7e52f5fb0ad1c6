"""The frozen, typed, hashable value that every choice in a spec is made of.

A direct subclass of `Slot` names a slot (Pattern, Position, ...); its subclasses are the values one may put there. A field typed
with the slot accepts any of them, and reads `{"kind": "Local", "window": 128}` back from JSON. So a part is known by being a
class: adding one touches no list here, and a spec survives JSON and back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError, model_serializer, model_validator
from pydantic_core import CoreSchema, ErrorDetails, core_schema
from typing_extensions import Self

from formers.core.errors import FormersError, nearest


class Part(BaseModel):
    """A frozen value with named, checked fields, given by name or in order; mistakes are told in one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, *values: Any, **fields: Any) -> None:
        names = list(type(self).model_fields)
        if len(values) > len(names) or any(name in fields for name in names[: len(values)]):
            raise FormersError(f"{type(self).__name__} takes {', '.join(names) or 'no options'}, each once: got {values} and {fields}.")
        try:
            super().__init__(**dict(zip(names, values, strict=False)), **fields)
        except ValidationError as error:
            raise FormersError(_sentence(type(self), error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise FormersError(f"{type(self).__name__} is frozen and {name} cannot be set: use replace({name}=...) for a changed copy.")

    def replace(self, **changes: Any) -> Self:
        """The part with some of its fields changed, checked anew."""
        return type(self)(**{**dict(self), **changes})

    @classmethod
    def called(cls) -> str:
        """What it is called in a sentence about a mistake."""
        return cls.__name__

    @model_validator(mode="before")
    @classmethod
    def _untagged(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("kind") == cls.__name__:
            return {name: value for name, value in fields.items() if name != "kind"}
        return fields

    @model_serializer(mode="wrap")
    def _tagged(self, handler: Any) -> dict[str, Any]:
        return {"kind": type(self).__name__, **handler(self)}


class Slot(Part):
    """A place in a spec; the subclasses of its direct subclass are what may stand there."""

    @classmethod
    def values(cls) -> Iterator[type[Self]]:
        """The classes whose instances fit where this one is asked for; not those named _..., which is what some have in common."""
        for child in cls.__subclasses__():
            if not child.__name__.startswith("_"):
                yield child
            yield from child.values()

    @classmethod
    def read(cls, value: Any) -> Self:
        """The part that a value stands for: itself, or the mapping with a "kind" that JSON and YAML hold."""
        known = {c.__name__: c for c in cls.values()}
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict) or "kind" not in value:
            raise FormersError(f"{value!r} is not a {cls.__name__}: give one of {', '.join(sorted(known))}.")
        if value["kind"] not in known:
            raise FormersError(
                f"{value['kind']!r} is no {cls.__name__} that has been imported: import the module of one of your own first, "
                f"or {nearest(str(value['kind']), known)}"
            )
        return known[value["kind"]](**value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not any(base.__name__ == "Slot" for base in cls.__bases__):  # by name: Slot itself passes here while it is made
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.plain_serializer_function_ser_schema(lambda part: part.model_dump())
        )


def checked(what: str, kind: Any, value: Any) -> Any:
    """The value as a kind (a type annotation), or one sentence that begins with `what`, names the value and says the rule."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise FormersError(f"{what}={value!r}: it should be {_rule(error.errors()[0])}.") from None


def _sentence(cls: type[Part], error: ValidationError) -> str:
    """The first thing wrong, as one sentence that names the value, the rule and the fix."""
    faults = error.errors()
    first = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])  # a misspelt name explains a missing one
    name = ".".join(str(p) for p in first["loc"])
    inner = first.get("ctx", {}).get("error")
    if first["type"] == "value_error" and isinstance(inner, FormersError):
        return str(inner)
    called = cls.called()
    if first["type"] == "extra_forbidden":
        return f"{called} has no option {name!r}: {nearest(name, cls.model_fields)}"
    if first["type"] == "missing":
        return f"{called} needs {name!r}: give it a value."
    return f"{called} cannot take {name}={first['input']!r}: it should be {_rule(first)}."


def _rule(fault: ErrorDetails) -> str:
    if fault["type"] == "tuple_type":
        return "a list of values, as in [2, 4]"
    return fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ").split(", unable to")[0]
