"""The time of a training step, predicted from two short measured lengths and from FLOPs.

t(n) = a + b F_dense(n) + c F_pairs(n)

a is the measured time of clipping and of the optimiser. F_dense are the FLOPs of plain matrix products, F_pairs those of attention over
pairs, which grow faster and run at another speed. b and c are fitted to training steps of the trainer itself at two lengths, with c
between b/4 and 4b and as near to b as the two measurements allow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from formers.choose.situation import EXERCISE, Situation
from formers.core import FormersError
from formers.core.devices import capabilities
from formers.inspect.measure.costs import Costs
from formers.inspect.measure.counting import by_operation, counting
from formers.inspect.measure.explain import runs_token_by_token
from formers.model import Spec
from formers.training.config import Settings
from formers.training.optim import clip
from formers.training.start import new_model
from formers.training.trainer import Trainer

DENSE = ("mm", "addmm", "convolution", "convolution_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward")
"""The operations whose FLOPs are counted as dense; all others compare queries with keys."""
STEP_TOKENS = 4096
"""Tokens of the step that is predicted: as many rows as hold so many, and at least one."""
MEASURED, APART = 2048, 8
"""The longer of the two measured lengths, at most, and how many times longer it is than the other."""
TOKENS = 2048
"""Tokens of a measured step at the longer length; a quarter of it at the shorter one."""
BY_TOKEN = (32, 128)
"""The measured lengths of members that compute rows token by token."""
COUNTED = (2, 4)
"""The lengths at which the memory of such members is counted."""
SECONDS = 0.4
"""A length is measured again as long as less time was spent on it, up to REPEATS times."""
REPEATS = 5
FILL = 4
"""Steps that fill a member's memory, at most, before any is timed."""
RATIO = 4.0
"""How far apart b and c may be."""
FAR = 16384
"""FLOPs are also counted at this length, for cross-over lengths."""


class StepFlops(NamedTuple):
    """FLOPs of a training step over one row."""

    dense: float
    pairs: float


class Timed(NamedTuple):
    """A training step that was timed."""

    length: int
    batch: int
    seconds: float
    fixed: float
    """Seconds of clipping and of the optimiser."""
    flops: StepFlops
    """Of one row."""


class StepTime(NamedTuple):
    """The fitted time of a step: fixed seconds, and seconds a FLOP of either kind."""

    fixed: float
    dense: float
    pairs: float

    def at(self, flops: StepFlops, batch: int) -> float:
        """Seconds of a step over so many rows."""
        return self.fixed + batch * (self.dense * flops.dense + self.pairs * flops.pairs)


class Priced(NamedTuple):
    """What a member costs at a length."""

    spec: Spec
    length: int
    batch: int
    parameters: int
    flops: StepFlops
    """Of a training step over one row."""
    bytes: int
    """Peak memory of a training step of the batch, with weights and optimiser, in float32."""
    seconds: float
    """Of a training step, predicted."""
    timed: tuple[Timed, ...]
    time: StepTime
    curve: dict[int, StepFlops]
    """FLOPs of a row by length, where they were counted."""

    def seconds_per_token(self, length: float) -> float:
        """The predicted time of a token in rows of another length; FLOPs are read off their curve."""
        batch = max(1.0, STEP_TOKENS / length)
        flops = StepFlops(*(_power_law({n: f[kind] for n, f in self.curve.items()}, length) for kind in (0, 1)))
        return (self.time.fixed / batch + self.time.dense * flops.dense + self.time.pairs * flops.pairs) / length


