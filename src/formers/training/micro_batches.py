"""The parts of a training step's batch: on the host, where their targets and tokens are counted, and then on the device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from formers.core import IGNORED
from formers.core.context import ENCODER
from formers.data.batches import Batch
from formers.model import Output

FRESH = "fresh"
"""Batch key: the rows that do not continue those of the batch before."""


class HostBatch(NamedTuple):
    """A part of a step's batch in the memory of the host, before it is copied to the device."""

    batch: Batch
    fresh: Tensor | None
    counts: tuple[int, int, int]
    """Number of targets, of real tokens, and of real source tokens."""


class MicroBatch(NamedTuple):
    """A part of a step's batch, its fresh rows, and its shares of the whole batch over all processes."""

    batch: Batch
    fresh: Tensor | None
    share: float
    """Share of the targets."""
    tokens: float
    """Share of the real tokens."""
    source: float
    """Share of the real tokens of the source, if there is one."""

    def weighted_loss(self, out: Output) -> Tensor:
        """The contribution to the loss of the whole batch: each term is weighted by its share of what it averages over."""
        assert out.loss is not None
        return out.loss * self.share + sum(out.losses[name] * more for name in out.of_tokens if (more := self.share_of(name) - self.share))

    def share_of(self, name: str) -> float:
        """The share of a loss term that averages over the tokens of a stack."""
        return self.source if name.startswith(ENCODER) else self.tokens


def counted(batch: Batch, extra: int, source_extra: int) -> tuple[int, int, int]:
    """Number of targets, of real tokens, and of real source tokens of a batch; extra vectors before a row count as tokens."""
    side = "target" if "target" in batch else "tokens"
    return (
        int((batch["targets"] != IGNORED).sum()),
        _real(batch[side], batch.get("mask"), extra),
        _real(batch["source"], batch.get("source_mask"), source_extra) if "source" in batch else 0,
    )


def _real(tokens: Tensor, mask: Tensor | None, extra: int) -> int:
    rows, length = tokens.shape[:2]
    return rows * extra + (rows * length if mask is None else int(mask.sum()))


def width(batch: Batch) -> int:
    """The number of positions of a batch's rows."""
    targets = batch["targets"]
    return targets.shape[1] if targets.dim() > 1 else batch["tokens"].shape[1]
