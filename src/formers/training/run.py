"""A run from step to step: when it is judged, saved and stopped; and judging it after the fact."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save as to_bytes

from formers.core import FormersError
from formers.data import Reading, Rows
from formers.data.files import parallel, resolved
from formers.generation import generate, tokenizer_of
from formers.model import Seq2Seq, load
from formers.model.files import write_through
from formers.training import checkpoint as checkpoints
from formers.training.device import pick_device
from formers.training.evaluate import Stopped, evaluate, judge
from formers.training.folder import BAD, RUN, read_facts
from formers.training.interrupts import Interrupts
from formers.training.log import Log
from formers.training.loop import BAD_STEPS, Diverged, Loop, Piece, Step
from formers.training.score import Figures, live
from formers.training.task import task_of

SAVE_SECONDS = 300.0
"""How often a run is saved that was not told."""
JUDGEMENTS = 10
"""How often a run is judged that was not told."""
COUNTS = ("tokens_per_second", "seconds", "best_loss")
"""Figures of a result that are no judgement."""
SHOWN = ("bits_per_byte", "bits_per_dimension", "perplexity", "accuracy", "masked_accuracy")
"""Figures that are told beside the loss on the way."""
EXACT_MATCHES = 500
"""How many held-out pairs the model writes out at the end."""


def run(loop: Loop, log: Log, folder: Path | None, interrupts: Interrupts) -> None:
    """Takes steps until the budget is spent or a signal comes; saves and judges on the way, and at the end."""
    saved = time.monotonic()
    while loop.progress < 1.0:
        stop = _agree(loop, interrupts)
        if stop:
            _stop(loop, log, folder, interrupts)
        before = loop.progress
        take_step(loop, log, folder)
        start = time.perf_counter()
        due = _save_due(loop, time.monotonic() - saved)
        if _judge_due(loop, before):
            due |= _look(loop, log)
        loop.seconds += time.perf_counter() - start
        if folder is not None and (due or loop.progress >= 1.0):
            start = time.perf_counter()
            save(folder, loop, log)
            saved = time.monotonic()
            loop.seconds += time.perf_counter() - start


def take_step(loop: Loop, log: Log, folder: Path | None = None) -> None:
    """One step with all that the loop does around it: the batch, the guard, the bar and the record."""
    done, pieces = loop.advance()
    shown = done.loss if loop.smooth is None else loop.smooth
    log.step(loop.step, loop.progress, {"loss": shown, **live(loop.model, shown), "tokens/s": loop.tokens / max(loop.busy, 1e-9)})
    facts: dict[str, Any] = {
        "step": loop.step,
        "loss": done.loss,
        **done.terms,
        "norm": round(done.norm, 6),
        "rate": done.rate,
        "seconds": round(loop.seconds, 3),
    }
    if done.taken:
        log.record(often=True, **facts)
    elif not done.bad:
        log.record(**facts, skipped=True)
    else:
        where = _keep_batch(loop, done, pieces, folder)
        log.record(**facts, skipped=True, batch=where)
        log.say(f"step {loop.step:,} is skipped: its loss is {done.loss:g} and its gradient {done.norm:g}; its batch is in {where}")
        if loop.bad >= BAD_STEPS:
            again = "" if folder is None else f", from its last good checkpoint with --from {folder} and --data"
            raise Diverged(
                f"the loss is {done.loss:g} and its gradient {done.norm:g} at steps {loop.step - BAD_STEPS + 1} to {loop.step}: "
                f"train with less than learning_rate={loop.settings.learning_rate:g}{again}."
            )


def save(folder: Path, loop: Loop, log: Log) -> None:
    """Saves a checkpoint."""
    checkpoints.save(folder, loop, log.size())


def finish(loop: Loop, log: Log, interrupts: Interrupts) -> dict[str, Any]:
    """The figures of the held-out data, and how the training went; by the first process alone."""
    results: dict[str, Any] = {}
    if loop.world.first:
        try:
            with log.part("judging") as tick:
                results = judge(
                    loop.model, loop.task.batches, loop.task.tokenizer, loop.settings.batch, EXACT_MATCHES, loop.settings.final_batches,
                    stop=lambda: interrupts.caught, progress=tick,
                )  # fmt: skip
        except Stopped:
            log.say("stopped while judging: what was learnt is saved, and `formers resume` judges it")
            interrupts.leave()
        results["tokens_per_second"] = loop.tokens / max(loop.busy, 1e-9)
        results |= {"steps": loop.step, "seconds": round(loop.seconds, 2), "best_loss": loop.best_loss, "best_step": loop.best_step}
        peak = peak_memory()
        if peak is not None:
            results["peak_memory_bytes"] = peak
        told: dict[str, Any] = {name: value for name, value in results.items() if name not in COUNTS and isinstance(value, float)}
        log.record(step=loop.step, **{f"final_{name}": value for name, value in told.items()})
    return results


def peak_memory() -> int | None:
    """The most bytes of memory that this process has held at once; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _agree(loop: Loop, interrupts: Interrupts) -> bool:
    """Whether any process was told to stop; and all take the first one's time for theirs, by which the rate goes."""
    if loop.world.alone:
        return interrupts.caught
    stop, loop.seconds = loop.world.total([float(interrupts.caught), loop.seconds if loop.world.first else 0.0])
    return stop > 0


def _stop(loop: Loop, log: Log, folder: Path | None, interrupts: Interrupts) -> None:
    """Saves what there is and ends the process as the signal asks for."""
    if folder is not None:
        save(folder, loop, log)
        log.say(f"stopped at step {loop.step:,}: go on with `formers resume {folder}`")
    interrupts.leave()


