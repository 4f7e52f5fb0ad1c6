"""`train` starts a run and `resume` continues one: both prepare a `Trainer` and call its `fit`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from formers.core import FormersError, Part, nearest
from formers.core.devices import capabilities
from formers.core.paths import given_path
from formers.core.precision import float32_products
from formers.data import Reading, kind_of, open_labelled
from formers.data.progress import silently
from formers.evaluation.protocol import Protocol, is_text
from formers.family.members import member as find_member
from formers.heads import Classify, MaskedLM
from formers.model import Model, Spec, build
from formers.model.files import newest
from formers.model.save import find, load, load_tokenizer, load_weights, read_config
from formers.training import precision
from formers.training.checkpoint import put_aside, restore, sweep
from formers.training.config import Settings, settings
from formers.training.device import pick_device
from formers.training.distributed import World, join, leave, world
from formers.training.folder import FORMAT, RUN, YAML, beginning, begun, claimed, command, describe, holds_run, read_facts, versions
from formers.training.images import IMAGE_OPTIONS
from formers.training.interrupts import Interrupts, terminable
from formers.training.log import Log
from formers.training.memory import refuse_too_large
from formers.training.task import DATA, Task, prepare, task_of
from formers.training.trainer import Trainer

logger = logging.getLogger(__name__)

LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
"""Error messages of torch.distributed when another process has ended."""


class Trained(NamedTuple):
    """A trained model, its results on held-out data, and what it was trained on."""

    model: Model
    results: dict[str, Any]
    task: Task


def train(
    member: str,
    data: str | Path,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    preset: str | None = None,
    from_run: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    overwrite: bool = False,
    quiet: bool = False,
    track: str = "auto",
    member_sizes: Mapping[str, Any] | None = None,
    **options: Any,
) -> Trained:
    """Trains a member on data, saves it in the run folder `out` during training, and evaluates it on held-out data.

    data: a file, a folder, a glob, two parallel files with a comma between them, or a name such as enwik8 or stdlib.
    from_run: another run whose weights and sizes this one starts from.
    track: trackers that get the metrics besides metrics.jsonl: auto, none, or some of tensorboard,wandb,mlflow.
    member_sizes: options of the member, for names that mean something else here: member_sizes={"steps": 8} of universal-transformer.
    Options are the member's sizes (layers=8), the settings of training (batch=32, learning_rate=3e-4) and of reading (tokens="bpe").
    Raises if the folder contains a run, unless `overwrite` is True. A run that was stopped or killed is continued with `resume`.
    """
    if out is not None:
        given_path("out", out, "the folder to save the run in")
    if from_run is not None:
        given_path("from_run", from_run, "the folder of the run to begin with")
    given_path("data", data, DATA)
    if not isinstance(track, str):
        raise FormersError(f"track={track!r} is not a string: give auto, none, or some of tensorboard,wandb,mlflow.")
    start, place = time.monotonic(), world()
    sizes, chosen, reading = arranged(member, options, steps, minutes, preset, seed, member_sizes)
    if place.restarts and out is not None and holds_run(Path(out)) and read_facts(Path(out))["command"] == command():
        return resume(out, device=device, quiet=quiet)  # torchrun restarts with the command it was given
    if out is None and not place.alone:
        raise FormersError(f"{place.size} processes need a common folder: give --out.")
    with _ready(place, device, chosen, out) as where, ExitStack() as stack:
        folder = None if out is None else Path(out)
        if folder is not None and place.first:
            stack.enter_context(beginning(folder, overwrite))
        place.wait()
        if from_run is None:
            task = _in_turn(place, quiet, lambda: prepare(member, data, preset, sizes, reading))
        else:
            task = _in_turn(place, quiet, lambda: _continued(member, Path(from_run), str(data), preset, sizes, reading))
        protocol = find_member(member).evaluation.get(preset or "", {})
        if from_run is not None and (Path(from_run) / RUN).exists():
            protocol = read_facts(Path(from_run)).get("protocol") or {}
        task = with_protocol(task, protocol)
        refuse_too_large(task, chosen, where, place)
        torch.manual_seed(seed)
        trainer = Trainer(new_model(task, where), task, chosen, place)
        if from_run is not None:
            load_weights(trainer.model, find(Path(from_run)), but="head." if isinstance(task.spec.head, Classify) else None)
        facts = {
            "format": FORMAT, "member": member, "preset": preset, "data": task.source, "about": task.about, "fingerprint": task.fingerprint,
            "reading": dict(reading), "sizes": sizes, "settings": dict(chosen), "protocol": dict(task.protocol),
            "spec": task.spec.model_dump(mode="json"), "parameters": trainer.model.parameter_count(), "device": str(where),
            "from": None if from_run is None else str(Path(from_run).resolve()), "processes": place.size,
            "versions": versions(), "command": command(), "track": track, "finished": False,
            "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        return _fit(trainer, folder, facts, quiet, None, start)


def resume(
    run: str | Path, *, steps: int | None = None, minutes: float | None = None, device: str | None = None, quiet: bool = False
) -> Trained:
    """Resumes a run from its newest valid checkpoint, bit-exactly, as if it had never stopped; perhaps with another budget."""
    start, folder, place = time.monotonic(), given_path("run", run, "the folder of a run"), world()
    facts = read_facts(folder)
    if "env" in facts:
        raise FormersError(f"{folder} is the run of an agent: continue it with formers.rl.resume, or `formers resume {folder}`.")
    chosen = Settings(**facts["settings"]).with_budget(steps, minutes)
    if facts["finished"] and steps is None and minutes is None:
        raise FormersError(f"{folder} has spent its budget: give more with --steps or --minutes, counted from the start of the run.")
    with _ready(place, _device_of(facts, place) if device is None else device, chosen, folder, resumed=True) as where:
        with Log(None, quiet=quiet or not place.first) as console:
            if place.first:
                sweep(folder)
            place.wait()
            found = newest(folder, console.say)
        if found is None:
            raise FormersError(f"{folder} has no checkpoint to resume from: train again with --config {folder / YAML}.")
        task = _in_turn(place, quiet, lambda: _again(facts, found))
        if task.fingerprint != facts["fingerprint"]:
            raise FormersError(
                f"the data of {folder} have changed since the run started ({facts['data']}): restore them, "
                f"or start a new run with --from {folder}."
            )
        refuse_too_large(task, chosen, where, place)
        torch.manual_seed(chosen.seed)
        trainer = Trainer(new_model(task, where), task, chosen, place)
        keep = restore(found, trainer)
        if (steps is not None and trainer.step > steps) or (minutes is not None and trainer.seconds > 60 * minutes):
            done = f"step {trainer.step:,}" if steps is not None else f"minute {trainer.seconds / 60:.1f}"
            raise FormersError(f"{folder} is at {done} already: a budget counts from the start of the run; give more.")
        facts = {
            **facts,
            "settings": dict(chosen),
            "finished": False,
            "versions": versions(),
            "processes": place.size,
            "device": str(where),
        }
        place.wait()
        if place.first:
            put_aside(folder, trainer.step)
            describe(folder, facts)
        return _fit(trainer, folder, facts, quiet, keep, start)


def arranged(
    member: str,
    options: dict[str, Any],
    training_steps: int | None = None,
    minutes: float | None = None,
    preset: str | None = None,
    seed: int = 0,
    member_sizes: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Settings, Reading]:
    """Sorts options into a member's sizes, training settings and reading options.

    `steps` among the options is one of the member (the depth steps of universal-transformer); training steps have their own parameter.
    """
    sizes, rest, read = _sorted(member, options)
    sizes |= _own(member, member_sizes or {})
    reading = Reading(**read).resolved()
    return sizes, settings(training_steps, minutes, {**_defaults(member, preset, sizes), **rest, "seed": seed}), reading


def _fit(trainer: Trainer, folder: Path | None, facts: dict[str, Any], quiet: bool, keep: int | None, start: float) -> Trained:
    """Trains until the budget is spent, then evaluates; the first `keep` bytes of the metrics are kept."""
    first = trainer.world.first
    mine = folder if first else None
    with Interrupts() as interrupts, Log(mine, quiet=quiet or not first, sinks=facts["track"], keep=keep, facts=facts) as log:
        spare = facts["parameters"] - trainer.model.parameter_count(training=False)
        parameters = f"{facts['parameters']:,} parameters" + (f", {spare:,} of them for training alone" if spare else "")
        log.say(f"{trainer.task.spec.name}: {parameters}; data: {trainer.task.about}")
        if capabilities(trainer.device).tf32:
            log.say(f"on {trainer.device} in {precision.words(trainer.settings.precision, trainer.settings.tf32, trainer.device)}")
        if keep is not None:
            log.say(f"resuming from step {trainer.step:,}")
        if folder is not None and keep is None:
            trainer.save(folder, log)  # so that the run can be resumed, and a full disk is noticed before the first step
            if first:
                describe(folder, facts)
                begun(folder)
        waited = round(time.monotonic() - start, 2)
        with _short_errors(trainer):
            results = trainer.fit(log, folder, interrupts)
        if results:
            results["start_seconds"] = waited
        if folder is not None and first:
            describe(folder, {**facts, "finished": True, "steps": trainer.step, "results": results})
    trainer.world.wait()
    trainer.module = trainer.model  # the wrapper for several processes must not outlive their group: its end could wait forever
    return Trained(trainer.model.eval(), results, trainer.task)


@contextmanager
def _ready(place: World, device: str, chosen: Settings, out: str | Path | None, resumed: bool = False) -> Iterator[torch.device]:
    """Context with the device chosen, the process group initialised, and the run's folder locked."""
    where = pick_device(device, None if place.alone else place.local)
    precision.prepare(chosen.precision, where)
    words = precision.words(chosen.precision, chosen.tf32, where)
    logger.info("training on %s in %s, with %d threads", where, words, torch.get_num_threads())
    joined = join(place, where)
    try:
        with (
            float32_products(chosen.tf32, where),
            terminable(),
            claimed(Path(out), resumed) if out is not None and place.first else nullcontext(),
        ):
            yield where
    except RuntimeError as error:
        if place.alone or not any(words in str(error) for words in LOST):
            raise
        raise FormersError("another process of this run has ended: see its own message; continue with `formers resume`.") from None
    finally:
        if joined:
            leave()


