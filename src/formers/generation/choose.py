"""Chooses the next token from logits: the most likely, or a sample from the filtered distribution.

l_v <- l_v / r if l_v > 0 else l_v r     for every v already in the text: the repetition penalty r     E150
p = softmax(l / temperature)             kept to the top_k likeliest tokens, then to the fewest whose p sums to top_p,
                                         then to those with p >= min_p max(p)                          E22

Each row has its own random numbers, so its text does not depend on the other rows of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from formers.core import FormersError
from formers.core.random import generator
from formers.generation.options import Options

BLOCK = 64
"""Number of random numbers generated at once."""


def choose(logits: Tensor, options: Options, draws: Sequence[Iterator[float]], seen: Tensor | None = None) -> list[int]:
    """A token id for each row of logits (rows, vocab); `seen` (rows, vocab) marks the tokens that a repetition penalty counts."""
    if seen is not None:
        logits = penalised(logits, seen, options.repetition_penalty)
    best, likeliest = logits.max(dim=-1)
    refuse_diverged(best)
    if options.temperature == 0:
        return likeliest.tolist()
    reached = probabilities(logits, options).cumsum(dim=-1)
    u = torch.tensor([[next(row)] for row in draws], dtype=reached.dtype, device=reached.device)
    return torch.searchsorted(reached, u * reached[:, -1:], right=True)[:, 0].tolist()


def refuse_diverged(best: Tensor) -> None:
    """Raises if the largest logit of a row, best (rows,), is not finite: NaN counts as the largest of all."""
    if not all(map(math.isfinite, best.tolist())):
        raise FormersError("the model's logits are not finite: its training has diverged; use an earlier checkpoint.")


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits (rows, vocab) in which the tokens marked in `seen` are less likely by a penalty above 1 (Keskar et al., 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)  # E150


def probabilities(logits: Tensor, options: Options) -> Tensor:
    """The distribution (rows, vocab), in float64, that a token is sampled from; filtered tokens have 0."""
    logits = logits.double()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / options.temperature  # the most likely is 0 at any temperature
    if options.top_k is not None and options.top_k < logits.shape[-1]:
        kept = logits.argsort(dim=-1, descending=True, stable=True)[:, : options.top_k]
        logits = torch.full_like(logits, float("-inf")).scatter(1, kept, logits.gather(1, kept))
    p = logits.softmax(dim=-1)  # E22
    if options.top_p is not None and options.top_p < 1:
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        beyond = ordered.cumsum(dim=-1) - ordered >= options.top_p
        p = p.masked_fill(beyond.gather(1, order.argsort(dim=-1)), 0.0)
    if options.min_p:
        p = p.masked_fill(p < options.min_p * p.amax(dim=-1, keepdim=True), 0.0)
    return p / p.sum(dim=-1, keepdim=True)


def uniforms(seed: int, *keys: int | str) -> Iterator[float]:
    """An infinite stream of numbers in [0, 1), a function of the keys."""
    random = generator(seed, "sample", *keys)
    while True:
        yield from torch.rand(BLOCK, dtype=torch.float64, generator=random).tolist()
