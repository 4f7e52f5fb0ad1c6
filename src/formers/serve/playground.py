"""Patterns with their parameters: which there are, what can be set, and the matrix and image grid of one setting."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from formers.core import FormersError, Raster
from formers.inspect.measure.pattern_images import ImageGrid, image_grid, on_image_facts
from formers.inspect.measure.patterns import pattern_classes, pattern_facts, pattern_named, pattern_names
from formers.patterns import LocalGrid, OrderedGrid, Pattern
from formers.serve.errors import ApiError
from formers.serve.limits import Limits

STARTS: dict[str, dict[str, Any]] = {
    "local": {"window": 8}, "blocks": {"query": 8, "memory": 8}, "column": {"stride": 8}, "strided": {"stride": 8},
    "fixed": {"stride": 8, "summary": 2}, "summary": {"stride": 8, "summary": 2}, "big-bird": {"block": 4}, "globals": {"tokens": 4},
    "local-grid": {"height": 8, "width": 8, "query": [4, 4], "memory": [2, 2]},
}  # fmt: skip
"""What a pattern begins with where a parameter has no default."""
HIDDEN = {"big-bird": ("layer", "row_blocks")}
"""Parameters that a layer or a row sets by itself."""
MOST = 64
"""The largest value of a slider."""


def patterns() -> list[dict[str, Any]]:
    """Every pattern that parameters alone describe: its name, what it is, and its parameters with their kinds and first values."""
    return [
        {"name": name, "about": (cls.__doc__ or "").strip().split("\n")[0], "fields": [*_fields(name, cls)]}
        for name, cls in zip(pattern_names(), pattern_classes(), strict=True)
    ]


def _fields(name: str, cls: type[Pattern]) -> Any:
    for field, info in cls.model_fields.items():
        if field in HIDDEN.get(name, ()):
            continue
        default = STARTS.get(name, {}).get(field, None if info.is_required() else info.default)
        if get_origin(info.annotation) is tuple:
            yield {"name": field, "kind": "pair", "least": 0 if field == "memory" else 1, "most": 32, "default": default or [4, 4]}
        elif info.annotation is bool:
            yield {"name": field, "kind": "switch", "default": bool(default)}
        elif info.annotation is int or any(arg is int for arg in get_args(info.annotation)):
            least = next((m.ge if hasattr(m, "ge") else m.gt + 1 for m in info.metadata if hasattr(m, "ge") or hasattr(m, "gt")), 0)
            yield {"name": field, "kind": "number", "least": least, "most": MOST, "default": 4 if default is None else default}


def draw(
    name: str, options: dict[str, Any], length: int, heads: int, layer: int, size: tuple[int, int] | None, limits: Limits
) -> dict[str, Any]:
    """The facts of a pattern with options: its mask by head, density, pairs, and what one pixel sees where its places are an image's."""
    pattern = pattern_named(name, options)
    if not isinstance(pattern, Pattern):
        raise FormersError(f"{name} is no pattern.")
    grid: ImageGrid | None = image_grid(pattern)
    if grid is None and size is not None:
        grid = ImageGrid(Raster(height=size[0], width=size[1], channels=1))
    if isinstance(pattern, LocalGrid | OrderedGrid) or (grid is not None and size is not None):
        assert grid is not None
        length = grid.length
    pairs = length * length * heads
    if pairs > limits.pattern_pairs:
        raise ApiError(400, f"{length} places of {heads} heads are {pairs:,} pairs: draw at most {limits.pattern_pairs:,}.", param="length")
    facts = (
        on_image_facts(pattern, grid, length=length, heads=heads, layer=layer)
        if grid is not None
        else pattern_facts(pattern, length, heads, layer)
    )
    allowed = sum(row.count("1") for mask in facts["mask"] for row in mask) / len(facts["mask"])
    causal = length * (length + 1) // 2
    return {**facts, "pairs": allowed, "of_full": allowed / length**2, "of_causal": allowed / causal}
