"""Whole stacks as figures: a model's architecture, and blocks side by side. Boxes and joins are those of the spec (draw/block.py).

The stream runs upwards, as the papers draw it. A sublayer with a residual connection is one group: boxes on the branch, the stream around
them, the sum or the gate where both meet, and what follows on the stream.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import nn

from formers.family.variants import variant
from formers.inspect.draw.block import Join, Sublayer, join_of, position_names, sublayers, times_words
from formers.inspect.draw.figures.base import WIDTH, DrawnFigure, Figure, FigureSubject
from formers.inspect.draw.figures.diagram import (
    ATTENTION,
    EDGE,
    EMBEDDING,
    GATE,
    NORM,
    PLAIN,
    SIZE,
    TRANSITION,
    arrow,
    box,
    fit,
    label,
    new_diagram,
)
from formers.inspect.draw.figures.diagram import sign as paint_sign
from formers.inspect.draw.figures.words import parse_options
from formers.inspect.measure.members import VOCAB, member_spec
from formers.inspect.measure.parameters import weightless
from formers.inspect.measure.part_text import spell
from formers.model import Spec

LINE, GAP, OUT = 0.165, 0.17, 0.1
"""Inches of a line of text, between two boxes, and between a block and its frame."""


class Item(NamedTuple):
    """Something that the stream passes on its way up."""

    text: str
    fill: str
    kind: str = "box"
    """A box, or a "sign": a sum of the branch and the stream."""
    group: int | None = None
    """Which sublayer's branch it stands on; None on the stream."""


class Architecture(Figure):
    """The stacks of a spec with their sizes."""

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        spec = subject.spec
        two = spec.encoder is not None
        width = 1.62 if two else 2.4
        stacks = [(spec.encoder, "source"), (spec, "target")] if spec.encoder is not None else [(spec, "")]
        columns = [(_before(each, side), _block(each), _after(each, each is not spec)) for each, side in stacks]
        times = [fit(times_words(each), 0.55 * width) for each, _ in stacks]
        height = max(sum(_height(items, width) for items in column) for column in columns) + 0.45 + LINE * max(t.count("\n") for t in times)
        figure, axes = new_diagram(path, height, 2)
        places = (1.22, WIDTH - 1.22) if two else (WIDTH / 2,)
        source = None
        for (each, _), column, x, each_times in zip(stacks, columns, places, times, strict=True):
            side = -1 if each is not spec or not two else 1
            top, crossing = _paint_column(axes, column, x, 0.12, width, side, each_times, last=each is spec)
            if each is not spec:
                source = (x, top)
            elif source is not None and crossing is not None:
                middle = WIDTH / 2
                # Keys and values come from the encoder's last output.
                arrow(axes, source, (middle, source[1]), (middle, crossing), (x - width / 2, crossing))
        count = weightless(spec).parameter_count()
        words = (
            f"{subject.title}: {count:,} parameters, dim {spec.dim}, {spell(spec.residual)}. Tokens enter below, predictions leave above."
        )
        values = [
            {"side": side, "items": [item.text for part in column for item in part]}
            for (_, side), column in zip(stacks, columns, strict=True)
        ]
        return DrawnFigure(figure, words, {"stacks": values, "parameters": count})


