"""The trainer: `train_step` computes one update; `fit` repeats it until the budget is spent, and evaluates and saves during training.

Everything random in step s is a function of (seed, s, process): the batch and the dropout. So resuming needs only the step number; there
is no state of a data loader or of a random number generator to save.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from formers.core import State
from formers.core.context import ENCODER
from formers.core.devices import capabilities
from formers.core.host import to_device
from formers.core.precision import autocast
from formers.core.random import derive_seed
from formers.data.lanes import Streams
from formers.evaluation.metrics import live_metrics
from formers.model import Model
from formers.training import checkpoint as checkpoints
from formers.training.compiling import CompiledModel
from formers.training.config import Settings
from formers.training.device import reset_peak
from formers.training.distributed import ALONE, World
from formers.training.divergence import Diverged, advice, save_bad_batch
from formers.training.interrupts import Interrupts
from formers.training.log import Log
from formers.training.loss_scale import LossScale
from formers.training.micro_batches import FRESH, HostBatch, MicroBatch, counted, width
from formers.training.optim import clip, optimizer, rate
from formers.training.prefetch import Prefetch
from formers.training.task import Task
from formers.training.validation import final_evaluation, validate

logger = logging.getLogger(__name__)

BAD_STEPS = 3
"""A run ends after this many consecutive steps without a finite loss and gradient."""
SAVE_SECONDS = 300.0
"""Default time between two checkpoints."""
EVALUATIONS = 10
"""Default number of evaluations during a run."""


class StepResult(NamedTuple):
    """The result of a training step."""

    loss: float
    norm: float
    """Norm of the gradient before clipping."""
    rate: float
    taken: bool
    """Whether the weights were updated; False if loss or gradient is not finite."""
    bad: bool
    """Whether a skipped step counts as an error; an overflow of the scaled fp16 gradient does not."""
    terms: dict[str, float]
    """The terms of the loss by name, if there is more than one."""


@dataclass
class Trainer:
    """Trains a model on a task; its fields are what a checkpoint saves."""

    model: Model
    task: Task
    settings: Settings
    world: World = ALONE
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Total time, including evaluation and saving."""
    busy: float = 0.0
    """Time spent in training steps only."""
    smooth: float | None = None
    """A running mean of the loss, for the progress bar."""
    bad: int = 0
    """Number of consecutive skipped steps."""
    best_loss: float | None = None
    best_step: int | None = None
    sample: dict[str, float | str] | None = None
    """Metrics of the last evaluation during training, and how much of the held-out data it used."""
    best_sample: dict[str, float | str] | None = None
    """Those of the best evaluation."""
    states: list[State | None] = field(default_factory=list)
    """The state that each micro-batch carries to the next step, for members with a memory."""

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.model.checkpointing(self.settings.checkpoint)
        self.optimizer = optimizer(self.model, self.settings)
        self.scaler = LossScale(enabled=self.settings.precision == "fp16")
        self.ahead: Prefetch[list[HostBatch]] | None = None
        self.rows = self.world.rows(self.settings.batch, self.settings.accumulate)
        module: nn.Module = CompiledModel(self.model) if self.settings.compile else self.model
        self.module = self.world.wrap(module, self.device, idle=self.model.auxiliary is not None)
        if isinstance(self.task.batches, Streams) and self.task.batches.lane(self.settings.batch) < self.task.batches.length:
            logger.warning(
                "%s is too short for batch=%d rows of length=%d: segments have %d tokens; use a smaller batch or length",
                self.task.batches.parts.name or "the text", self.settings.batch, self.task.batches.length,
                self.task.batches.lane(self.settings.batch),
            )  # fmt: skip

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        if self.settings.minutes is not None:
            return min(self.seconds / (60 * self.settings.minutes), 1.0)
        assert self.settings.budget is not None
        return min(self.step / self.settings.budget, 1.0)

    def fit(self, log: Log, folder: Path | None, interrupts: Interrupts) -> dict[str, Any]:
        """Trains until the budget is spent or a signal arrives, evaluates and saves during training, and returns the final results."""
        reset_peak(self.device)
        with self._prefetch():
            self._train(log, folder, interrupts)
        self._check_weights(folder)
        self._check_last_steps(folder)
        results = final_evaluation(self, log, interrupts)
        self.check_final_loss(folder, *self.world.first_says(float(results.get("loss", 0.0))))
        return results

    def _train(self, log: Log, folder: Path | None, interrupts: Interrupts) -> None:
        """Trains until the budget is spent or a signal arrives; evaluates and saves during training."""
        saved = time.monotonic()
        while self.progress < 1.0:
            if self._should_stop(interrupts):
                self._stop(log, folder, interrupts)
            before = self.progress
            self.step_and_log(log, folder)
            start = time.perf_counter()
            due = self._save_due(time.monotonic() - saved)
            if self._evaluation_due(before):
                due |= validate(self, log)
            self.seconds += time.perf_counter() - start
            ends = self.progress >= 1.0
            if ends and self.sample is not None:  # before the last checkpoint is saved
                self.check_final_loss(folder, float(self.sample["loss"]))
            if folder is not None and (due or ends):
                start = time.perf_counter()
                self.save(folder, log)
                saved = time.monotonic()
                self.seconds += time.perf_counter() - start

    @contextmanager
    def _prefetch(self) -> Iterator[None]:
        """Context in which batches are made ahead in a thread, if the device is not the host."""
        if capabilities(self.device).host:
            yield
            return
        with Prefetch(self.host_batches, self.settings.budget) as self.ahead:
            try:
                yield
            finally:
                self.ahead = None

    def step_and_log(self, log: Log, folder: Path | None = None) -> None:
        """One training step with its progress bar and its line in metrics.jsonl; ends a run that diverges."""
        done, micro_batches = self.advance()
        shown = done.loss if self.smooth is None else self.smooth
        beside = done.loss - done.terms.get("cross_entropy", done.loss)  # such as a penalty, which is not a likelihood
        costs = [term for name, term in done.terms.items() if name.removeprefix(ENCODER) == "ponder"]
        cost = {"ponder cost": sum(costs)} if costs else {}
        bar = {"loss": shown, **live_metrics(self.model, shown - beside), **cost, "tokens/s": self.tokens / max(self.busy, 1e-9)}
        log.step(self.step, self.progress, bar)
        facts: dict[str, Any] = {
            "step": self.step,
            "loss": done.loss,
            **done.terms,
            "norm": round(done.norm, 6),
            "rate": done.rate,
            "seconds": round(self.seconds, 3),
        }
        if done.taken:
            log.record(often=True, **facts)
        elif not done.bad:
            log.record(**facts, skipped=True)
        else:
            tensors = {f"{i}.{name}": value for i, micro in enumerate(micro_batches) for name, value in micro.batch.items()}
            where = save_bad_batch(folder, self.step, self.world.rank, tensors, done.loss, done.norm)
            log.record(**facts, skipped=True, batch=where)
            log.say(f"step {self.step:,} is skipped: its loss is {done.loss:g} and its gradient {done.norm:g}; its batch is in {where}")
            if self.bad >= BAD_STEPS:
                raise Diverged(
                    f"the loss is {done.loss:g} and its gradient {done.norm:g} at steps {self.step - BAD_STEPS + 1} to {self.step}: "
                    f"{self._advice(folder)}."
                )

    def save(self, folder: Path, log: Log) -> None:
        """Saves a checkpoint; weights that are not finite end the run instead, and the last checkpoint is kept."""
        self._check_weights(folder)
        checkpoints.save(folder, self, log.size())

    def check_final_loss(self, folder: Path | None, loss: float) -> None:
        """Raises if the loss on held-out data at the end of a run is not finite."""
        if not math.isfinite(loss):
            raise Diverged(f"the loss on held-out data is {loss:g} at the end, after step {self.step:,}: {self._advice(folder)}.")

    def _check_weights(self, folder: Path | None) -> None:
        if not bool(torch.stack([value.isfinite().all() for value in self.model.state_dict().values()]).all()):
            raise Diverged(f"the weights are not finite after step {self.step:,}: {self._advice(folder)}.")

    def _check_last_steps(self, folder: Path | None) -> None:
        """Raises if the last steps were skipped because their loss or gradient was not finite."""
        if self.bad:
            which = f"step {self.step:,}" if self.bad == 1 else f"steps {self.step - self.bad + 1:,} to {self.step:,}"
            what = "the last step has" if self.bad == 1 else f"the last {self.bad} steps have"
            raise Diverged(f"{what} no finite loss or gradient ({which}): {self._advice(folder)}.")

    def _advice(self, folder: Path | None) -> str:
        return advice(self.settings.learning_rate, folder)

    def _should_stop(self, interrupts: Interrupts) -> bool:
        """Whether any process received a signal. Also sets all clocks to that of the first process: the schedule depends on them."""
        if self.world.alone:
            return interrupts.caught
        stop, self.seconds = self.world.total([float(interrupts.caught), self.seconds if self.world.first else 0.0])
        return stop > 0

    def _stop(self, log: Log, folder: Path | None, interrupts: Interrupts) -> None:
        """Saves a checkpoint and ends the process as the signal requires."""
        if folder is not None:
            self.save(folder, log)
            log.say(f"stopped at step {self.step:,}: continue with `formers resume {folder}`")
        interrupts.leave()

    def _save_due(self, waited: float) -> bool:
        every = self.settings.save_every
        if every is not None:
            return self.step % every == 0
        return bool(self.world.first_says(waited >= SAVE_SECONDS)[0])

    def _evaluation_due(self, before: float) -> bool:
        every = self.settings.eval_every
        if every is not None:
            return self.step % every == 0 or self.progress >= 1.0
        return int(before * EVALUATIONS) < int(self.progress * EVALUATIONS)

    def further(self) -> dict[str, bytes]:
        """Further files of a checkpoint: none."""
        return {}

    def host_batches(self, step: int) -> list[HostBatch]:
        """This process's micro-batches of a step, on the host; their ids are checked before they are copied to a device."""
        made = [self.task.batches.train_batch(self.settings.batch, self.settings.seed, step, rows) for rows in self.rows]
        extra = self.model.spec.extra, 0 if self.model.spec.encoder is None else self.model.spec.encoder.extra
        there = capabilities(self.device)
        if not there.host:  # on the host the forward pass checks them itself
            for batch in made:
                self.model.check_ids(batch)
        counts = [counted(batch, *extra) for batch in made]
        fresh = [batch.pop(FRESH, None) for batch in made]
        if there.pinned:
            made = [{name: value.pin_memory() for name, value in batch.items()} for batch in made]
        return [HostBatch(*each) for each in zip(made, fresh, counts, strict=True)]

    def micro_batches(self) -> list[MicroBatch]:
        """This process's micro-batches of the next batch, on the device."""
        made = self.host_batches(self.step) if self.ahead is None else self.ahead.take(self.step)
        totals = self.world.total([float(sum(each)) for each in zip(*(host.counts for host in made), strict=True)])
        shares = [[n / max(total, 1.0) for n, total in zip(host.counts, totals, strict=True)] for host in made]
        return [MicroBatch(to_device(host.batch, self.device), host.fresh, *each) for host, each in zip(made, shares, strict=True)]

    def train_step(self, micro_batches: list[MicroBatch]) -> StepResult:
        """One update; its gradient is that of the whole batch over all processes."""
        now = rate(self.settings, self.step + 1, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = now
        self.optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(derive_seed(self.settings.seed, "step", self.step, self.world.rank))
        losses, states = [], []
        terms: dict[str, Tensor] = {}
        further: dict[str, Any] = {} if self.model.auxiliary is None else {"progress": self.progress}
        if self.model.spec.draws:
            further["update"] = self.step
        for i, micro in enumerate(micro_batches):
            with self.world.quiet(self.module, last=i == len(micro_batches) - 1):
                with autocast(self.settings.precision, self.device):
                    out = self.module(**micro.batch, **self._carried_state(i, micro), **further)
                loss = micro.weighted_loss(out)
                torch.autograd.backward(self.scaler.scaled(loss * self.world.size))  # gradients are averaged over the processes
            losses.append(loss.detach())
            if len(out.losses) > 1:
                shares = {name: micro.share_of(name) if name in out.of_tokens else micro.share for name in out.losses}
                terms = {name: terms.get(name, 0.0) + value.detach() * shares[name] for name, value in out.losses.items()}
            states.append(out.state)
        self.scaler.unscale(self.model.parameters())
        gradient = clip(self.model.parameters(), self.settings)
        # The only read of a step, and so the only wait: before the update, which a loss or gradient that is not finite prevents.
        norm, *figures = torch.stack([gradient, torch.stack(losses).sum(), *terms.values()]).tolist()
        value, *named = self.world.total(figures)
        taken = math.isfinite(value) and math.isfinite(norm)
        scaling = math.isfinite(value) and self.scaler.enabled and self.scaler.scale > 1.0
        if taken:
            self.optimizer.step()
        self.scaler.update(math.isfinite(norm))
        self.states = states if taken and self.task.batches.continues else []
        return StepResult(value, norm, now, taken, not taken and not scaling, dict(zip(terms, named, strict=True)))

    def advance(self) -> tuple[StepResult, list[MicroBatch]]:
        """Draws the next batch, trains on it and updates the counters; the result and the batch."""
        start = time.perf_counter()
        micro_batches = self.micro_batches()
        done = self.train_step(micro_batches)
        self.step += 1
        self.tokens += self.settings.batch * width(micro_batches[0].batch)
        self.bad = self.bad + 1 if done.bad else 0
        if math.isfinite(done.loss):
            self.smooth = done.loss if self.smooth is None else 0.95 * self.smooth + 0.05 * done.loss
        spent = time.perf_counter() - start
        self.busy += spent
        self.seconds += spent
        return done, micro_batches

    def _carried_state(self, i: int, micro: MicroBatch) -> dict[str, State]:
        """The state that a micro-batch continues from."""
        if not self.task.batches.continues:
            return {}
        rows = self.rows[i].stop - self.rows[i].start
        state = self.states[i] if self.states else None
        if state is None or (micro.fresh is not None and bool(micro.fresh.all())):
            return {"state": self.model.initial_state(rows)}
        if micro.fresh is not None and bool(micro.fresh.any()):
            state = state.reset(micro.fresh.to(self.device, non_blocking=True))
        return {"state": state}