def price(job: Situation, member: str, folder: Path, device: torch.device, options: Mapping[str, Any]) -> Priced:
    """What a member costs at a job: two short lengths measured, the job's own length predicted."""
    chosen = dict(options)
    task = job.prepare(member, folder, chosen)
    spec = task.spec
    if job.task == EXERCISE:
        return _price_drawn(job, member, folder, device, chosen)
    longer = min(job.length, MEASURED)
    pair = BY_TOKEN if runs_token_by_token(spec) else (max(4, longer // APART), longer)
    lengths = sorted({min(n, job.length) for n in pair})
    batch = max(1, STEP_TOKENS // job.length)
    # Token by token, time goes with the length and hardly with the rows: these are then as many as in the step that is predicted.
    rows = {n: batch if runs_token_by_token(spec) else max(1, TOKENS // (4 if n < lengths[-1] else 1) // n) for n in lengths}
    timed = tuple(_timed(job.short(n), member, folder, device, chosen, rows[n]) for n in lengths)
    fitted = fit(timed)
    curve = {each.length: each.flops for each in timed}
    costs = Costs(spec, batch)
    if runs_token_by_token(spec):
        flops = StepFlops(*(_power_law({n: f[kind] for n, f in curve.items()}, job.length) for kind in (0, 1)))
    else:
        flops = curve.get(job.length) or split(Costs(spec).training_flops(job.length))
        curve |= _further(job, member, folder, chosen)
    curve[job.length] = flops
    whole = costs.weights + costs.optimizer + _peak(costs, job.length)
    return Priced(spec, job.length, batch, _parameters(costs), flops, whole, fitted.at(flops, batch), timed, fitted, curve)


def _price_drawn(job: Situation, member: str, folder: Path, device: torch.device, options: dict[str, Any]) -> Priced:
    """The cost of a member on rows that are drawn, whose length the task decides: two sizes of the batch are measured."""
    timed = tuple(_timed(job, member, folder, device, options, batch) for batch in (4, 16))
    length, batch, flops = timed[-1].length, timed[-1].batch, timed[-1].flops
    costs = Costs(job.prepare(member, folder, options).spec, batch)
    whole = costs.weights + costs.optimizer + _peak(costs, length)
    fitted = fit(timed)
    return Priced(costs.spec, length, batch, _parameters(costs), flops, whole, fitted.at(flops, batch), timed, fitted, {length: flops})


def fit(timed: tuple[Timed, ...]) -> StepTime:
    """The time of a step that two measured ones give; of all that fit them alike, the one whose two speeds differ least."""
    fixed = min(each.fixed for each in timed)
    best: tuple[float, StepTime] | None = None
    for step in range(-32, 33):
        ratio = RATIO ** (step / 32)  # c / b
        rows = [(each.batch * (each.flops.dense + ratio * each.flops.pairs), max(each.seconds - fixed, 1e-9)) for each in timed]
        # Least squares of relative errors: the short step counts as much as the long one.
        dense = sum(x / t for x, t in rows) / max(sum((x / t) ** 2 for x, t in rows), 1e-30)
        error = sum((dense * x / t - 1) ** 2 for x, t in rows) + 1e-3 * math.log(ratio) ** 2
        if best is None or error < best[0]:
            best = error, StepTime(fixed, dense, dense * ratio)
    assert best is not None
    return best[1]


def split(operations: Mapping[str, int], rows: int = 1) -> StepFlops:
    """FLOPs by operation as dense ones and those over pairs, of one of so many rows."""
    dense = sum(count for name, count in operations.items() if name in DENSE)
    return StepFlops(dense / rows, (sum(operations.values()) - dense) / rows)


def _timed(job: Situation, member: str, folder: Path, device: torch.device, options: dict[str, Any], batch: int) -> Timed:
    """A step of the trainer, timed: the first one warms up, the fastest of the next ones counts."""
    task = job.prepare(member, folder, options)
    trainer = Trainer(new_model(task, device), task, Settings(steps=1 << 30, batch=batch))
    if runs_token_by_token(task.spec) or job.task == EXERCISE:
        with counting() as counter:
            _, micro_batches = trainer.advance()
        read = micro_batches[0].batch
        length = int(read["target" if "target" in read else "tokens"].shape[1])
        flops = split(by_operation(counter), batch)
    else:
        for _ in range(min(FILL, max(1, -(-(task.spec.memory.limit or 0) // job.length)))):  # until the memory is full
            trainer.advance()
        # On tensors without numbers, as the job's own length is counted: what depends on weights, such as spans, is then at its largest.
        length, flops = job.length, split(Costs(task.spec).training_flops(job.length))
    seconds: list[float] = []
    while len(seconds) < REPEATS and (len(seconds) < 2 or sum(seconds) < SECONDS):
        seconds.append(clocked(trainer.advance, device))
    fixed = min(clocked(lambda: (clip(trainer.model.parameters(), trainer.settings), trainer.optimizer.step()), device) for _ in range(2))
    return Timed(length, batch, min(seconds), fixed, flops)


def clock_of(device: torch.device) -> Callable[[], float]:
    """What time is measured by: CPU seconds of one thread, which other programs do not disturb; else the clock."""
    return time.process_time if capabilities(device).host and torch.get_num_threads() == 1 else time.perf_counter


def clocked(run: Callable[[], object], device: torch.device) -> float:
    """Seconds that a run takes."""
    clock = clock_of(device)
    start = clock()
    run()
    if not capabilities(device).host:
        torch.accelerator.synchronize(device)
    return clock() - start


def _further(job: Situation, member: str, folder: Path, options: dict[str, Any]) -> dict[int, StepFlops]:
    """FLOPs of a row that is longer, where the member can read one."""
    if job.shape is not None or job.length >= FAR:
        return {}
    try:
        return {FAR: split(Costs(job.short(FAR).prepare(member, folder, options).spec).training_flops(FAR))}
    except FormersError:
        return {}


def _peak(costs: Costs, length: int) -> int:
    """The peak bytes of a training step; of a model that computes rows token by token, on the line through two very short lengths."""
    if not runs_token_by_token(costs.spec):
        return costs.training_peak(length)
    few, more = (costs.training_peak(n) for n in COUNTED)
    return more + max(0, more - few) // (COUNTED[1] - COUNTED[0]) * (length - COUNTED[1])


def _parameters(costs: Costs) -> int:
    return sum(p.numel() for p in costs.model.parameters())


def _power_law(known: Mapping[int, float], length: float) -> float:
    """A value at a length, on the straight lines through the known ones where both axes are logarithmic."""
    points = sorted((n, value) for n, value in known.items() if value > 0)
    if not points:
        return 0.0
    if len(points) == 1:
        return points[0][1] * length / points[0][0]
    upper = next((i for i, (n, _) in enumerate(points) if n >= length and i), len(points) - 1)
    (n1, v1), (n2, v2) = points[upper - 1], points[upper]
    slope = (math.log(v2) - math.log(v1)) / (math.log(n2) - math.log(n1))
    return v2 * (length / n2) ** slope
