"""Patterns by name, and their masks and densities as JSON-ready facts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from torch import Tensor

from formers.core import FormersError, nearest
from formers.inspect.measure.part_text import spell
from formers.patterns import Pattern

PAIRS = 4096**2
"""The largest number of pairs that is worth a drawing's memory."""


class PatternMasks(NamedTuple):
    """A pattern's mask at a layer, (1, length, length) where heads are alike, and the words below it."""

    mask: Tensor
    caption: str
    heads: list[str]
    """What stands above each mask: nothing where heads are alike."""


def pattern_names() -> list[str]:
    """The names of the patterns that options alone describe: "causal", "local", ...; those made of other patterns are not among them."""
    return sorted(_named())


def pattern_classes() -> list[type[Pattern]]:
    """The patterns of these names."""
    return [_named()[name] for name in pattern_names()]


def pattern_named(name: str, options: Mapping[str, Any] | None = None) -> Pattern:
    """The pattern of a name, whatever its case, hyphens and underscores, with options, e.g. ("local", {"window": 8})."""
    known = {pattern_key(n): cls for n, cls in _named().items()}
    if pattern_key(name) not in known:
        raise FormersError(f"there is no pattern {name!r}: {nearest(name, pattern_names())}")
    return known[pattern_key(name)](**dict(options or {}))


def pattern_facts(pattern: Pattern, length: int = 32, heads: int = 1, layer: int = 0) -> dict[str, Any]:
    """What a drawing shows, ready for JSON: the pattern, its density, and for each head that differs a row of 0 and 1 a query."""
    drawn = pattern_masks(pattern, length, heads, layer)
    return {
        "pattern": pattern.model_dump(mode="json"),
        "length": length,
        "heads": heads,
        "layer": layer,
        "causal": pattern.is_causal,
        "by_head": len(drawn.mask) > 1,
        "density": _share(drawn.mask),
        "density_by_head": [_share(m) for m in drawn.mask],
        "mask": [["".join("01"[v] for v in row) for row in m.int().tolist()] for m in drawn.mask],
    }


def _named() -> dict[str, type[Pattern]]:
    return {_hyphened(cls.__name__): cls for cls in Pattern.values() if not cls.__name__.startswith("_") and not _needs_patterns(cls)}


def _hyphened(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def pattern_key(name: str) -> str:
    """A name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "").strip()


def _needs_patterns(cls: type[Pattern]) -> bool:
    return any(issubclass(t, Pattern) for field in cls.model_fields.values() for t in _classes(field.annotation))


def _classes(annotation: Any) -> Iterator[type]:
    """Every class that an annotation mentions."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from _classes(inner)


def pattern_masks(pattern: Pattern, length: int, heads: int, layer: int) -> PatternMasks:
    """The mask to draw, after refusing sizes that cannot be drawn, and its words."""
    if layer < 0:
        raise FormersError(f"layer={layer} is no layer: they are counted from 0.")
    here = pattern.at(layer)
    different = heads if here.by_head else min(heads, 1)
    if length * length * different > PAIRS:
        raise FormersError(
            f"length={length} with heads={heads} is {length * length * different} pairs, too many to draw: "
            f"give a length of at most {math.isqrt(PAIRS // different)}."
        )
    mask = pattern.mask(length, different, layer)
    words = [spell(pattern), f"length {length}"]
    if layer or here != pattern:
        alike = type(here) is type(pattern) and (here == pattern or not _needs_patterns(type(here)))
        words.append(f"layer {layer}" if alike else f"layer {layer} ({spell(here)})")
    if heads > 1:
        words.append(f"{heads} heads" if different > 1 else f"all {heads} heads alike")
    caption = f"{', '.join(words)}: {_percent(mask)} of pairs allowed."
    titles = [f" head {h}: {_percent(m)}" for h, m in enumerate(mask)] if different > 1 else [""]
    return PatternMasks(mask, caption, titles)


def _share(mask: Tensor) -> float:
    return mask.sum().item() / mask.numel()


def _percent(mask: Tensor) -> str:
    return f"{100 * _share(mask):.3g}%"
