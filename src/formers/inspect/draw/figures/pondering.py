"""Halting as figures: a recurrent network that takes several steps for an input, and the steps of a Universal Transformer (E40-E46, E100).

New models have halting units that answer everything alike; here their weights are drawn at random, so that inputs differ.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from formers.core import FormersError
from formers.inspect.draw.figure import INK
from formers.inspect.draw.figures.base import WIDTH, DrawnFigure, Figure, FigureSubject, sized
from formers.inspect.draw.figures.diagram import ATTENTION, EDGE, PLAIN, TRANSITION, arrow, box, label, new_diagram, sign
from formers.inspect.draw.fonts import drawable, fonts_for
from formers.inspect.measure.ponder import Ponder, ponder_of
from formers.model import Model
from formers.recurrent import Pondering

STATE = "#c4572b"
"""The colour of what goes on to the next input."""


class ActGraph(Figure):
    """The steps of each input of a recurrent network, their weights, and the state that goes on."""

    text: str = "ACT"

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        if not any(isinstance(kind, Pondering) for kind in subject.spec.attention.kinds):
            raise FormersError(f"{subject.title} is no recurrent network with adaptive computation time: use act-rnn.")
        seen = _thought(subject, self.text)
        tokens, most = sized("tokens of the text", len(seen.labels), 5), sized("steps", int(seen.steps.max()), 12)
        height = 1.72 + 0.55 * most
        figure, axes = new_diagram(path, height, 4)
        across = (WIDTH - 0.5) / tokens
        half = min(0.41, 0.3 * across)
        gap = (across - 2 * half) / 4  # between two boxes: what leaves to the sum, what goes on, and what enters the next
        top = 0.95 + 0.55 * most
        families, missing = fonts_for(seen.labels)
        for t in range(tokens):
            x = 0.4 + across * (t + 0.5)
            _paint_input(axes, seen, t, x, half, gap, top)
            label(axes, x, 0.1, f"x: {drawable(seen.labels[t], missing)}", fontfamily=families, parse_math=False)
            label(axes, x, top + 0.62, "output")
            if t < tokens - 1:
                right = x + half + 2 * gap
                arrow(axes, (x + 0.13, top + 0.1), (right, top + 0.1), (right, 0.75), (x + across - half, 0.75), colour=STATE, width=1.4)
        arrow(axes, (0.1, 0.75), (0.4 + across / 2 - half, 0.75), colour=STATE, width=1.4)
        label(axes, 0.2, 0.9, "$s_0$", colour=STATE)
        words = (
            f"{subject.title}{_untrained(subject)}: a box is a step of the cell, with its halting probability h and its weight p. The "
            "sum of the states by their weights is the output, and goes on to the next input (E40-E42, E45, E46)."
        )
        return DrawnFigure(figure, words, _values(seen))


def _paint_input(axes: Any, seen: Ponder, t: int, x: float, half: float, gap: float, top: float) -> None:
    """The steps of one input, boxes of twice `half` inches, and the sum of their states above them."""
    n, weights = int(seen.steps[t]), seen.weights[t].tolist()
    side, size = x + half + gap, min(8.5, 26 * half)
    arrow(axes, (x, 0.2), (x, 0.56))
    for step in range(n):
        y = 0.75 + 0.55 * step
        words = f"h = {float(seen.halting[t, step]):.2f}\np = {weights[step]:.2f}"
        box(axes, x, y, 2 * half, 0.38, words, ATTENTION if step < n - 1 else TRANSITION, size)
        if step:  # the input enters every step, and the state of the step before
            arrow(axes, (x, y - 0.36), (x, y - 0.19))
            arrow(axes, (x, 0.36), (x - half - gap, 0.36), (x - half - gap, y), (x - half, y), width=0.8)
        arrow(axes, (x + half, y), (side, y), head=False, colour=EDGE, width=0.6 + 2.6 * weights[step])
    arrow(axes, (side, 0.75), (side, top - 0.28), (x, top - 0.28), (x, top - 0.03), colour=EDGE)
    sign(axes, x, top + 0.1, "Σ", 0.13)
    arrow(axes, (x, top + 0.23), (x, top + 0.52))


class UniversalSteps(Figure):
    """A row for each step of the block, a column for each position; what has halted is copied."""

    text: str = "ponder"

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        spec = subject.spec
        if not spec.depth.shared or spec.encoder is not None:
            raise FormersError(f"{subject.title} has no one stack with a block that is applied again: use universal-transformer.")
        seen = _thought(subject, self.text)
        tokens, steps = sized("tokens of the text", len(seen.labels), 9), sized("steps", spec.depth.steps, 12)
        mask = spec.pattern.mask(tokens, spec.heads if spec.pattern.at(0).by_head else 1, 0).any(0)
        height = 0.4 + 0.72 * steps
        figure, axes = new_diagram(path, height, 4)
        across = (WIDTH - 1.15) / tokens
        places = [1.0 + across * (i + 0.5) for i in range(tokens)]
        families, missing = fonts_for(seen.labels)
        for i, x in enumerate(places):
            box(axes, x, 0.2, min(0.6, 0.8 * across), 0.28, "", PLAIN)
            label(axes, x, 0.2, drawable(seen.labels[i], missing), fontfamily=families, parse_math=False)
        told, ponders = spec.position.every_step, spec.depth.ponders is not None
        for step in range(steps):
            y = 0.2 + 0.72 * (step + 1)
            label(axes, 0.42, y, f"step {step + 1}" + (f"\n+ $P^{{{step + 1}}}$" if told else ""))
            for i, x in enumerate(places):
                takes = int(seen.steps[i]) > step
                if takes:
                    for j in mask[i].nonzero()[:, 0].tolist():
                        arrow(
                            axes,
                            (places[j], y - 0.72 + 0.14),
                            (x, y - 0.15),
                            colour=INK if j == i else "#9db1cc",
                            width=1.2 if j == i else 0.6,
                            head=j == i,
                        )
                else:
                    arrow(axes, (x, y - 0.72 + 0.14), (x, y - 0.15), colour=EDGE, dashed=True, width=0.8, head=False)
                words = (f"{float(seen.halting[i, step]):.2f}" if ponders else "") if takes else "halted"
                size = 8.5 if takes else min(8.0, 22 * across)
                box(axes, x, y, min(0.6, 0.86 * across), 0.28, words, ATTENTION if takes else PLAIN, size)
        signal = ", told the step by $P^t$" if told else ""
        halts = "a number is the halting probability" if ponders else "every position takes all steps"
        words = (
            f"{subject.title}{_untrained(subject)}: the same block at every step, over all positions{signal}; {halts}. "
            "Lines are what attention reads (E14, E41, E100)."
        )
        return DrawnFigure(figure, words, {**_values(seen), "reads": [row.nonzero()[:, 0].tolist() for row in mask]})


def _thought(subject: FigureSubject, text: str) -> Ponder:
    """How long the tokens of a text think; those of a stack without halting take all steps."""
    model = subject.model
    if model.spec.ponders is None:
        from formers.generation import tokenizer_of
        from formers.inspect.measure.token_labels import token_labels

        tokenizer = tokenizer_of(model)
        labels = token_labels(tokenizer, tokenizer.encode(text))
        steps = torch.full((len(labels),), float(model.spec.depth.steps))
        return Ponder("", labels, torch.zeros(len(labels), model.spec.depth.steps), steps, torch.zeros(len(labels)))
    if subject.run is None:
        _draw_units(model)
    return ponder_of(model, text, name=subject.title)[0][0]


def _draw_units(model: Model) -> None:
    """Random weights for the halting units of a new model, always the same."""
    torch.manual_seed(0)
    for name, module in model.named_modules():
        if name.endswith(".unit") and isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=2.0 * module.in_features**-0.5)


def _untrained(subject: FigureSubject) -> str:
    ponders = subject.spec.ponders is not None
    return ", untrained, its halting unit random" if subject.run is None and ponders else ""


def _values(seen: Ponder) -> dict[str, Any]:
    return {
        "tokens": seen.labels,
        "steps": [int(n) for n in seen.steps.tolist()],
        "halting": [row[: int(n)] for row, n in zip(seen.halting.tolist(), seen.steps, strict=True)],
        "weights": [row[: int(n)] for row, n in zip(seen.weights.tolist(), seen.steps, strict=True)],
    }
