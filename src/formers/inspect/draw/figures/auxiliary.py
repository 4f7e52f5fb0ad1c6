"""Auxiliary losses as a figure: which position and layer predicts what, and how the weights of layers end (Al-Rfou et al., 2018)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from formers.inspect.draw.figure import FAINT, INK, TEXT, tidy
from formers.inspect.draw.figures.base import DrawnFigure, Figure, FigureSubject, sized, wide_figure
from formers.inspect.draw.figures.diagram import EDGE, label
from formers.inspect.measure.auxiliary import Predictions, predictions

POINTS = 101
"""Shares of the training at which weights are drawn."""
PALE = "#ffffff"


class AuxiliaryFigure(Figure):
    """A cell for each layer and position with the tokens that it predicts, and the weights of layers over the training."""

    positions: PositiveInt = 5
    progress: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """The share of the training that is done."""

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        spec = subject.spec
        positions = sized("positions", self.positions, 8)
        layers = sized("layers", spec.depth.steps, 16)
        seen = predictions(spec, positions, self.progress)
        figure = wide_figure(path, 1.1 + 0.36 * (layers + 1) + 2.0)
        cells, curves = figure.subplots(2, 1, height_ratios=[0.36 * (layers + 1) + 0.5, 1.5])
        _cells(cells, seen, positions)
        shares = [point / (POINTS - 1) for point in range(POINTS)]
        by_share = [predictions(spec, 1, share).weights for share in shares]
        _heat(curves, by_share, self.progress)
        ahead = spec.head.targets if hasattr(spec.head, "targets") else 1
        words = (
            f"{subject.title}, {layers} layers, {100 * self.progress:.0f}% of the training done. A cell holds the tokens that a position "
            f"predicts in a layer, {ahead} at the most; dark layers count in the loss. Below: the weight w of each layer over the training "
            "(E31-E35)."
        )
        return DrawnFigure(figure, words, {"weights": seen.weights, "tokens": seen.tokens, "weights_over_training": by_share})


def _cells(axes: Any, seen: Predictions, positions: int) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    ink = to_rgb(INK)
    for layer, (weight, row) in enumerate(zip(seen.weights, seen.tokens, strict=True)):
        for i, tokens in enumerate(row):
            fill = tuple(1 - weight * (1 - channel) for channel in ink)
            axes.add_patch(Rectangle((i - 0.46, layer + 0.56), 0.92, 0.82, facecolor=fill, edgecolor=EDGE, linewidth=0.8))
            words = ", ".join(f"t{token}" for token in tokens)
            label(axes, i, layer + 0.97, words or "-", 9, "#ffffff" if weight > 0.65 else TEXT)
        label(axes, positions - 0.42, layer + 0.97, f"w = {weight:.2g}", 9, ha="left")
    for i in range(positions):
        label(axes, i, 0.2, f"t{i}", 9)
    axes.set(xlim=(-0.55, positions + 0.35), ylim=(-0.05, len(seen.weights) + 0.55))
    layers = range(len(seen.weights))
    axes.set_yticks([0.2, *(layer + 0.97 for layer in layers)], ["reads", *(f"layer {layer + 1}" for layer in layers)])
    axes.set_xticks([])
    tidy(axes)
    axes.tick_params(length=0, labelsize=9)


def _heat(axes: Any, by_share: list[list[float]], progress: float) -> None:
    """A row for each layer, dark where it counts."""
    from matplotlib.colors import LinearSegmentedColormap

    layers = len(by_share[0])
    rows = [[weights[layer] for weights in by_share] for layer in range(layers)]
    colours = LinearSegmentedColormap.from_list("weights", [PALE, INK])
    half = 50 / (POINTS - 1)
    axes.imshow(
        rows,
        cmap=colours,
        vmin=0,
        vmax=1,
        aspect="auto",
        origin="lower",
        interpolation="none",
        extent=(-half, 100 + half, 0.5, layers + 0.5),
    )
    axes.hlines([layer + 0.5 for layer in range(1, layers)], -half, 100 + half, color=FAINT, linewidth=1.0)
    axes.axvline(100 * progress, color="#e69f00", linewidth=1.8)
    every = max(1, layers // 6)
    axes.set_yticks(range(1, layers + 1, every))
    axes.set_xlabel("% of the training; the line is the moment shown above", fontsize=9, color=TEXT)
    axes.set_ylabel("layer", fontsize=9, color=TEXT)
    tidy(axes)
