"""A pattern, seen: one row a query, a mark where it may look at a key; in the terminal or as a picture.

What is drawn is `Pattern.mask` and nothing else. Where the pairs are too many for the terminal's columns, a mark stands for a
rectangle of them: filled if all are allowed, a dot if none is, shaded by their share otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from torch import Tensor
from torch.nn import functional as F

from formers.core import FormersError, nearest
from formers.inspect.picture import FAINT, INK, LINE, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.terminal import TIMES, has_unicode, lines_of, margin, ruler, sayable
from formers.inspect.words import spell
from formers.patterns import Pattern

PAIRS = 4096**2
"""The largest number of pairs that is worth a drawing's memory."""
WIDE = 32
"""Up to this length a query has a row of its own, and a pair two characters, which makes it a square."""
SHADES = "·░▒▓█"


class Drawn(NamedTuple):
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
    drawn = drawn_of(pattern, length, heads, layer)
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


def draw_pattern(pattern: Pattern, length: int = 32, heads: int = 1, layer: int = 0, columns: int = 80, encoding: str = "utf-8") -> str:
    """The pattern as lines of at most `columns` characters, of ASCII alone if the encoding is not UTF-8; heads that differ one by one."""
    drawn = drawn_of(pattern, length, heads, layer)
    lines, pairs = [], 1
    for mask, title in zip(drawn.mask, drawn.heads, strict=True):
        rows, pairs = grid(mask, columns, has_unicode(encoding))
        lines += [title, *rows, ""] if title else [*rows, ""]
    words = drawn.caption
    if pairs > 1:
        words += f" Each mark stands for {pairs} keys {TIMES} {2 * pairs} queries, shaded by the share allowed."
    return sayable("\n".join([*lines, *lines_of(words, columns)]), encoding)


def save_pattern(pattern: Pattern, path: str | Path, length: int = 32, heads: int = 1, layer: int = 0) -> Path:
    """Writes the pattern as a picture, .png or .svg, a panel for each head that differs, and returns its path."""
    drawn = drawn_of(pattern, length, heads, layer)
    across = min(4, len(drawn.mask))
    down = math.ceil(len(drawn.mask) / across)
    side = 4.2 if across == 1 else 3.0
    figure = new_figure(path, side * across, (side + 0.2) * down + 0.1)
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for axes, mask, title in zip(panels, drawn.mask, drawn.heads, strict=False):
        paint_mask(axes, mask, title)
    for axes in panels[len(drawn.mask) :]:
        axes.set_visible(False)
    write_caption(figure, drawn.caption)
    return save_figure(figure, path)


def paint_mask(axes: Any, mask: Tensor, title: str = "") -> None:
    """A mask (length, length) on axes, a row for each query."""
    from matplotlib.colors import ListedColormap

    length = len(mask)
    axes.imshow(mask.numpy(), cmap=ListedColormap([FAINT, INK]), vmin=0, vmax=1, interpolation="none", extent=(0, length, length, 0))
    if length <= 64:
        between = range(1, length)
        axes.hlines(between, 0, length, color=LINE, linewidth=0.6)
        axes.vlines(between, 0, length, color=LINE, linewidth=0.6)
    _ticks(axes, length)
    if title:
        axes.set_title(title.strip(), fontsize=9, color=TEXT)


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


def drawn_of(pattern: Pattern, length: int, heads: int, layer: int) -> Drawn:
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
    return Drawn(mask, caption, titles)


def _share(mask: Tensor) -> float:
    return mask.sum().item() / mask.numel()


def _percent(mask: Tensor) -> str:
    return f"{100 * _share(mask):.3g}%"


def grid(mask: Tensor, columns: int, unicode: bool) -> tuple[list[str], int]:
    """The lines of one mask with their axes, and how many keys a mark stands for."""
    length = len(mask)
    room = max(columns - len(margin("", length)), 8)
    if length <= WIDE and 2 * length <= room:
        rows, each, width = ["".join("■ " if v else "· " for v in row).rstrip() for row in mask.tolist()], 1, 2
        labels = [str(i) for i in range(length)]
    elif length <= room and unicode:
        pairs = F.pad(mask.int(), (0, 0, 0, length % 2)).view(-1, 2, length)
        rows, each, width = ["".join("·▄▀█"[v] for v in row) for row in (2 * pairs[:, 0] + pairs[:, 1]).tolist()], 1, 1
        labels = [str(2 * r) if r % 4 == 0 else "" for r in range(len(rows))]
    elif length <= room:
        rows, each, width = ["".join("·█"[v] for v in row) for row in mask.int().tolist()], 1, 1
        labels = [str(i) if i % 4 == 0 else "" for i in range(length)]
    else:
        each, width = math.ceil(length / room), 1
        rows = ["".join(_shade(share) for share in row) for row in _shares(mask, 2 * each, each)]
        labels = [str(2 * each * r) if r % 4 == 0 else "" for r in range(len(rows))]
    left = margin("", length)
    body = [margin(label, length) + row for label, row in zip(labels, rows, strict=True)]
    return [" query ↓  key →", left + ruler(math.ceil(length / each), width, each), *body], each


def _shares(mask: Tensor, down: int, across: int) -> list[list[float]]:
    """The share of allowed pairs in each rectangle of down x across pairs; those at the edges are smaller."""
    pooled = F.avg_pool2d(mask[None].double(), (down, across), ceil_mode=True, count_include_pad=False)
    return pooled[0].tolist()


def _shade(share: float) -> str:
    """Empty only for none and filled only for all, however many pairs there are."""
    if share in (0.0, 1.0):
        return SHADES[0] if share == 0.0 else SHADES[-1]
    return SHADES[1 + min(int(3 * share), 2)]


def _ticks(axes: Any, length: int) -> None:
    every = max(1, 2 ** math.ceil(math.log2(length / 8)))
    places = list(range(0, length, every))
    axes.set_xticks([p + 0.5 for p in places], places)
    axes.set_yticks([p + 0.5 for p in places], places)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("key", fontsize=8, color=TEXT)
    axes.set_ylabel("query", fontsize=8, color=TEXT)
    tidy(axes)
