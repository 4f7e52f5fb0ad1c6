"""Losses of a run: by the position within the segment, and by training step.

A model that reads every segment alone knows nothing at its beginning (the "context fragmentation" of Dai et al., 2019). One with a
memory is evaluated on the same segments twice: with its memory, and with an empty one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from formers.core import IGNORED, FormersError, State
from formers.data import Batches, Bytes, Streams
from formers.evaluation.protocol import Protocol, apply_protocol, is_text
from formers.heads.base import EmbeddingTables
from formers.model import Model, evaluating
from formers.training.log import METRICS
from formers.training.run import open_run

Progress = Callable[[int, "int | None"], None]
TOKENS = 100_000
"""Default maximum number of evaluated tokens."""


class Losses(NamedTuple):
    """The mean loss at every position of a segment, in nats."""

    name: str
    nats: Tensor
    """(length,)"""
    counts: Tensor
    """(length,), how many tokens were evaluated at each position."""
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
    return model.head.token_losses(hidden, cast(EmbeddingTables, model.embedding), targets)


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
                evaluated = targets != IGNORED
                nats = token_cross_entropy(model, out.hidden, targets)
                width = targets.shape[1]
                sums[:width] += nats.masked_fill(~evaluated, 0.0).cpu().double().sum(dim=0)
                counts[:width] += evaluated.sum(dim=0).cpu()
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
    device: str = "auto",
) -> list[Losses]:
    """The losses of a run by position, in segments of its protocol; of a run with a memory two, with it and without."""
    model, task, facts = open_run(run, data, part, checkpoint=checkpoint, device=device)
    if not is_text(model.spec, task.batches):
        raise FormersError(f"{run} does not predict the next token, so it has no loss by position: give a run of a language model.")
    own = Protocol(**facts.get("protocol") or {})
    reading = apply_protocol(own.during_training(), model, task.batches)
    where, batches = part or "valid", reading.batches
    if isinstance(batches, Streams):
        count = len(task.batches.parts[where]) - 1
        if count < 2 * batches.length:
            raise FormersError(
                f"{where} has {count:,} tokens to evaluate, fewer than two segments of {batches.length}: give more data with --data."
            )
        batches = batches.beginning(where, max(limit, 2 * batches.length))  # the tokens that a run without a memory is evaluated on
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


def losses_facts(losses: Sequence[Losses]) -> list[dict[str, Any]]:
    """What is drawn, ready for JSON: the loss at every position, not binned."""
    return [
        {"name": each.name, "unit": each.unit, "mean": each.mean(), "tokens": int(each.counts.sum()), "by_position": each.values.tolist()}
        for each in losses
    ]


def training_losses(run: str | Path) -> list[float]:
    """The training loss of every step of a run, in nats."""
    path = Path(run) / METRICS
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        raise FormersError(f"{str(run)!r} has no readable {METRICS}, and no losses to draw: give the folder of a training.") from None
    losses = [line["loss"] for line in lines if "loss" in line and line["loss"] is not None]
    if not losses:
        raise FormersError(f"{str(run)!r} has taken no step, and has no losses to draw: train it first.")
    return losses
