"""Opens a saved run and evaluates it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from formers.core import FormersError
from formers.core.part import checked
from formers.core.paths import given_path
from formers.core.precision import Precision
from formers.data import Reading, kind_of
from formers.data.files import parallel, resolved
from formers.data.images import ImageBatches
from formers.evaluation.evaluate import default_part, evaluate_all
from formers.evaluation.metrics import Results
from formers.evaluation.protocol import Protocol, apply_protocol, check_window_fits, is_text
from formers.generation import tokenizer_of
from formers.model import Model, load
from formers.training.device import pick_device
from formers.training.folder import RUN, read_facts
from formers.training.images import image_baselines_of
from formers.training.precision import prepare
from formers.training.task import DATA, Task, task_of


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
    precision: Precision = "float32",
) -> Results:
    """The metrics of a run's model on a part of its own data, or of other data, and the protocol used.

    protocol: how a text is read; unset fields are those of the run. limit: the number of tokens of a text, or of rows of other data.
    precision: float32, tf32, bf16 or fp16, whatever the run was trained in; float32 is without TF32.
    """
    prepare(checked("precision", Precision, precision), pick_device(device))
    model, task, facts = open_run(run, data, part, protocol, checkpoint, device)
    its_own = Protocol(**facts.get("protocol") or {})
    chosen = apply_protocol(protocol.with_defaults(its_own), model, task.batches)
    results = evaluate_all(
        chosen.model, chosen.batches, task.tokenizer, size, part=part, stride=chosen.stride, first=limit, progress=progress,
        precision=precision,
    )  # fmt: skip
    if isinstance(task.batches, ImageBatches):
        results |= image_baselines_of(task.batches, part or default_part(task.batches), limit)
    if _is_whole(facts, data):
        results["protocol"] = str(results["protocol"]).replace(" of valid", f" of {data}")
    if precision != "float32":
        results["protocol"] = f"{results['protocol']}; in {precision}"
    return {**results, "data": task.source}


def open_run(
    run: str | Path,
    data: str | None = None,
    part: str | None = None,
    protocol: Protocol = Protocol(),
    checkpoint: Literal["last", "best"] = "last",
    device: str = "auto",
) -> tuple[Model, Task, dict[str, Any]]:
    """The model of a run, its own data or others as it reads them, and the description of the run.

    Raises FormersError if the run cannot be evaluated, or not with this protocol.
    """
    folder = given_path("run", run, "the folder of a run")
    if data is not None:
        given_path("data", data, DATA)
    model = load(folder, pick_device(device), checkpoint)
    facts = read_facts(folder) if data is None or (folder / RUN).exists() else {}
    if "env" in facts:
        raise FormersError(f"{folder} is the run of an agent: evaluate it with `formers eval {folder} --episodes 200`.")
    source = str(facts["data"]) if data is None else data
    reading, whole = Reading.of_run(facts["reading"]) if facts else Reading(), _is_whole(facts, data)
    if whole and part is not None:
        raise FormersError(f"split={part} cannot be used with {source}: your own file is evaluated as a whole; leave it out.")
    its_own = facts.get("data") in (source, resolved(source))
    if not its_own:  # a folder or a named set has parts
        reading = reading.replace(valid=resolved(source) if whole else None)
    spec, asked = model.spec, {name: value for name, value in protocol if value is not None}
    if asked and (spec.encoder is not None or not spec.head.per_position):
        name, value = next(iter(asked.items()))
        raise FormersError(f"{name}={value} is for texts that are read in windows, which {spec.name} does not: leave it out.")
    if asked:
        chosen = protocol.with_defaults(Protocol(**facts.get("protocol") or {})).resolved_for(spec)
        spec = spec.replace(length=chosen.segment)
    task = task_of(spec, model.tokenizer if spec.image is not None else tokenizer_of(model), source, reading, model.labels)
    if its_own and task.fingerprint != facts["fingerprint"]:
        raise FormersError(f"the data of {folder} have changed since it was trained: restore them, or give --data with a copy of them.")
    if asked and is_text(spec, task.batches):
        part = part or default_part(task.batches)
        check_window_fits(protocol, chosen, len(task.batches.parts[part]) - 1, part)
    elif asked and chosen.kind != "segments":
        raise FormersError(f"the protocol {chosen.kind} is for a running text, and {source} is read row by row: leave it out.")
    return model, task, facts


def _is_whole(facts: dict[str, Any], data: str | None) -> bool:
    """Whether data are a single file of the user, which has no parts; not if the run was trained on it."""
    if data is None or facts.get("data") in (data, resolved(data)) or kind_of(data) == "images":  # images are split into parts
        return False
    return all(Path(file).is_file() for file in parallel(data))
