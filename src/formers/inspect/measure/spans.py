"""Learned spans of each head of each layer, and the operations that they save.

A span z ends in a ramp of R places, so that a head reads the keys at the distances 1 ... ceil(R + z) - 1, S at the most. For every key it
computes 2 (2 d_h + d_v) operations: two products of queries, with the key and with its position, and one of a weight with a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from formers.core import FormersError
from formers.generation import tokenizer_of
from formers.model import Model, StackModel
from formers.score import DynamicSpan, Span


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
        raise FormersError(f"{name} has no learned spans: use a run of adaptive-span.")
    by_token = isinstance(score, DynamicSpan)
    if by_token and text is None:
        raise FormersError(f"{name} has other spans for every token: give --text, some text for it to read.")
    if text is not None and not by_token:
        raise FormersError(f"the spans of {name} are the same for every text: leave --text out.")
    tokens = _tokens(model, text)
    notes = model.inspect(tokens).notes
    # (layers, tokens, heads), one token where all have the same.
    z = torch.stack([(s[0] if by_token else s[None]) for s in notes["span by token" if by_token else "span"]]).cpu().double()
    if not z.isfinite().all():
        raise FormersError(f"the spans of {name} are not finite: the training has diverged; use an earlier checkpoint.")
    read = (torch.ceil(score.ramp + z) - 1).clamp(0, score.span)
    sizes = model.spec.sizes
    return Spans(
        name, score.span, score.ramp, z.mean(dim=1), z.amax(dim=1), float(read.mean(dim=1).sum()),
        tokens.shape[1] if by_token else None, 2 * (2 * sizes.head_dim + sizes.value_dim),
    )  # fmt: skip


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
        raise FormersError("the text is empty: give at least one token.")
    return torch.tensor([ids], device=device)
