"""Learned spans, seen: a bar for each head of each layer, and what they save.

A span z ends in a ramp of R places, so that a head reads the keys at the distances 1 ... ceil(R + z) - 1, S at the most. For every key it
computes 2 (2 d_h + d_v) operations: two products of queries, with the key and with its position, and one of a weight with a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from formers.core import FormersError
from formers.generation import tokenizer_of
from formers.inspect.picture import INK, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.terminal import lines_of, sayable
from formers.model import Model, StackModel
from formers.score import DynamicSpan, Span

PALE = "#a9bcd6"
"""The colour of what comes on top of a span."""


@dataclass(frozen=True, eq=False)
class Spans:
    """The spans of a model, in places."""

    name: str
    most: int
    """S, the largest that they can be."""
    ramp: int
    mean: Tensor
    """(layers, heads): of spans that each token has, the mean over the tokens."""
    largest: Tensor
    """(layers, heads): the largest of any token."""
    read: float
    """Keys that a token reads, over all layers and heads."""
    tokens: int | None
    """Of how many tokens; None where spans are the same for all."""
    each: int
    """Operations for each key."""

    @property
    def all_keys(self) -> int:
        """Keys that a token would read if every span were at its maximum."""
        return self.most * self.mean.numel()

    @property
    def saved(self) -> float:
        """The share of the operations of attention that the spans save against the maximum."""
        return 1.0 - self.read / self.all_keys

    @property
    def caption(self) -> str:
        whose = "" if self.tokens is None else f" of {self.tokens:,} tokens"
        return (
            f"{self.name}: the spans{whose} are {float(self.mean.mean()):,.1f} places in the mean, {float(self.largest.max()):,.1f} at the "
            f"most, of a maximum of {self.most:,}; a ramp of {self.ramp} follows. "
            f"A token reads {self.read:,.0f} of {self.all_keys:,} keys, {self.read * self.each:,.0f} of {self.all_keys * self.each:,} "
            f"FLOPs of scores and values: {100 * self.saved:.1f}% are saved."
        )


def spans_of(model: Model, text: str | None = None, name: str = "") -> Spans:
    """The spans of a model; of a text's tokens where every token has its own."""
    score, name = model.spec.score, name or model.spec.name or "this model"
    if not isinstance(score, (Span, DynamicSpan)) or not isinstance(model, StackModel):
        raise FormersError(f"{name} has no spans that it learns: use a run of adaptive-span.")
    by_token = isinstance(score, DynamicSpan)
    if by_token and text is None:
        raise FormersError(f"{name} has other spans for every token: give --text, some text for it to read.")
    if text is not None and not by_token:
        raise FormersError(f"the spans of {name} are the same for every text: leave --text out.")
    tokens = _tokens(model, text)
    notes = model.inspect(tokens).notes
    # (layers, tokens, heads), one token where all have the same.
    z = torch.stack([(s[0] if by_token else s[None]) for s in notes["span by token" if by_token else "span"]]).double().cpu()
    if not z.isfinite().all():
        raise FormersError(f"the spans of {name} are not finite: the training has diverged; use an earlier checkpoint.")
    read = (torch.ceil(score.ramp + z) - 1).clamp(0, score.span)
    sizes = model.spec.sizes
    return Spans(
        name, score.span, score.ramp, z.mean(dim=1), z.amax(dim=1), float(read.mean(dim=1).sum()),
        tokens.shape[1] if by_token else None, 2 * (2 * sizes.head_dim + sizes.value_dim),
    )  # fmt: skip


def draw_spans(spans: Spans, columns: int = 80, encoding: str = "utf-8") -> str:
    """A bar for each head: its span, and pale what comes on top, the largest of any token and the ramp."""
    layers, heads = spans.mean.shape
    labels = [f" {layer if head == 0 else '':>5}  {head:>4}  " for layer in range(layers) for head in range(heads)]
    far = float(spans.largest.max()) + spans.ramp
    room = max(columns - len(labels[0]) - len(f"{spans.most:,}.0") - 2, 8)
    lines = [" layer  head  span in places"]
    for label, mean, largest in zip(labels, spans.mean.flatten().tolist(), spans.largest.flatten().tolist(), strict=True):
        full, whole = (round(room * v / far) for v in (mean, min(largest + spans.ramp, far)))
        lines.append(f"{label}{'█' * full}{'░' * (whole - full)} {mean:,.1f}")
    return sayable("\n".join([*lines, *lines_of(spans.caption, columns - 2)]), encoding)


def save_spans(spans: Spans, path: str | Path) -> Path:
    """The bars as a picture, the heads of a layer side by side."""
    layers, heads = spans.mean.shape
    figure = new_figure(path, min(2.5 + 0.16 * layers * (heads + 1), 24.0), 3.4)
    axes = figure.subplots()
    places = [layer * (heads + 1) + head for layer in range(layers) for head in range(heads)]
    mean, largest = spans.mean.flatten().tolist(), spans.largest.flatten().tolist()
    axes.bar(places, [v + spans.ramp for v in largest], width=0.9, color=PALE)
    axes.bar(places, mean, width=0.9, color=INK)
    axes.set_xticks([layer * (heads + 1) + (heads - 1) / 2 for layer in range(layers)], range(layers))
    axes.set_xlabel("layer, a bar for each head", fontsize=8, color=TEXT)
    axes.set_ylabel("span in places", fontsize=8, color=TEXT)
    tidy(axes)
    write_caption(figure, spans.caption)
    return save_figure(figure, path)


def spans_facts(spans: Spans) -> dict[str, Any]:
    """The spans as plain values."""
    return {
        "model": spans.name,
        "maximum": spans.most,
        "ramp": spans.ramp,
        "tokens": spans.tokens,
        "spans": [[round(v, 3) for v in row] for row in spans.mean.tolist()],
        "largest": [[round(v, 3) for v in row] for row in spans.largest.tolist()],
        "mean": float(spans.mean.mean()),
        "keys": spans.read,
        "maximum_keys": spans.all_keys,
        "flops": spans.read * spans.each,
        "maximum_flops": spans.all_keys * spans.each,
        "saved": spans.saved,
    }


def _tokens(model: Model, text: str | None) -> Tensor:
    """The tokens of a text, or one token where all have the same spans."""
    device = next(model.parameters()).device
    if text is None:
        features = model.spec.features
        return torch.zeros(1, 1, dtype=torch.long, device=device) if features is None else torch.zeros(1, 1, features, device=device)
    ids = tokenizer_of(model).encode(text)
    if not ids:
        raise FormersError("the text is empty, so that there is nothing to look at: give at least one token.")
    return torch.tensor([ids], device=device)