def _device_of(facts: dict[str, Any], place: World) -> str:
    """The device of a stored run, such as cuda:1; of several processes only its type. Raises FormersError if it is not available."""
    name = facts["device"] if place.alone else facts["device"].partition(":")[0]
    try:
        pick_device(name, None if place.alone else place.local)
    except FormersError:
        raise FormersError(f"the run was trained on {name}, which is not available: give --device cpu or --device auto.") from None
    return str(name)


@contextmanager
def _short_errors(trainer: Trainer) -> Iterator[None]:
    """Replaces torch's long errors with one sentence: memory that runs out, and a missing compiler."""
    chosen = trainer.settings
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
            less = ("" if chosen.checkpoint else "checkpoint=true or ") + f"accumulate={2 * chosen.accumulate}"
            raise FormersError(
                f"out of memory with batch={chosen.batch} at length={trainer.model.spec.length}: use a smaller batch or length, "
                f"or {less} for the same gradient in less memory."
            ) from None
        if chosen.compile and type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            why = text.splitlines()[0]
            raise FormersError(f"the step cannot be compiled ({why}): leave --compile out, or install a C++ compiler.") from None
        raise


def _in_turn(place: World, quiet: bool, make: Callable[[], Task]) -> Task:
    """The task that `make` returns, made by the first process before the others: it fills the cache that they read."""
    if not place.first:
        place.wait()
    with silently() if quiet or not place.first else nullcontext():
        task = make()
        for part in ("train", "valid"):
            task.batches.parts[part]  # made now, not during the first step
    if place.first:
        place.wait()
    return task


