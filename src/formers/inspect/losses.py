"""The loss by the position within the segment: what the first tokens of a segment cost, which have little before them.

A model that reads every segment alone knows nothing at its beginning (the "context fragmentation" of Dai et al., 2019). One with a
memory is judged on the same segments twice: with its memory, and with an empty one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from formers.core import IGNORED, FormersError, State
from formers.data import Batches, Bytes, Streams
from formers.evaluation.protocol import Protocol, apply_protocol, is_text
from formers.heads.base import Embeds
from formers.inspect.curves import Curve, Panel
from formers.model import Model, evaluating
from formers.training.run import open_run

Progress = Callable[[int, "int | None"], None]
TOKENS = 100_000
"""How many tokens are judged at the most, unless one says otherwise."""
FINE = 4
"""Bins of positions an octave: the first positions stand alone, later ones together."""


class Losses(NamedTuple):
    """The mean loss at every position of a segment, in nats."""

    name: str
    nats: Tensor
    """(length,)"""
    counts: Tensor
    """(length,), how many tokens were judged at each position."""
    bytes: bool
    """Whether a token is a byte."""

    @property
    def unit(self) -> str:
        return "bits per byte" if self.bytes else "nats per token"

    @property
    def values(self) -> Tensor:
        """(length,) in the unit."""
        return self.nats / math.log(2) if self.bytes else self.nats

    def mean(self, start: int = 0, stop: int | None = None) -> float:
        """The mean over the tokens at some positions, in the unit."""
        counts = self.counts[start:stop]
        return float((self.values[start:stop] * counts).sum() / counts.sum())


def token_cross_entropy(model: Model, hidden: Tensor, targets: Tensor) -> Tensor:
    """The loss (batch, length) of every target by itself, in nats."""
    return model.head.token_losses(hidden, cast(Embeds, model.embedding), targets)


@torch.no_grad()
def losses_by_position(
    model: Model, batches: Batches, part: str, size: int = 16, limit: int = TOKENS, remembers: bool = True, progress: Progress | None = None
) -> tuple[Tensor, Tensor]:
    """The mean nats (length,) at every position of a segment, and how many tokens that is the mean of.

    Of lanes the first segment is left out, which nothing precedes; the others are read with the state of the one before if `remembers`,
    else alone: the same tokens either way.
    """
    device = next(model.parameters()).device
    state: State | None = None
    sums = torch.zeros(batches.length, dtype=torch.float64)
    counts = torch.zeros(batches.length, dtype=torch.float64)
    with evaluating(model):
        for batch in batches.eval_batches(size, part):
            fresh, targets = batch.pop("fresh", None), batch["targets"].to(device)
            carried = model.initial_state(len(targets)) if batches.continues and state is None else state
            out = model(batch["tokens"].to(device), state=carried if remembers else None)
            state = out.state if batches.continues and remembers else None
            if fresh is None or not bool(fresh.all()):
                judged = targets != IGNORED
                nats = token_cross_entropy(model, out.hidden, targets)
                width = targets.shape[1]
                sums[:width] += nats.double().masked_fill(~judged, 0.0).sum(dim=0).cpu()
                counts[:width] += judged.sum(dim=0).cpu()
            if progress is not None:
                progress(min(int(counts.sum()), limit), limit)
            if counts.sum() >= limit:
                break
    return sums / counts.clamp(min=1), counts


def run_losses(
    run: str | Path,
    data: str | None = None,
    part: str | None = None,
    size: int = 16,
    limit: int = TOKENS,
    checkpoint: Literal["last", "best"] = "last",
    progress: Progress | None = None,
) -> list[Losses]:
    """The losses of a run by position, in segments of its protocol; of a run with a memory two, with it and without."""
    model, task, facts = open_run(run, data, part, checkpoint=checkpoint)
    if not is_text(model.spec, task.batches):
        raise FormersError(f"{run} tells no next token of a text, and has no loss at a position of it: give a language model's run.")
    own = Protocol(**facts.get("protocol") or {})
    reading = apply_protocol(own.during_training(), model, task.batches)
    where, batches = part or "valid", reading.batches
    if isinstance(batches, Streams):
        count = len(task.batches.parts[where]) - 1
        if count < 2 * batches.length:
            raise FormersError(
                f"{where} has {count:,} tokens to judge, fewer than two segments of {batches.length}: give more data with --data."
            )
        batches = batches.beginning(where, max(limit, 2 * batches.length))  # the tokens that a run without a memory is judged on
        size = max(1, min(size, min(count, limit) // (2 * batches.length)))
        limit_of_memory = reading.model.spec.memory.limit
        kept = "the state carried on" if limit_of_memory is None else f"its memory of {limit_of_memory}"
        ways = {f"{run}, with {kept}": True, f"{run}, without": False}
    else:
        ways = {str(run): False}
    known = isinstance(task.tokenizer, Bytes)
    return [
        Losses(name, *losses_by_position(reading.model, batches, where, size, limit, remembers, progress), known)
        for name, remembers in ways.items()
    ]


def binned(losses: Losses) -> Curve:
    """The mean loss over bins of positions, which grow with the position; x is the middle of a bin, counted from 1."""
    length = int((losses.counts > 0).sum())
    edges = sorted({round(2 ** (k / FINE)) for k in range(math.ceil(FINE * math.log2(length + 1)) + 1)} | {length + 1})
    bins = [(a - 1, min(b - 1, length)) for a, b in pairwise(edges) if a <= length]
    return Curve(losses.name, [(a + 1 + b) / 2 for a, b in bins], [losses.mean(a, b) for a, b in bins])


def losses_panel(losses: Sequence[Losses]) -> Panel:
    """All curves with one pair of axes; their units must agree."""
    units = {each.unit for each in losses}
    if len(units) > 1:
        raise FormersError("bytes and other tokens cannot be drawn on one axis: give runs whose tokens are alike.")
    curves = [binned(each) for each in losses]
    named = [curve._replace(name=f"{curve.name}: {each.mean():.4f}") for curve, each in zip(curves, losses, strict=True)]
    return Panel(named, "position within the segment", units.pop())


def losses_facts(losses: Sequence[Losses]) -> list[dict[str, Any]]:
    """What is drawn, ready for JSON: the loss at every position, not binned."""
    return [
        {"name": each.name, "unit": each.unit, "mean": each.mean(), "tokens": int(each.counts.sum()), "by_position": each.values.tolist()}
        for each in losses
    ]
