"""The training loop: batch, loss, gradient, clip, step; then judge, save and show."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from formers.core import FormersError, nearest
from formers.data.batches import Batch
from formers.data.text import STDLIB
from formers.family.members import member as find_member
from formers.model import Model, build
from formers.model.save import CONFIG, write
from formers.training.config import Settings, settings
from formers.training.evaluate import evaluate, judge
from formers.training.log import Log
from formers.training.optim import optimizer, rate
from formers.training.task import Task, prepare

RUN = "run.json"
"""What a run's folder says of itself, beside the model."""
EXACT_MATCHES = 500
"""How many held-out pairs the model writes out at the end."""


class Trained(NamedTuple):
    """A trained model, the figures it reached on held-out data, and what it learnt from."""

    model: Model
    results: dict[str, float]
    task: Task


@dataclass
class Loop:
    """A model on its way: what a step needs, and how many have been taken."""

    model: Model
    task: Task
    settings: Settings
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    smooth: float = math.nan
    """A running mean of the loss, for people to read."""
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = optimizer(self.model, self.settings)
        self.device = next(self.model.parameters()).device

    @property
    def progress(self) -> float:
        """The share of the budget that has been spent."""
        if self.settings.minutes is not None:
            return min(self.seconds / (60 * self.settings.minutes), 1.0)
        assert self.settings.budget is not None
        return self.step / self.settings.budget

    def batch(self) -> Batch:
        """The batch of the next step."""
        made = self.task.batches.train_batch(self.settings.batch, self.settings.seed, self.step)
        return {name: value.to(self.device) for name, value in made.items()}

    def learn(self, batch: Batch) -> float:
        """One step on a batch; the loss before it."""
        now = rate(self.settings, self.step + 1, self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = now
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip, foreach=True)
        value = loss.item()
        if not math.isfinite(value) or not math.isfinite(norm.item()):  # before the weights are ruined
            raise FormersError(
                f"the loss is {value:g} and its gradient {norm.item():g} at step {self.step + 1}: "
                f"lower learning_rate={self.settings.learning_rate:g}."
            )
        self.optimizer.step()
        return value

    def advance(self) -> float:
        """Takes the next step and counts it; its loss."""
        start = time.perf_counter()
        batch = self.batch()
        loss = self.learn(batch)
        self.step += 1
        self.tokens += batch["targets"].numel()
        self.smooth = loss if math.isnan(self.smooth) else 0.95 * self.smooth + 0.05 * loss
        self.seconds += time.perf_counter() - start
        return loss


def train(
    member: str,
    data: str | Path,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    preset: str | None = None,
    seed: int = 0,
    device: str = "auto",
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Trained:
    """Trains a member on a text file, on `stdlib` or on pairs, saves it in the folder `out`, and judges it on held-out data.

    Options are the member's sizes (layers=8) and the settings of training (batch=32, learning_rate=3e-4). A folder that holds a run
    is refused unless `overwrite` is True. After Ctrl-C the model is saved as it is.
    """
    sizes, rest = _part(member, options)
    chosen = settings(steps, minutes, {**_defaults(member, preset), **rest, "seed": seed})
    task = prepare(member, data, preset, sizes)
    folder = None if out is None else _folder(out, overwrite)
    torch.manual_seed(seed)
    model = build(task.spec).to(pick_device(device)).train()
    model.tokenizer = task.tokenizer
    loop = Loop(model, task, chosen)
    where = str(data) if str(data) == STDLIB else str(Path(data).resolve())
    facts: dict[str, Any] = {"member": member, "data": where, "settings": chosen.model_dump(mode="json")}
    with Log(folder, quiet=quiet) as log:
        log.say(f"{task.spec.name}: {model.parameter_count():,} parameters; data: {task.about}")
        try:
            run(loop, log)
        except KeyboardInterrupt:
            if folder is not None and loop.step:
                _save(folder, model, {**facts, "steps": loop.step})
                log.say(f"stopped at step {loop.step:,}; saved in {folder}")
            raise
        results = summary(loop)
        log.record(step=loop.step, **results)
    _save(folder, model, {**facts, "steps": loop.step, "results": results})
    return Trained(model.eval(), results, task)


def run(loop: Loop, log: Log) -> None:
    """Takes steps until the budget is spent."""
    every = loop.settings.eval_every
    while loop.progress < 1.0:
        take_step(loop, log)
        if every is not None and loop.step % every == 0:
            held = evaluate(loop.model, loop.task.batches, loop.settings.batch, loop.settings.eval_batches)
            log.record(step=loop.step, valid_loss=held["loss"])
            log.say(f"step {loop.step:,}: loss {held['loss']:.4f} on held-out data")


def take_step(loop: Loop, log: Log) -> None:
    """One step with all that the loop does around it: the batch, the guard, the bar and the record."""
    loss = loop.advance()
    log.step(loop.step, loop.progress, {"loss": loop.smooth, "tokens/s": loop.tokens / loop.seconds})
    log.record(step=loop.step, loss=loss, seconds=round(loop.seconds, 3))


def summary(loop: Loop) -> dict[str, float]:
    """The figures of the whole held-out data, and how the training went."""
    results = judge(loop.model, loop.task.batches, loop.settings.batch, EXACT_MATCHES)
    speed = loop.tokens / max(loop.seconds, 1e-9)
    return {**results, "tokens_per_second": speed, "steps": loop.step, "seconds": round(loop.seconds, 2)}


def _save(folder: Path | None, model: Model, facts: dict[str, Any]) -> None:
    """Writes the model and what the run says of itself."""
    if folder is not None:
        model.save_pretrained(folder)
        write(folder / RUN, (json.dumps(facts, indent=2) + "\n").encode())


def _part(member: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the member, and those of the training; a name that is neither is refused."""
    sizes, rest = find_member(member).options, list(Settings.model_fields)
    for name in options:
        if name not in sizes and name not in rest:
            raise FormersError(f"{member} has no option {name!r}, nor has its training: {nearest(name, [*sizes, *rest])}")
    return {n: v for n, v in options.items() if n in sizes}, {n: v for n, v in options.items() if n not in sizes}


def _defaults(member: str, preset: str | None) -> dict[str, Any]:
    """Training settings that the member's paper asks for."""
    return dict(find_member(member).training.get(preset or "", {}))


def pick_device(name: str) -> torch.device:
    """The device of a name; auto takes an accelerator where there is one."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise FormersError(f"device={name!r} is not to be had here: use cpu, or auto for what is there.") from None


def _folder(out: str | Path, overwrite: bool) -> Path:
    folder = Path(out)
    if (folder / CONFIG).exists() and not overwrite:
        raise FormersError(f"{folder} holds a run already: give another --out, or --overwrite to replace it.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormersError(f"{out} cannot be made a folder ({error.strerror}): give another `out`.") from None
    return folder
