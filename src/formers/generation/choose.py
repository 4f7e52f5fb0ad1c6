"""Chooses the next token from logits: the most likely, or a sample from the filtered distribution.

l_v <- l_v / r if l_v > 0 else l_v r     for every v already in the text: the repetition penalty r     E150
p = softmax(l / temperature)             kept to the top_k likeliest tokens, then to the fewest whose p sums to top_p,
                                         then to those with p >= min_p max(p)                          E22

Each row has its own random numbers, so its text does not depend on the other rows of the batch. They are drawn on the host and copied
once for BLOCK steps. Everything else is computed on the device of the logits. The host reads it once per step: the chosen ids, which also
say whether a row's logits are finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError
from formers.core.devices import on_host, widest_float
from formers.core.random import generator
from formers.generation.options import Options

BLOCK = 64
"""Number of random numbers generated at once."""
DIVERGED = -1
"""Read instead of the token of a row whose logits are not finite."""


class Chosen(NamedTuple):
    """The chosen token of every row, on the device of the logits and as integers."""

    ids: Tensor
    """(rows,)"""
    tokens: list[int]


class Draws:
    """The random numbers of a batch: one for each row at every step, copied to the device of the model in blocks of steps."""

    def __init__(self, rows: Sequence[Iterator[Tensor]], device: torch.device) -> None:
        self.rows, self.device = list(rows), device
        self.block = torch.empty(len(rows), 0)
        self.step = 0

    def next(self) -> Tensor:
        """A number in [0, 1) for each row, as (rows, 1)."""
        if self.step == self.block.shape[1]:
            self.block, self.step = to_device(torch.stack([next(row) for row in self.rows]), self.device), 0
        self.step += 1
        return self.block[:, self.step - 1 : self.step]

    def select(self, rows: list[int]) -> None:
        """Keeps the rows with these indices."""
        self.rows = [self.rows[i] for i in rows]
        self.block = self.block[rows]


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Numbers in [0, 1) on a device, in its widest type: rounding to float32 never gives 1."""
    dtype = widest_float(device)
    return numbers.to(dtype).clamp(max=1 - torch.finfo(dtype).eps / 2).to(device, non_blocking=True)


def choose(logits: Tensor, options: Options, u: Tensor | None, seen: Tensor | None = None) -> Chosen:
    """A token for each row of logits (rows, vocab), by numbers u (rows, 1), which are needed if the temperature is above 0.

    seen (rows, vocab) marks the tokens that a repetition penalty counts.
    """
    if seen is not None:
        logits = penalised(logits, seen, options.repetition_penalty)
    best, ids = logits.max(dim=-1)
    if options.temperature > 0:
        assert u is not None
        ids = sample(probabilities(logits, options), u)
    return Chosen(ids, read_tokens(ids, best))


def sample(p: Tensor, u: Tensor) -> Tensor:
    """The token (rows,) of each row whose share of the distribution p (rows, vocab) contains u (rows, 1)."""
    reached = p.cumsum(dim=-1)
    return torch.searchsorted(reached, u * reached[:, -1:], right=True)[:, 0].clamp(max=p.shape[1] - 1)


def read_tokens(ids: Tensor, best: Tensor) -> list[int]:
    """The ids (rows,) as integers, after one wait; raises if the largest logit of a row, best (rows,), is not finite."""
    if on_host(best):
        refuse_diverged(best)
        return ids.tolist()
    tokens: list[int] = torch.where(best.isfinite(), ids, DIVERGED).tolist()
    if DIVERGED in tokens:
        raise diverged()
    return tokens


def refuse_diverged(best: Tensor) -> None:
    """Raises if the largest logit of a row, best (rows,), is not finite: NaN counts as the largest of all."""
    if not all(map(math.isfinite, best.tolist())):
        raise diverged()


def diverged() -> FormersError:
    """The error for logits that are not finite."""
    return FormersError("the model's logits are not finite: its training has diverged; use an earlier checkpoint.")


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Logits (rows, vocab) in which the tokens marked in `seen` are less likely by a penalty above 1 (Keskar et al., 2019)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)  # E150


def probabilities(logits: Tensor, options: Options) -> Tensor:
    """The distribution (rows, vocab), in the widest type of the device, that a token is sampled from; filtered tokens have 0."""
    dtype = widest_float(logits.device)
    logits = logits.to(dtype)
    temperature = max(options.temperature, torch.finfo(dtype).tiny)
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature  # the most likely is 0 at any temperature
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


def uniforms(seed: int, *keys: int | str) -> Iterator[Tensor]:
    """An infinite stream of numbers in [0, 1), BLOCK at a time, a function of the keys."""
    random = generator(seed, "sample", *keys)
    while True:
        yield torch.rand(BLOCK, dtype=torch.float64, generator=random)