def new_model(task: Task, where: torch.device) -> Model:
    """A newly initialised model of a task, on its device, in training mode."""
    model = build(task.spec).to(where).train()
    model.tokenizer, model.labels = task.tokenizer, task.labels
    return model


def _again(facts: dict[str, Any], found: Path) -> Task:
    """The task of a resumed run, with the tokenizer of the checkpoint."""
    config = read_config(found)
    tokenizer = load_tokenizer(config, found)
    task = task_of(Spec(**facts["spec"]), tokenizer, facts["data"], Reading.of_run(facts["reading"]), config["labels"])
    return with_protocol(task, facts.get("protocol") or {})


def with_protocol(task: Task, protocol: Mapping[str, Any]) -> Task:
    """The task with the evaluation protocol of its texts, with all values set."""
    return task._replace(protocol=Protocol(**protocol).resolved_for(task.spec)) if is_text(task.spec, task.batches) else task


def _continued(member: str, run: Path, data: str, preset: str | None, sizes: dict[str, Any], reading: Reading) -> Task:
    """The task of a run that starts from another's weights: its sizes and tokenizer, perhaps with other dropout."""
    if preset is not None:
        raise FormersError(f"preset={preset} cannot be given with --from: the sizes are those of {run}; leave it out.")
    base = load(run)
    if base.spec.name != member:
        raise FormersError(f"{run} is a run of {base.spec.name}, not {member}: use `formers train {base.spec.name} --from {run}`.")
    for name in sizes:
        if name not in ("dropout", "attention_dropout"):
            raise FormersError(f"{name}={sizes[name]!r} cannot be set with --from: the sizes are those of {run}; leave it out.")
    if reading.tokens is not None:
        raise FormersError(f"tokens={reading.tokens} cannot be set with --from: the tokenizer is that of {run}; leave it out.")
    if base.tokenizer is None and base.spec.image is None:
        raise FormersError(f"{run} has no tokenizer, so {data} cannot be read: give a run that `formers train` wrote.")
    spec = Spec(**read_config(find(run))["spec"]).replace(**sizes)  # including the training-only parts, which `load` drops
    if isinstance(spec.head, MaskedLM) and kind_of(data) == "labels":  # a masked language model is fine-tuned to classify
        labels = open_labelled(data, reading).labels
        spec = spec.replace(head=Classify(classes=len(labels or ())))
    return task_of(spec, base.tokenizer, data, reading, base.labels)


