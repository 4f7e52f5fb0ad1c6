"""A step of training: batch, loss, gradient, guard, clip, update.

Everything random in step s is a function of (seed, s, process): the batch, and the dropout. So to resume is to go on counting, and
there is no state of a loader or of a random number generator to be lost.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from formers.core import IGNORED, FormersError, State
from formers.core.random import key
from formers.core.stream import ENCODER
from formers.data.batches import Batch
from formers.data.lanes import Streams
from formers.model import Model, Output
from formers.training.config import Settings
from formers.training.distributed import ALONE, World
from formers.training.optim import clip, optimizer, rate
from formers.training.precision import autocast, scaler
from formers.training.task import Task

logger = logging.getLogger(__name__)

BAD_STEPS = 3
"""So many steps in a row without a finite loss and gradient end a run."""
FRESH = "fresh"
"""Which rows of a batch do not continue those of the batch before."""


class Diverged(FormersError):
    """The loss has stopped being a number; exit code 3 on the command line."""


class Step(NamedTuple):
    """What a step came to."""

    loss: float
    norm: float
    """Of the gradient, before it is clipped."""
    rate: float
    taken: bool
    """Whether the weights moved; not where loss or gradient is not finite."""
    bad: bool
    """Whether that is a fault, and not a scaled fp16 gradient that was merely too large."""
    terms: dict[str, float]
    """What the loss is the sum of, by name, where that is more than one term."""


class Piece(NamedTuple):
    """A part of a step's batch, which of its rows begin anew, and its shares of what all processes have."""

    batch: Batch
    fresh: Tensor | None
    share: float
    """Of the targets."""
    tokens: float
    """Of the real tokens."""
    source: float
    """Of those of the source, where there is one."""

    def weighed(self, out: Output) -> Tensor:
        """What the piece adds to the loss of the whole batch, each term by its share of what it is a mean over."""
        assert out.loss is not None
        return out.loss * self.share + sum(out.losses[name] * more for name in out.of_tokens if (more := self.of(name) - self.share))

    def of(self, name: str) -> float:
        """The share that a term over the tokens of a stack has."""
        return self.source if name.startswith(ENCODER) else self.tokens


