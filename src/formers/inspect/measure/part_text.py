"""A part in words: `Local(window=8)`, `Causal | Local(window=8)`."""

from __future__ import annotations

from formers.core import Part
from formers.patterns import Alternate, Intersection, PerHead, Union


def spell(part: Part, defaults: bool = False) -> str:
    """The part as one would write it in Python, without the options that have their default value unless asked for."""
    if isinstance(part, Union | Intersection):
        sign = "|" if isinstance(part, Union) else "&"
        return f" {sign} ".join(_inner(side, defaults) for side in (part.first, part.second))
    if isinstance(part, PerHead | Alternate):
        return f"{type(part).__name__}{_value(part.patterns, defaults)}"
    options = []
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if defaults or field.is_required() or value != field.get_default(call_default_factory=True):
            options.append(f"{name}={_value(value, defaults)}")
    return f"{type(part).__name__}({', '.join(options)})" if options else type(part).__name__


def _inner(part: Part, defaults: bool) -> str:
    words = spell(part, defaults)
    return f"({words})" if isinstance(part, Union | Intersection) else words


def _value(value: object, defaults: bool) -> str:
    if isinstance(value, Part):
        return spell(value, defaults)
    if isinstance(value, tuple):
        return f"({', '.join(_value(v, defaults) for v in value)})"
    return str(value)
