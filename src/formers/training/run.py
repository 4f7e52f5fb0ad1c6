"""A run from step to step: when it is evaluated, saved and stopped; and evaluating it afterwards."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save as to_bytes

from formers.core import FormersError
from formers.core.paths import given_path
from formers.core.stream import ENCODER
from formers.data import Reading
from formers.data.files import parallel, resolved
from formers.data.images import ImageBatches, has_images
from formers.data.tasks import Answers, DrawnPairs
from formers.generation import generate, tokenizer_of
from formers.model import Model, Seq2Seq, load
from formers.model.files import write_through
from formers.training import checkpoint as checkpoints
from formers.training.device import pick_device
from formers.training.ending import advice, refuse_figure, refuse_last_steps, refuse_ruined
from formers.training.evaluate import Stopped, evaluate, held_out, judge
from formers.training.folder import BAD, RUN, read_facts
from formers.training.images import image_baselines_of
from formers.training.interrupts import Interrupts
from formers.training.log import Log
from formers.training.loop import BAD_STEPS, Diverged, Loop, Piece, Step
from formers.training.protocol import Protocol, is_text, read_by, refuse_short
from formers.training.score import Figures, live
from formers.training.task import DATA, Task, task_of

SAVE_SECONDS = 300.0
"""How often a run is saved that was not told."""
JUDGEMENTS = 10
"""How often a run is judged that was not told."""
SHOWN = ("bits_per_byte", "bits_per_dimension", "perplexity", "accuracy", "exact", "masked_accuracy", "ponder_steps")
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
        ends = loop.progress >= 1.0
        if ends and loop.sample is not None:  # before the last checkpoint is saved
            refuse_figure(loop, folder, float(loop.sample["loss"]))
        if folder is not None and (due or ends):
            start = time.perf_counter()
            save(folder, loop, log)
            saved = time.monotonic()
            loop.seconds += time.perf_counter() - start
    refuse_ruined(loop, folder)
    refuse_last_steps(loop, folder)


def take_step(loop: Loop, log: Log, folder: Path | None = None) -> None:
    """One step with all that the loop does around it: the batch, the guard, the bar and the record."""
    done, pieces = loop.advance()
    shown = done.loss if loop.smooth is None else loop.smooth
    beside = done.loss - done.terms.get("cross_entropy", done.loss)  # such as a penalty, which is no likelihood
    prices = [term for name, term in done.terms.items() if name.removeprefix(ENCODER) == "ponder"]
    price = {"ponder cost": sum(prices)} if prices else {}
    told = {"loss": shown, **live(loop.model, shown - beside), **price, "tokens/s": loop.tokens / max(loop.busy, 1e-9)}
    log.step(loop.step, loop.progress, told)
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
            raise Diverged(
                f"the loss is {done.loss:g} and its gradient {done.norm:g} at steps {loop.step - BAD_STEPS + 1} to {loop.step}: "
                f"{advice(loop, folder)}."
            )


def save(folder: Path, loop: Loop, log: Log) -> None:
    """Saves a checkpoint, unless the weights are not finite: then the run ends, and what was saved stays the last."""
    refuse_ruined(loop, folder)
    checkpoints.save(folder, loop, log.size())


def finish(loop: Loop, log: Log, folder: Path | None, interrupts: Interrupts) -> dict[str, Any]:
    """The figures of the last and the best evaluation on the way, those of the held-out data now, and how the training went.

    By the first process alone. A loss that is not a number ends all of them as diverged.
    """
    results: dict[str, Any] = {}
    loss = 0.0
    if loop.world.first:
        try:
            with log.part("judging") as tick:
                model, batches, stride = read_by(loop.task.protocol.in_passing(), loop.model, loop.task.batches)
                held = judge(
                    model, batches, loop.task.tokenizer, loop.settings.batch, EXACT_MATCHES, loop.settings.final_batches, None, stride,
                    stop=lambda: interrupts.caught, progress=tick,
                )  # fmt: skip
        except Stopped:
            log.say("stopped while judging: what was learnt is saved, and `formers resume` judges it")
            interrupts.leave()
        loss = float(held["loss"])
        del held["tokens_per_second"]  # of reading; the one that counts is that of training
        told: dict[str, Any] = {name: value for name, value in held.items() if isinstance(value, float)}
        log.record(step=loop.step, final_targets=held["targets"], **{f"final_{name}": value for name, value in told.items()})
        results = {**sampled(loop), **held, "tokens_per_second": loop.tokens / max(loop.busy, 1e-9)}
        if isinstance(loop.task.batches, ImageBatches):
            results["images_per_second"] = loop.tokens / loop.task.batches.length / max(loop.busy, 1e-9)
        results |= {"steps": loop.step, "seconds": round(loop.seconds, 2)}
        peak = peak_memory()
        if peak is not None:
            results["peak_memory_bytes"] = peak
    refuse_figure(loop, folder, *loop.world.first_says(loss))
    return results


def sampled(loop: Loop) -> dict[str, Any]:
    """The figures of the last and of the best evaluation on the way, and on how much of the held-out data both are."""
    last, best = loop.sample or {}, loop.best_sample or {}
    figures = {f"{which}{name}": value for which, held in (("sample_", last), ("best_sample_", best)) for name, value in held.items()}
    figures.pop("best_sample_evaluated", None)  # both are on the same
    return {**figures, "best_step": loop.best_step}


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
    """Evaluates the model on a sample of the held-out data, the same each time, and lets it write; whether it is the best so far."""
    with log.part("judging") as tick:  # to its end, also after a signal: else a run that is stopped here would know less than another
        model, batches, stride = read_by(loop.task.protocol.in_passing(), loop.model, loop.task.batches)
        held = evaluate(
            model, batches, loop.task.tokenizer, loop.settings.batch, None, None, stride, sample=loop.settings.eval_batches,
            share=(loop.world.rank, loop.world.size), progress=tick,
        )  # fmt: skip
    loss = float(held["loss"])
    told: dict[str, Any] = {name: held[name] for name in SHOWN if name in held}
    named = {f"valid_{name}": value for name, value in told.items()}
    log.record(step=loop.step, valid_loss=loss, valid_targets=held["targets"], protocol=held["protocol"], **named)
    also = "".join(f", {name.replace('_', ' ')} {value:,.4g}" for name, value in told.items())
    if loop.sample is None:
        log.say(f"evaluated on held-out data: {held['protocol']}")
    log.say(f"step {loop.step:,}: loss {loss:.4f}{also}, on {held['evaluated']} of held-out data")
    if loop.settings.sample_tokens and loop.world.first and math.isfinite(loss):
        _write_sample(loop, log)
    loop.sample = {"evaluated": str(held["evaluated"]), "loss": loss, **dict(islice(told.items(), 1))}
    if not math.isfinite(loss) or (loop.best_loss is not None and loss >= loop.best_loss):
        return False
    loop.best_loss, loop.best_step, loop.best_sample = loss, loop.step, loop.sample
    return True


def _write_sample(loop: Loop, log: Log) -> None:
    """Shows and records a little of what the model writes."""
    model, prompt, wanted = loop.model, "", ""
    tokenizer = loop.task.tokenizer
    if not model.spec.head.writes or tokenizer is None:
        return
    if isinstance(loop.task.batches, Answers | DrawnPairs):
        prompt, wanted = loop.task.batches.shown()
    elif isinstance(model, Seq2Seq):
        prompt, wanted = (tokenizer.decode(side) for side in loop.task.batches.parts["valid"][0])
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
    protocol: Protocol = Protocol(),
    limit: int | None = None,
    checkpoint: Literal["last", "best"] = "last",
    device: str = "auto",
    progress: Callable[[int, int | None], None] | None = None,
) -> Figures:
    """The figures of a run's model on a part of its own data, or of other data, and the protocol that they were counted by.

    protocol: how a text is read; what it leaves open is the run's own. limit: how many tokens of a text are judged, or rows of other data.
    """
    model, task, facts = open_run(run, data, part, protocol, checkpoint, device)
    its_own = Protocol(**facts.get("protocol") or {})
    chosen = read_by(protocol.over(its_own), model, task.batches)
    results = judge(chosen.model, chosen.batches, task.tokenizer, size, part=part, stride=chosen.stride, first=limit, progress=progress)
    if isinstance(task.batches, ImageBatches):
        results |= image_baselines_of(task.batches, part or held_out(task.batches), limit)
    if _is_whole(facts, data):
        results["protocol"] = str(results["protocol"]).replace(" of valid", f" of {data}")
    return {**results, "data": task.source}


def open_run(
    run: str | Path,
    data: str | None = None,
    part: str | None = None,
    protocol: Protocol = Protocol(),
    checkpoint: Literal["last", "best"] = "last",
    device: str = "auto",
) -> tuple[Model, Task, dict[str, Any]]:
    """The model of a run, its own data or others as it reads them, and what the run says of itself.

    What cannot be judged, or not by this protocol, is refused.
    """
    folder = given_path("run", run, "the folder of a run")
    if data is not None:
        given_path("data", data, DATA)
    model = load(folder, pick_device(device), checkpoint)
    facts = read_facts(folder) if data is None or (folder / RUN).exists() else {}
    if "env" in facts:
        raise FormersError(f"{folder} is the run of an agent: evaluate it with `formers eval {folder} --episodes 200`.")
    source = str(facts["data"]) if data is None else data
    reading, whole = Reading(**facts.get("reading", {})), _is_whole(facts, data)
    if whole and part is not None:
        raise FormersError(f"split={part} cannot be had of {source}: a file of your own is judged whole; leave it out.")
    its_own = facts.get("data") in (source, resolved(source))
    if not its_own:  # a folder or a named set has its parts
        reading = reading.replace(valid=resolved(source) if whole else None)
    spec, asked = model.spec, {name: value for name, value in protocol if value is not None}
    if asked and (spec.encoder is not None or not spec.head.streams):
        name, value = next(iter(asked.items()))
        raise FormersError(f"{name}={value} is for texts that are read in windows, which {spec.name} does not: leave it out.")
    if asked:
        chosen = protocol.over(Protocol(**facts.get("protocol") or {})).settled(spec)
        spec = spec.replace(length=chosen.segment)
    task = task_of(spec, model.tokenizer if spec.image is not None else tokenizer_of(model), source, reading, model.labels)
    if its_own and task.fingerprint != facts["fingerprint"]:
        raise FormersError(f"the data of {folder} have changed since it was trained: restore them, or give --data with a copy of them.")
    if asked and is_text(spec, task.batches):
        part = part or held_out(task.batches)
        refuse_short(protocol, chosen, len(task.batches.parts[part]) - 1, part)
    elif asked and chosen.kind != "segments":
        raise FormersError(f"the protocol {chosen.kind} is for a running text, and {source} is read row by row: leave it out.")
    return model, task, facts


def _is_whole(facts: dict[str, Any], data: str | None) -> bool:
    """Whether data are a file of the user's own, which has no parts; not if they are what the run was trained on."""
    if data is None or facts.get("data") in (data, resolved(data)) or has_images(data):  # images are split into parts
        return False
    return all(Path(file).is_file() for file in parallel(data))