def _save_due(loop: Loop, waited: float) -> bool:
    every = loop.settings.save_every
    if every is not None:
        return loop.step % every == 0
    return bool(loop.world.first_says(waited >= SAVE_SECONDS)[0])


def _judge_due(loop: Loop, before: float) -> bool:
    every = loop.settings.eval_every
    if every is not None:
        return loop.step % every == 0 or loop.progress >= 1.0
    return int(before * JUDGEMENTS) < int(loop.progress * JUDGEMENTS)


def _look(loop: Loop, log: Log) -> bool:
    """Judges the model on a part of the held-out data and lets it write a little; whether it is the best so far."""
    with log.part("judging") as tick:  # to its end, also after a signal: else a run that is stopped here would know less than another
        held = evaluate(
            loop.model, loop.task.batches, loop.task.tokenizer, loop.settings.batch, loop.settings.eval_batches,
            share=(loop.world.rank, loop.world.size), progress=tick,
        )  # fmt: skip
    loss = float(held["loss"])
    told: dict[str, Any] = {name: held[name] for name in SHOWN if name in held}
    log.record(step=loop.step, valid_loss=loss, **{f"valid_{name}": value for name, value in told.items()})
    also = "".join(f", {name.replace('_', ' ')} {value:,.4g}" for name, value in told.items())
    log.say(f"step {loop.step:,}: loss {loss:.4f}{also} on held-out data")
    if loop.settings.sample_tokens and loop.world.first and math.isfinite(loss):
        _write_sample(loop, log)
    if not math.isfinite(loss) or (loop.best_loss is not None and loss >= loop.best_loss):
        return False
    loop.best_loss, loop.best_step = loss, loop.step
    return True


def _write_sample(loop: Loop, log: Log) -> None:
    """Shows and records a little of what the model writes."""
    model, prompt, wanted = loop.model, "", ""
    if not model.spec.head.writes or isinstance(loop.task.batches, Rows):  # the bytes of an image are no text
        return
    if isinstance(model, Seq2Seq):
        prompt, wanted = (loop.task.tokenizer.decode(side) for side in loop.task.batches.parts["valid"][0])
    room = max(1, model.spec.length - 1) if model.spec.position.absolute else loop.settings.sample_tokens  # no window slides here
    count = min(loop.settings.sample_tokens, room)
    try:
        text = generate(model, prompt, max_new_tokens=count, temperature=0.0 if prompt else 0.8, seed=loop.step)
    except FormersError as error:  # nothing that is only shown may end a training
        log.say(f"  no sample: {error}")
        return
    log.record(step=loop.step, prompt=prompt, sample=text)
    log.say(f"  {prompt} -> {text} (wanted: {wanted})" if prompt else "  | " + "\n  | ".join(text.strip("\n").split("\n")))


def _keep_batch(loop: Loop, done: Step, pieces: list[Piece], folder: Path | None) -> str:
    """Writes the batch of a step that was not taken; where."""
    if folder is None:
        return "none: the run has no folder"
    place = folder / BAD / f"step-{loop.step:08d}-{loop.world.rank}.safetensors"
    tensors = {f"{i}.{name}": value.cpu().contiguous() for i, piece in enumerate(pieces) for name, value in piece.batch.items()}
    try:
        place.parent.mkdir(exist_ok=True)
        write_through(place, to_bytes(tensors, metadata={"step": str(loop.step), "loss": str(done.loss), "norm": str(done.norm)}))
    except OSError as error:
        return f"none: {error.strerror}"
    return str(place.relative_to(folder))


def evaluate_run(
    run: str | Path,
    data: str | None = None,
    size: int = 16,
    part: str | None = None,
    context: int | None = None,
    stride: int | None = None,
    limit: int | None = None,
    checkpoint: Literal["last", "best"] = "last",
    device: str = "auto",
    progress: Callable[[int, int | None], None] | None = None,
) -> Figures:
    """The figures of a run's model on a part of its own data, or of other data, and the protocol that they were counted by.

    context: tokens of a window, the model's length unless given; stride: tokens from one window to the next.
    limit: how many tokens of a text are judged, or rows of other data.
    """
    folder = Path(run)
    model = load(folder, pick_device(device), checkpoint)
    facts = read_facts(folder) if data is None or (folder / RUN).exists() else {}
    reading = Reading(**facts.get("reading", {}))
    source = facts["data"] if data is None else data
    its_own = facts.get("data") in (source, resolved(source))
    whole = not its_own and all(Path(file).is_file() for file in parallel(source))
    if whole and part is not None:
        raise FormersError(f"split={part} cannot be had of {source}: a file of your own is judged whole; leave it out.")
    if not its_own:  # a folder or a named set has its parts
        reading = reading.replace(valid=resolved(source) if whole else None)
    spec = model.spec
    if context is not None:
        if spec.encoder is not None or not spec.head.streams:
            raise FormersError(f"context={context} is for texts that are read in windows, which {spec.name} does not: leave it out.")
        if spec.position.bounded and context > spec.length:
            raise FormersError(f"context={context} does not fit the learned positions, whose table has length={spec.length}: use less.")
        spec = spec.replace(length=context)
    task = task_of(spec, tokenizer_of(model), source, reading, model.labels)
    if its_own and task.fingerprint != facts["fingerprint"]:
        raise FormersError(f"the data of {folder} have changed since it was trained: restore them, or give --data with a copy of them.")
    results = judge(model, task.batches, task.tokenizer, size, part=part, stride=stride, first=limit, progress=progress)
    if whole:
        results["protocol"] = str(results["protocol"]).replace(" of valid", f" of {source}")
    return {**results, "data": task.source}
