"""The base classes of a spec's fields: frozen, typed, hashable values.

A direct subclass of `Slot` is a slot (Pattern, Position, ...), and its subclasses are the parts that can fill it. A field typed with the
slot accepts any of them, and reads `{"kind": "Local", "window": 128}` back from JSON. Defining the class registers the part; there is no
list to edit. A spec is unchanged by a round trip through JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter, ValidationError, model_serializer, model_validator
from pydantic_core import CoreSchema, ErrorDetails, core_schema
from typing_extensions import Self

from formers.core.errors import FormersError, nearest


class Part(BaseModel):
    """A frozen value with named, validated fields, given by name or in order; errors are one sentence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, *values: Any, **fields: Any) -> None:
        names = list(type(self).model_fields)
        if len(values) > len(names) or any(name in fields for name in names[: len(values)]):
            raise FormersError(
                f"{type(self).__name__} got {values} and {fields}: it takes {', '.join(names) or 'no options'}; give each at most once."
            )
        try:
            super().__init__(**dict(zip(names, values, strict=False)), **fields)
        except ValidationError as error:
            raise FormersError(_sentence(type(self), error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        raise FormersError(f"{type(self).__name__} is frozen and {name} cannot be set: use replace({name}=...) for a changed copy.")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self)(**{**dict(self), **changes})

    @classmethod
    def display_name(cls) -> str:
        """The name of the class in error messages."""
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
    """A slot of a spec, filled by an instance of a subclass of its direct subclass."""

    @classmethod
    def values(cls) -> Iterator[type[Self]]:
        """The classes whose instances can fill this slot, without private base classes (named _...)."""
        for child in cls.__subclasses__():
            if not child.__name__.startswith("_"):
                yield child
            yield from child.values()

    @classmethod
    def read(cls, value: Any) -> Self:
        """Converts a value to a part: an instance is returned unchanged, a mapping with a "kind" (from JSON or YAML) is parsed."""
        known = {c.__name__: c for c in cls.values()}
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict) or "kind" not in value:
            raise FormersError(f"{value!r} is not a {cls.__name__}: give one of {', '.join(sorted(known))}.")
        if value["kind"] not in known:
            raise FormersError(
                f"{value['kind']!r} is not an imported {cls.__name__}: if it is your own, import its module first, "
                f"else {nearest(str(value['kind']), known)}"
            )
        return known[value["kind"]](**value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not any(base.__name__ == "Slot" for base in cls.__bases__):  # by name: Slot itself gets here while it is being defined
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.plain_serializer_function_ser_schema(lambda part: part.model_dump())
        )


def checked(what: str, kind: Any, value: Any) -> Any:
    """Validates a value against a type annotation; the error begins with `what` and contains the value and the rule."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise FormersError(f"{what}={value!r}: it should be {_rule(error.errors()[0])}.") from None


def _sentence(cls: type[Part], error: ValidationError) -> str:
    """The first validation error as one sentence with the value, the rule and the fix."""
    faults = error.errors()
    first = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])  # a misspelt name explains a missing one
    name = ".".join(str(p) for p in first["loc"])
    inner = first.get("ctx", {}).get("error")
    if first["type"] == "value_error" and isinstance(inner, FormersError):
        return str(inner)
    display_name = cls.display_name()
    if first["type"] == "extra_forbidden":
        return f"{display_name} has no option {name!r}: {nearest(name, cls.model_fields)}"
    if first["type"] == "missing":
        return f"{display_name} needs {name!r}: give it a value."
    return f"{display_name} cannot take {name}={first['input']!r}: it should be {_rule(first)}."


def _rule(fault: ErrorDetails) -> str:
    if fault["type"] == "tuple_type":
        return "a list of values, as in [2, 4]"
    return fault["msg"].removeprefix("Value error, ").removeprefix("Input should be ").split(", unable to")[0]
