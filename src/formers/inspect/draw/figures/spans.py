"""Adaptive attention span as figures: the soft mask with its ramp, and two heads that look differently far (E60, E61)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from formers.core import FormersError
from formers.generation import tokenizer_of
from formers.inspect.draw.curves import COLOURS
from formers.inspect.draw.figure import FAINT, INK, TEXT, tidy
from formers.inspect.draw.figures.base import DrawnFigure, Figure, FigureSubject, sized, wide_figure
from formers.inspect.draw.fonts import drawable, fonts_for
from formers.inspect.measure.token_labels import token_labels
from formers.model import Model, StackModel
from formers.score import Span
from formers.score.span import SpanScore, soft_mask

TOKENS = 48
"""The most tokens before one token that are drawn."""
RAMP = "#e69f00"


class SoftMask(Figure):
    """m_z(x) over the distance x, a line for each span z."""

    spans: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1, max_length=4)] = (8.0, 24.0)
    ramp: PositiveInt = 16

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        distances = sized("the distance", int(max(self.spans)) + self.ramp + 9, 4096)
        masks = soft_mask(torch.tensor(self.spans, dtype=torch.float64), self.ramp, distances)
        figure = wide_figure(path, 3.4)
        axes = figure.subplots()
        for z, mask, colour in zip(self.spans, masks.tolist(), COLOURS, strict=False):
            axes.axvspan(z, z + self.ramp, color=colour, alpha=0.1, linewidth=0)
            axes.plot(range(distances), mask, color=colour, linewidth=1.8, marker="o", markersize=2.5, label=f"z = {z:g}")
            axes.text(z + 0.3 * self.ramp, 0.87, f"ramp from\n{z:g} to {z + self.ramp:g}", fontsize=9, color=colour, va="center", ha="left")
        axes.set(xlim=(0, distances - 1), ylim=(-0.03, 1.06))
        axes.grid(color=FAINT, linewidth=1.0, zorder=0)
        axes.set_xlabel("x, places back from the query", fontsize=9, color=TEXT)
        axes.set_ylabel("$m_z(x)$", fontsize=9, color=TEXT)
        tidy(axes)
        axes.legend(fontsize=9, frameon=False, loc="lower left")
        words = f"The soft mask of spans z = {', '.join(f'{z:g}' for z in self.spans)} with a ramp of R = {self.ramp} places (E61)."
        return DrawnFigure(figure, words, {"spans": list(self.spans), "ramp": self.ramp, "mask": masks.tolist()})


class TwoHeads(Figure):
    """The attention weights of two heads at the last token of a text, and their soft masks."""

    text: str = "a head may look far back, or at a few letters"
    spans: tuple[NonNegativeFloat, NonNegativeFloat] = (3.0, 24.0)
    """Of the first two heads of a new model; those of a run are its own."""

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        model = _spanned(subject.model)
        heads = [(0, 0), (0, 1)] if subject.run is None else _extremes(_spans(model))
        if subject.run is None:
            self._set_spans(model)
        spans, score = _spans(model), model.spec.score
        assert isinstance(score, Span)
        tokenizer = tokenizer_of(model)
        ids = tokenizer.encode(self.text)[-TOKENS:]
        if not ids:
            raise FormersError("the text is empty, so that there is nothing to look at: give at least one token.")
        maps = model.inspect(torch.tensor([ids])).attention
        labels = token_labels(tokenizer, ids)
        figure = wide_figure(path, 4.4)
        values = []
        for axes, (layer, head) in zip(figure.subplots(2, 1, sharex=True), heads, strict=True):
            z, weights = float(spans[layer, head]), maps[layer][0, head, -1].cpu().double()
            mask = soft_mask(torch.tensor(z, dtype=torch.float64), score.ramp, len(ids)).flip(0)
            _bars(axes, weights, mask, f"layer {layer}, head {head}: span z = {z:.3g}")
            values.append({"layer": layer, "head": head, "span": z, "weights": weights.tolist(), "mask": mask.tolist()})
            if len(values) == 1:
                axes.legend(fontsize=9, frameon=False, loc="upper left", labelcolor=TEXT)
        families, missing = fonts_for(labels)
        axes.set_xticks(
            range(len(labels)), [drawable(one, missing) for one in labels], fontfamily=families, parse_math=False, fontsize=8,
        )  # fmt: skip
        axes.set_xlabel("the text, up to the token whose attention is shown", fontsize=9, color=TEXT)
        how = "an untrained model whose spans are set" if subject.run is None else "the shortest and the longest span"
        words = f"{subject.title}: {how}, ramp {score.ramp}. Bars are attention weights, the line is the soft mask $m_z$ (E60, E61)."
        return DrawnFigure(figure, words, {"heads": values, "ramp": score.ramp})

    def _set_spans(self, model: Model) -> None:
        for module in model.modules():
            if isinstance(module, SpanScore):
                if len(module.share) < 2:
                    raise FormersError("heads=1 leaves nothing to compare: give heads=2 or more.")
                if max(self.spans) > module.span:
                    raise FormersError(f"spans={max(self.spans):g} is more than span={module.span}: give less, or a larger span.")
                with torch.no_grad():
                    module.share[:2] = torch.tensor(self.spans) / module.span


def _spanned(model: Model) -> StackModel:
    """The model; refuses one whose heads have no spans."""
    if not isinstance(model, StackModel) or not isinstance(model.spec.score, Span):
        raise FormersError(f"{model.spec.name or 'this model'} has no spans that it learns for each head: use adaptive-span.")
    return model


def _spans(model: Model) -> Tensor:
    """z (layers, heads) of a model."""
    found = [module.spans().detach().cpu().double() for module in model.modules() if isinstance(module, SpanScore)]
    return torch.stack(found)


def _extremes(spans: Tensor) -> list[tuple[int, int]]:
    """Layer and head of the shortest and of the longest span."""
    heads = spans.shape[1]
    if spans.numel() < 2:
        raise FormersError("the model has one head, so that there are no two to compare: use one with more.")
    return [divmod(int(which), heads) for which in (spans.argmin(), spans.argmax())]


def _bars(axes: Any, weights: Tensor, mask: Tensor, title: str) -> None:
    top = max(float(weights.max()), 1e-6)
    axes.bar(range(len(weights)), weights.tolist(), width=0.86, color=INK, label="weight")
    axes.plot(range(len(mask)), (top * mask).tolist(), color=RAMP, linewidth=1.8, label="soft mask, 0 to 1")
    axes.set_title(title, fontsize=9, color=TEXT, loc="left")
    axes.set_ylabel("weight", fontsize=9, color=TEXT)
    axes.set_ylim(0, 1.15 * top)
    tidy(axes)