class BlockColumns(Figure):
    """One block of several members, side by side."""

    members: Annotated[tuple[str, ...], Field(min_length=1, max_length=3)] = ("transformer-xl:norm=post", "gtrxl:gate=sum", "gtrxl")
    """MEMBER or MEMBER:NAME=VALUE, with a semicolon between two of its options."""

    @field_validator("members", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [word.strip() for word in value.split(",")] if isinstance(value, str) else value

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        specs = [_spec(word) for word in self.members]
        across = WIDTH / len(specs)
        width = min(across - 0.56, 2.0)
        columns = [_block(spec, sizes=False) for spec in specs]
        height = max(_height(items, width) for items in columns) + 0.85
        figure, axes = new_diagram(path, height, 3)
        for number, (word, items) in enumerate(zip(self.members, columns, strict=True)):
            x = across * (number + 0.5)
            member, _, options = word.partition(":")
            _paint_column(axes, ([], items, []), x, 0.48, width, -1, "")
            label(axes, x, 0.4, fit(member + (f"\n{options}" if options else ""), across), SIZE, va="top", fontweight="bold")
        words = ". ".join(f"{word}: {_residual_words(spec)}" for word, spec in zip(self.members, specs, strict=True))
        values = [
            {"member": word, "residual": spec.residual.model_dump(mode="json"), "items": [item.text for item in items]}
            for word, spec, items in zip(self.members, specs, columns, strict=True)
        ]
        return DrawnFigure(figure, f"{words}. The stream runs upwards.", {"blocks": values})


def _spec(word: str) -> Spec:
    chosen = variant(word.replace(";", ","), parse_options)
    return member_spec(chosen.member, options=chosen.options)


def _residual_words(spec: Spec) -> str:
    """The residual of a spec, and its gate where it has one."""
    words, join = spell(spec.residual), join_of(spec.residual)
    return f"{words}, {join.label}" if join.sign == "g" and join.label.split()[0] not in words else words


def _before(spec: Spec, side: str) -> list[Item]:
    """From the input to the first block."""
    read = "features" if spec.features is not None else "tokens"
    count = spec.features if spec.features is not None else spec.vocab or VOCAB
    items = [Item(f"{side} {read}".strip(), "", "text"), Item(f"embedding\n{count:,} → {spec.dim}", EMBEDDING)]
    position = position_names(spec)
    return [*items, Item(position, PLAIN, "added")] if position else items


def _block(spec: Spec, sizes: bool = True) -> list[Item]:
    """The sublayers of one block, each in its residual connection."""
    join, items = join_of(spec.residual), []
    for number, sublayer in enumerate(sublayers(spec)):
        items += _group(sublayer, join, number, _sizes(spec, sublayer) if sizes else "")
    return items


def _group(sublayer: Sublayer, join: Join, number: int, sizes: str) -> list[Item]:
    """A sublayer on its branch, the sign where it joins the stream, and what follows."""
    group = number if join.sign else None
    fill = TRANSITION if sublayer.title == "feed-forward" else ATTENTION
    text = "\n".join(word for word in (sublayer.title, sublayer.detail, sizes) if word)
    items = [Item(word, _fill(word), group=group) for word in join.before]
    items.append(Item(text, fill, group=group))
    items += [Item(word, _fill(word), group=group) for word in join.after]
    if join.sign == "g":
        items.append(Item(join.label, GATE, "gate"))
    elif join.sign:
        items.append(Item(join.label, "", "sign"))
    return [*items, *(Item(word, _fill(word)) for word in join.behind)]


def _sizes(spec: Spec, sublayer: Sublayer) -> str:
    if sublayer.title == "feed-forward":
        hidden = getattr(spec.feedforward, "hidden", None)
        return "" if hidden is None else f"{spec.dim} → {hidden} → {spec.dim}"
    return "" if spec.attention.carries else f"{spec.heads} heads of {spec.sizes.head_dim}"


def _after(spec: Spec, is_encoder: bool) -> list[Item]:
    """From the last block to the head."""
    with torch.device("meta"):
        final = spec.residual.build_final(spec.dim)
    items = [] if isinstance(final, nn.Identity) else [Item(type(final).__name__, NORM)]
    if is_encoder:
        return items
    count = f"\n{spec.width} → {spec.vocab:,}" if spec.vocab is not None else ""
    return [*items, Item(f"{type(spec.head).__name__}{count}", EMBEDDING)]


def _fill(word: str) -> str:
    return NORM if "Norm" in word else PLAIN


def _height(items: list[Item], width: float) -> float:
    """Inches that items take one above the other."""
    return sum(_tall(item, width) + GAP for item in items)


def _tall(item: Item, width: float) -> float:
    if item.kind in ("sign", "added"):
        return 0.2
    return 0.13 + LINE * len(fit(item.text, width).splitlines())


def _paint_column(
    axes: Any, column: tuple[list[Item], list[Item], list[Item]], x: float, y: float, width: float, side: int, times: str, last: bool = True
) -> tuple[float, float | None]:
    """Items from y upwards, with a frame around the block; the top, and the height of the cross-attention where there is one.

    side: -1 where the stream runs left of the branches, 1 where it runs right of them. last: an arrow leads out at the top.
    """
    crossing = None
    before, block, after = column
    for items in (before, block, after):
        bottom = y
        branch: float | None = None
        for number, item in enumerate(items):
            tall = _tall(item, width)
            middle = y + GAP + tall / 2
            start = y
            if item.group is not None and (number == 0 or items[number - 1].group != item.group):
                branch = y + 0.45 * GAP  # the stream leaves here
            if item.kind == "text":
                label(axes, x, middle, item.text)
                y += GAP + tall
                continue
            arrow(axes, (x, start), (x, middle - tall / 2))
            if item.kind == "added":
                paint_sign(axes, x, middle)
                arrow(axes, (x + side * 0.45, middle), (x + side * 0.1, middle))
                label(axes, x + side * 0.48, middle, item.text, ha="left" if side > 0 else "right")
            elif item.kind == "sign":
                paint_sign(axes, x, middle)
                if item.text:
                    label(axes, x - side * 0.14, middle, item.text, 8, ha="right" if side > 0 else "left")
            else:
                box(axes, x, middle, width, tall, fit(item.text, width), item.fill)
            if item.kind in ("sign", "gate") and branch is not None:
                far, edge = x + side * (width / 2 + 0.13), 0.1 if item.kind == "sign" else width / 2
                arrow(axes, (x, branch), (far, branch), (far, middle), (x + side * edge, middle))
                branch = None
            if item.text.startswith("cross-attention"):
                crossing = middle
            y += GAP + tall
        if items is block and items:
            _frame(axes, x, bottom + 0.02, y + 0.04, width + 0.44, side, times)
            out = OUT + LINE * times.count("\n")
            arrow(axes, (x, y), (x, y + out), head=False)
            y += out
    arrow(axes, (x, y), (x, y + 0.16), head=last)
    return y + 0.16, crossing


def _frame(axes: Any, x: float, bottom: float, top: float, width: float, side: int, times: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - width / 2, bottom), width, top - bottom, boxstyle="round,pad=0,rounding_size=0.08", facecolor="#fafbfc", edgecolor=EDGE,
        linewidth=0.9, linestyle="dashed", zorder=0,
    )  # fmt: skip
    axes.add_patch(shape)
    if times:
        label(
            axes, x + side * (width / 2 - 0.02), top + 0.03, times, SIZE, ha="right" if side > 0 else "left", va="bottom", fontweight="bold"
        )