@dataclass
class Loop:
    """A model on its way: what a step needs, and how far it has come."""

    model: Model
    task: Task
    settings: Settings
    world: World = ALONE
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """All time since the beginning, judging and saving included."""
    busy: float = 0.0
    """The time of the steps alone."""
    smooth: float | None = None
    """A running mean of the loss, for people to read."""
    bad: int = 0
    """How many steps in a row were not taken."""
    best_loss: float | None = None
    best_step: int | None = None
    sample: dict[str, float | str] | None = None
    """The figures of the last evaluation on the way, and on how much of the held-out data they are."""
    best_sample: dict[str, float | str] | None = None
    """Those of the best one."""
    states: list[State | None] = field(default_factory=list)
    """What each piece of the batch carries to the next step, for members with a memory."""

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.model.checkpointing(self.settings.checkpoint)
        self.optimizer = optimizer(self.model, self.settings)
        self.scaler = scaler(self.settings.precision, self.device)
        self.rows = self.world.rows(self.settings.batch, self.settings.accumulate)
        module: nn.Module = torch.compile(self.model) if self.settings.compile else self.model  # type: ignore[assignment]
        self.module = self.world.wrap(module, self.device, idle=self.model.auxiliary is not None)
        if isinstance(self.task.batches, Streams) and self.task.batches.lane(self.settings.batch) < self.task.batches.length:
            logger.warning(
                "%s is too short for batch=%d rows of length=%d: segments have %d tokens; use a smaller batch or length",
                self.task.batches.parts.name or "the text", self.settings.batch, self.task.batches.length,
                self.task.batches.lane(self.settings.batch),
            )  # fmt: skip

    @property
    def progress(self) -> float:
        """The share of the budget that has been spent."""
        if self.settings.minutes is not None:
            return min(self.seconds / (60 * self.settings.minutes), 1.0)
        assert self.settings.budget is not None
        return min(self.step / self.settings.budget, 1.0)

    def further(self) -> dict[str, bytes]:
        """Files of its own that a checkpoint holds: none."""
        return {}

    def pieces(self) -> list[Piece]:
        """This process's part of the next batch."""
        made = [self.task.batches.train_batch(self.settings.batch, self.settings.seed, self.step, rows) for rows in self.rows]
        extra = self.model.spec.extra, 0 if self.model.spec.encoder is None else self.model.spec.encoder.extra
        counts = [_counted(batch, *extra) for batch in made]
        totals = self.world.total([float(sum(each)) for each in zip(*counts, strict=True)])
        fresh = [batch.pop(FRESH, None) for batch in made]
        here = [{name: value.to(self.device) for name, value in batch.items()} for batch in made]
        shares = [[n / max(total, 1.0) for n, total in zip(each, totals, strict=True)] for each in counts]
        return [Piece(b, f, *share) for b, f, share in zip(here, fresh, shares, strict=True)]

    def learn(self, pieces: list[Piece]) -> Step:
        """One step on the pieces of a batch, whose gradient is that of the whole batch over all processes."""
        now = rate(self.settings, self.step + 1, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = now
        self.optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(key(self.settings.seed, "step", self.step, self.world.rank))
        losses, states = [], []
        terms: dict[str, Tensor] = {}
        further: dict[str, Any] = {} if self.model.auxiliary is None else {"progress": self.progress}
        if self.model.spec.draws:
            further["update"] = self.step
        for i, piece in enumerate(pieces):
            with self.world.quiet(self.module, last=i == len(pieces) - 1):
                with autocast(self.settings.precision, self.device):
                    out = self.module(**piece.batch, **self._carried(i, piece), **further)
                loss = piece.weighed(out)
                torch.autograd.backward(self.scaler.scale(loss * self.world.size))  # gradients are averaged over the processes
            losses.append(loss.detach())
            if len(out.losses) > 1:
                shares = {name: piece.of(name) if name in out.of_tokens else piece.share for name in out.losses}
                terms = {name: terms.get(name, 0.0) + value.detach() * shares[name] for name, value in out.losses.items()}
            states.append(out.state)
        self.scaler.unscale_(self.optimizer)
        norm = clip(self.model.parameters(), self.settings)
        value, *named = self.world.total([torch.stack(losses).sum().item(), *(term.item() for term in terms.values())])
        taken = math.isfinite(value) and math.isfinite(norm)  # asked before the weights are ruined
        scaling = math.isfinite(value) and self.scaler.is_enabled() and self.scaler.get_scale() > 1.0
        if taken:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.states = states if taken and self.task.batches.continues else []
        return Step(value, norm, now, taken, not taken and not scaling, dict(zip(terms, named, strict=True)))

    def advance(self) -> tuple[Step, list[Piece]]:
        """Takes the next step and counts it; what it came to, and the batch it was on."""
        start = time.perf_counter()
        pieces = self.pieces()
        done = self.learn(pieces)
        self.step += 1
        self.tokens += self.settings.batch * _width(pieces[0].batch)
        self.bad = self.bad + 1 if done.bad else 0
        if math.isfinite(done.loss):
            self.smooth = done.loss if self.smooth is None else 0.95 * self.smooth + 0.05 * done.loss
        spent = time.perf_counter() - start
        self.busy += spent
        self.seconds += spent
        return done, pieces

    def _carried(self, i: int, piece: Piece) -> dict[str, State]:
        """The state that a piece goes on from."""
        if not self.task.batches.continues:
            return {}
        rows = self.rows[i].stop - self.rows[i].start
        state = self.states[i] if self.states else None
        if state is None or (piece.fresh is not None and bool(piece.fresh.all())):
            return {"state": self.model.initial_state(rows)}
        if piece.fresh is not None and bool(piece.fresh.any()):
            state = state.reset(piece.fresh.to(self.device))
        return {"state": state}


def _counted(batch: Batch, extra: int, source_extra: int) -> tuple[int, int, int]:
    """How many targets a batch has, how many real tokens, and how many in its sources; extra vectors before a row are tokens, too."""
    side = "target" if "target" in batch else "tokens"
    return (
        int((batch["targets"] != IGNORED).sum()),
        _real(batch[side], batch.get("mask"), extra),
        _real(batch["source"], batch.get("source_mask"), source_extra) if "source" in batch else 0,
    )


def _real(tokens: Tensor, mask: Tensor | None, extra: int) -> int:
    rows, length = tokens.shape[:2]
    return rows * extra + (rows * length if mask is None else int(mask.sum()))


def _width(batch: Batch) -> int:
    targets = batch["targets"]
    return targets.shape[1] if targets.dim() > 1 else batch["tokens"].shape[1]
