"""Which tokens a segment sees, without recurrence and with it: the triangle over the layers (Dai et al., 2019, figures 1 and 2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from formers.core import FormersError
from formers.inspect.draw.figure import INK, TEXT
from formers.inspect.draw.figures.base import DrawnFigure, Figure, FigureSubject, sized, wide_figure
from formers.inspect.draw.figures.diagram import label
from formers.inspect.measure.segments import Visibility, visibility

ACROSS, PALE, REST = "#c4572b", "#d4dae1", "#9aa3ad"
"""Lines that lead into the memory, lines that the last token does not depend on, and tokens that it has not seen."""


Line = tuple[tuple[int, int], tuple[int, int]]
"""From a key to a query, each as (token, layer)."""


class Segments(Figure):
    """Tokens in a row, layers above one another, and a line for each key of each query."""

    segments: PositiveInt = 3

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        spec = subject.spec
        if spec.memory.limit is None:
            raise FormersError(
                f"{subject.title} carries no memory of tokens from segment to segment: use transformer-xl, or give memory=4."
            )
        if not spec.looks_back:
            raise FormersError(f"{subject.title} is not causal, so that it has no segments that follow one another: use transformer-xl.")
        sized("segments times length", self.segments * spec.length, 48)
        sized("layers", spec.depth.steps, 12)
        figure = wide_figure(path, 1.1 + 2 * (0.7 + 0.36 * spec.depth.steps))
        values = {}
        for axes, memory in zip(figure.subplots(2, 1), (0, spec.memory.limit), strict=True):
            seen = visibility(spec, self.segments, spec.length, memory)
            _paint(axes, seen)
            count = int(seen.reaches[-1, -1].sum())
            title = f"with recurrence, memory {memory}" if memory else "without recurrence"
            axes.set_title(f"{title}: the last token has seen {count} tokens", fontsize=9, color=TEXT, loc="left")
            values["with" if memory else "without"] = {
                "sees": [[row.nonzero()[:, 0].tolist() for row in layer] for layer in seen.sees],
                "seen": seen.reaches[-1, -1].nonzero()[:, 0].tolist(),
            }
        words = (
            f"{subject.title}: {spec.depth.steps} layers over segments of {spec.length} tokens. Dark is what the last token depends on; "
            "orange and dashed leads into the memory, where no gradient flows (E50, E52)."
        )
        return DrawnFigure(figure, words, values)


def _paint(axes: Any, seen: Visibility) -> None:
    """The triangle of the last token, and all other lines behind it."""
    from matplotlib.collections import LineCollection

    layers, n = seen.sees.shape[:2]
    # What the last token depends on, from the top down.
    needed = [seen.sees.new_zeros(n) for _ in range(layers + 1)]
    needed[layers][n - 1] = True
    for layer in reversed(range(layers)):
        needed[layer] = needed[layer + 1] | (seen.sees[layer] & needed[layer + 1][:, None]).any(0)
    pale: list[Line] = []
    dark: list[Line] = []
    across: list[Line] = []
    for layer in range(layers):
        for i, j in seen.sees[layer].nonzero().tolist():
            line = ((j, layer), (i, layer + 1))
            here = bool(needed[layer + 1][i])
            (across if here and j // seen.length < i // seen.length else dark if here else pale).append(line)
    for lines, colour, width, style in ((pale, PALE, 0.5, "solid"), (dark, INK, 0.9, "solid"), (across, ACROSS, 0.9, (0, (4, 2)))):
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, linestyles=[style]))
    for layer in range(layers + 1):
        for i in range(n):
            is_needed = bool(needed[layer][i])
            axes.plot(
                [i],
                [layer],
                marker="o",
                markersize=5.5,
                color=INK if is_needed else "#ffffff",
                markeredgecolor=INK if is_needed else REST,
                zorder=3,
            )
    for cut in range(seen.length, n, seen.length):
        axes.axvline(cut - 0.5, color=REST, linewidth=0.9, linestyle="dotted", zorder=0)
    axes.set(xlim=(-0.9, n - 0.3), ylim=(-0.75, layers + 0.35))
    axes.set_yticks(range(layers + 1), ["tokens", *(f"layer {layer}" for layer in range(1, layers + 1))], fontsize=9, color=TEXT)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for number in range(n // seen.length):
        label(axes, (number + 0.5) * seen.length - 0.5, -0.58, f"segment {number + 1}", 9)