def _sorted(member: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The options of the member, of training and of reading; raises for an unknown name."""
    sizes, never = find_member(member).options, find_member(member).never
    kinds: list[type[Part]] = [Settings, Reading]
    sizes = [*sizes, *(name for name in IMAGE_OPTIONS if name not in sizes)]  # a member that is not trained on images raises for them
    rest, reading = ([f for f in kind.model_fields if f not in sizes] for kind in kinds)
    for name in options:
        if name in never:
            raise FormersError(never[name])
        if name not in (*sizes, *rest, *reading):
            raise FormersError(f"{member} has no option {name!r}, nor has its training: {nearest(name, [*sizes, *rest, *reading])}")
    return tuple({n: v for n, v in options.items() if n in names} for names in (sizes, rest, reading))  # type: ignore[return-value]


def _own(member: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the member, even if training has options of the same name."""
    if not isinstance(given, Mapping):
        raise FormersError(f"member_sizes={given!r} is not a dict of options: give names and values, as in {{'steps': 8}}.")
    known = find_member(member).options
    for name in given:
        if name not in known:
            raise FormersError(f"{member} has no option {name!r}: {nearest(str(name), known)}")
    return dict(given)


def _defaults(member: str, preset: str | None, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The training settings of the member's paper. `row_tokens`, if set, becomes a batch size inversely proportional to the length of its
    rows, with evaluations during training on as many tokens as with short rows."""
    known = find_member(member)
    chosen = dict(known.training.get(preset or "", {}))
    tokens = chosen.pop("row_tokens", None)
    if tokens is None:
        return chosen
    usual = known.parameters["length"].default
    length = sizes.get("length", known.presets[preset].get("length", usual) if preset else usual)
    if not isinstance(length, int) or length < 1:
        return chosen  # for which the member raises
    batch = max(1, tokens // length)
    less = {name: max(4, Settings.model_fields[name].default * tokens // (batch * length)) for name in ("eval_batches", "final_batches")}
    return {**chosen, "batch": batch, **(less if length > tokens else {})}
