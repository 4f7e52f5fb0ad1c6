"""Inside one multi-head attention sublayer (E1, E2, E3): its matrices as the built module has them, and what each head computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from formers.attention.multihead import SelfAttention
from formers.core import FormersError
from formers.inspect.draw.figure import INK
from formers.inspect.draw.figures.base import WIDTH, DrawnFigure, Figure, FigureSubject, sized
from formers.inspect.draw.figures.diagram import ATTENTION, EDGE, EMBEDDING, GATE, NORM, PLAIN, TRANSITION, arrow, box, label, new_diagram
from formers.inspect.measure.parameters import weightless
from formers.inspect.measure.part_text import spell
from formers.model import Spec
from formers.score import NoScore

SHOWN = 4
"""The most heads whose frames are drawn one behind the other."""
SMALL = 8
"""Positions of the small drawing of the pattern."""


class MultiHead(Figure):
    """The self-attention of one layer."""

    layer: int = 0

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        spec = subject.spec
        if not 0 <= self.layer < spec.depth.steps:
            raise FormersError(f"layer={self.layer} is none of {subject.title}'s: give 0 ... {spec.depth.steps - 1}.")
        module = attention_module(spec, self.layer)
        sizes = module.sizes
        steps = head_steps(spec, module, self.layer)
        height = 2.82 + 0.46 * len(steps)
        figure, axes = new_diagram(path, height, 1)
        middle = 2.0
        label(axes, middle, 0.12, f"x, a vector of {sizes.dim} for each token")
        frames = sized("heads", sizes.heads, 1024)
        bottom, top = 1.22, 1.62 + 0.46 * len(steps)
        _frames(axes, middle, bottom, top, min(frames, SHOWN))
        width = sizes.heads * sizes.head_dim, sizes.heads * sizes.head_dim, sizes.heads * sizes.value_dim
        for name, wide, x in zip(("W^q", "W^k", "W^v"), width, (middle - 1.2, middle, middle + 1.2), strict=True):
            arrow(axes, (middle, 0.24), (middle, 0.36), (x, 0.36), (x, 0.5))
            box(axes, x, 0.68, 1.12, 0.36, f"${name}$  {sizes.dim} → {wide}", EMBEDDING)
        if spec.memory.limit:
            label(axes, middle + 0.2, 1.05, f"+ memory {spec.memory.limit}", 8, ha="left")
        _head(axes, steps, spec.pattern.mask(SMALL, sizes.heads, self.layer)[0], middle, bottom)
        out = module.out.weight.shape
        middle -= 0.22
        arrow(axes, (middle, top - 0.26), (middle, top + 0.24))
        box(axes, middle, top + 0.4, 2.4, 0.32, f"concatenate {sizes.heads} heads of {sizes.value_dim} → {out[1]}", PLAIN)
        arrow(axes, (middle, top + 0.56), (middle, top + 0.7))
        box(axes, middle, top + 0.86, 2.4, 0.32, f"$W^o$  {out[1]} → {out[0]}", EMBEDDING)
        arrow(axes, (middle, top + 1.02), (middle, top + 1.2))
        label(axes, 4.47, (bottom + top) / 2, f"{sizes.heads} head{'s' * (sizes.heads > 1)},\nside by side", fontweight="bold")
        words = f"{subject.title}, layer {self.layer}: multi-head attention with {spell(spec.pattern.at(self.layer))} (E1, E2, E3)."
        values = {
            "heads": sizes.heads, "head_dim": sizes.head_dim, "value_dim": sizes.value_dim, "steps": [text for text, _, _ in steps],
            "qkv": list(module.qkv.weight.shape), "out": list(out), "scale": module.scale, "memory": spec.memory.limit or 0,
        }  # fmt: skip
        return DrawnFigure(figure, words, values)


def attention_module(spec: Spec, layer: int) -> SelfAttention:
    """The self-attention of a layer, as it is built, without memory for its weights."""
    model = weightless(spec)
    blocks: Any = model.get_submodule("stack.depth.blocks")
    module = blocks[layer % len(blocks)].attention
    if not isinstance(module, SelfAttention):
        raise FormersError(
            f"{spec.name or 'this spec'} has {spell(spec.attention)} in layer {layer}: the figure draws DotProduct attention."
        )
    return module


def head_steps(spec: Spec, module: SelfAttention, layer: int) -> list[tuple[str, str, bool]]:
    """What a head computes, from scores to values: words, fill, and whether the pattern belongs beside it."""
    scaled = module.scale != 1.0
    steps = [(f"scores  q · k / √{module.sizes.head_dim}" if scaled else "scores  q · k", ATTENTION, False)]
    if not isinstance(spec.score, NoScore):
        steps.append((f"add the term of {type(spec.score).__name__}", GATE, False))
    pattern = spec.pattern.at(layer)
    if type(pattern).__name__ != "Full":
        steps.append((f"mask: {type(pattern).__name__}", PLAIN, True))
    return [*steps, ("softmax over the keys", NORM, False), ("values, summed by weight", TRANSITION, False)]


def _frames(axes: Any, x: float, bottom: float, top: float, count: int) -> None:
    from matplotlib.patches import FancyBboxPatch

    for number in reversed(range(count)):
        shift = 0.06 * number
        axes.add_patch(
            FancyBboxPatch(
                (x - 1.74 + shift, bottom - shift * 0.5), 3.48, top - bottom, boxstyle="round,pad=0,rounding_size=0.06",
                facecolor="#fafbfc", edgecolor=EDGE, linewidth=0.8, zorder=1 - 0.05 * number,
            )
        )  # fmt: skip


def _head(axes: Any, steps: list[tuple[str, str, bool]], mask: Tensor, x: float, bottom: float) -> None:
    """The steps of a head one above the other; values enter at the last."""
    for start, name in ((x - 1.2, "q"), (x, "k"), (x + 1.2, "v")):
        if name == "v":
            arrow(axes, (start, 0.86), (start, bottom + 0.14), (x + 1.33, bottom + 0.14), head=False)
        else:
            arrow(axes, (start, 0.86), (start, bottom + 0.26))
        label(axes, start + 0.09, 1.05, name, style="italic")
    y = bottom + 0.42
    for number, (text, fill, masked) in enumerate(steps):
        wide, left = (2.7, x - 0.22) if number == 0 else (2.05, x - 0.22)
        box(axes, left, y, wide, 0.32, text, fill)
        if number:
            arrow(axes, (left, y - 0.3), (left, y - 0.16))
        if masked:
            _small_mask(axes, mask, left - wide / 2 - 0.19, y)
        y += 0.46
    arrow(axes, (x + 1.33, bottom + 0.14), (x + 1.33, y - 0.46), (x - 0.22 + 1.025, y - 0.46))


def _small_mask(axes: Any, mask: Tensor, x: float, y: float) -> None:
    """The first queries and keys of a pattern."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    side, limits = 0.3, axes.get_ylim()
    axes.imshow(
        mask.int().numpy(), cmap=ListedColormap(["#ffffff", INK]), vmin=0, vmax=1, interpolation="none", zorder=5, origin="upper",
        extent=(x - side / 2, x + side / 2, y - side / 2, y + side / 2), aspect="equal",
    )  # fmt: skip
    axes.add_patch(Rectangle((x - side / 2, y - side / 2), side, side, fill=False, edgecolor=EDGE, linewidth=0.8, zorder=6))
    axes.set(xlim=(0, WIDTH), ylim=limits)
