"""Checkpoints: everything a run needs to resume bit-exactly, in a folder that is written atomically.

    RUN/ckpt/step-00000123/
        config.json  model.safetensors  [tokenizer.json]     the model, as save_pretrained writes it
        optimizer.safetensors                                moments and step counts, by parameter
        memory-0.safetensors, ...                            the states of the rows of each process, for members with a memory
        training.json                                        step, time, best, the length of metrics.jsonl
        MANIFEST.json                                        sizes and checksums of all these

It is written as .tmp-..., synced to disk and renamed. Older checkpoints are removed once the new one is complete; the best one is kept.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from formers.core import FormersError, State
from formers.core.serialise import join_rows, pack, unpack
from formers.model import Model, Spec
from formers.model.files import (
    BESIDE,
    CHECKPOINTS,
    MANIFEST,
    TRAINING,
    checkpoints,
    fault,
    manifest,
    remove,
    step_name,
    sync_folder,
    to_json,
    write_through,
)
from formers.model.save import contents, load_weights, read_config
from formers.model.weights import current_name
from formers.training.distributed import World
from formers.training.loss_scale import LossScale

log = logging.getLogger(__name__)

OPTIMIZER = "optimizer.safetensors"
MEMORY = "memory-{}.safetensors"
COUNTERS = ("step", "tokens", "seconds", "busy", "smooth", "bad", "best_loss", "best_step")
"""The fields of a trainer that are plain numbers."""
SAMPLES = ("sample", "best_sample")
"""Metrics of evaluations during training, all on the same sample of the held-out data."""


class Keeps(Protocol):
    """Settings with the number of checkpoints to keep."""

    @property
    def keep(self) -> int:
        """The number of newest checkpoints to keep, besides the best."""


class Saved(Protocol):
    """The interface of a trainer that can be saved, besides the fields in COUNTERS and SAMPLES."""

    step: int
    best_step: int | None
    best_loss: float | None
    best_sample: dict[str, float | str] | None
    states: list[State | None]
    model: Model
    world: World
    optimizer: torch.optim.Optimizer
    scaler: LossScale
    rows: list[slice]
    device: torch.device

    @property
    def settings(self) -> Keeps:
        """The settings of the run."""

    def further(self) -> dict[str, bytes]:
        """Additional files, by name."""


def reached(stage: str) -> None:
    """Called at every stage of a save; does nothing. Tests replace it to kill the process midway."""


def save(run: Path, loop: Saved, metrics_bytes: int) -> Path:
    """Writes the checkpoint of a trainer into its run, called by all processes; a valid checkpoint that exists already is kept."""
    folder = run / CHECKPOINTS / step_name(loop.step)
    beside = folder.with_name(BESIDE + folder.name)
    there = loop.world.first_says(loop.world.first and folder.exists() and fault(folder) is None)[0]
    if there:
        return folder
    try:
        if loop.world.first:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            reached("folder")
        loop.world.wait()
        if loop.states:
            write_through(beside / MEMORY.format(loop.world.rank), _memory(loop.states))
            reached("memory")
        loop.world.wait()
        if loop.world.first:
            _write(beside, loop, metrics_bytes)
            if folder.exists():  # damaged
                remove(folder)
            beside.rename(folder)
            reached("renamed")
            sync_folder(folder.parent)
            reached("synced")
            log.info("saved %s", folder)
            prune(run, loop.settings.keep, loop.best_step)
            reached("pruned")
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        then = f"then continue from the previous checkpoint with `formers resume {run}`" if checkpoints(run) else "then train again"
        raise FormersError(
            f"the checkpoint of step {loop.step} cannot be written to {folder.parent} ({error.strerror}): free the disk, {then}."
        ) from None
    loop.world.wait()
    return folder


def _write(beside: Path, loop: Saved, metrics_bytes: int) -> None:
    """Writes the files of a checkpoint, the manifest last."""
    files = contents(loop.model)
    files[OPTIMIZER] = _optimizer(loop)
    files |= loop.further()
    numbers = {name: getattr(loop, name) for name in (*COUNTERS, *SAMPLES)}
    scale = loop.scaler.state_dict()
    files[TRAINING] = to_json({**numbers, "scaler": scale, "metrics_bytes": metrics_bytes, "processes": loop.world.size})
    for name, content in files.items():
        write_through(beside / name, content)
        reached(name)
    memories = {f.name: f for f in sorted(beside.glob(MEMORY.format("*")))}
    write_through(beside / MANIFEST, manifest({**files, **memories}))
    reached(MANIFEST)
    sync_folder(beside)
    reached("folder synced")


def prune(run: Path, keep: int, best: int | None) -> None:
    """Removes all checkpoints but the newest few and the best, and the files of unfinished saves."""
    spared = {step_name(best)} if best is not None else set()
    for folder in checkpoints(run)[keep:]:
        if folder.name not in spared:
            remove(folder)
    sweep(run)


def put_aside(run: Path, step: int) -> None:
    """Renames the checkpoints after a step that were not used to resume: the checkpoints saved from now on replace them."""
    for folder in checkpoints(run):
        if int(folder.name.removeprefix("step-")) > step:
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def sweep(run: Path) -> None:
    """Removes the files of interrupted saves; only for the process that holds the run's lock."""
    for left in [*run.glob(f"{BESIDE}*-run.*"), *(run / CHECKPOINTS).glob(f"{BESIDE}*")]:
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def restore(folder: Path, loop: Saved) -> int:
    """Restores a trainer from a checkpoint; returns the length that metrics.jsonl had then."""
    saved_spec, spec = (each.model_dump(mode="json") for each in (Spec(**read_config(folder)["spec"]), loop.model.spec))
    differs = difference(saved_spec, spec)
    if differs is not None:
        name, there, here = differs
        raise FormersError(
            f"{folder} has another configuration: its {name} is {there!r} and the run's is {here!r}; remove it, or train again."
        )
    load_weights(loop.model, folder)
    saved = json.loads((folder / TRAINING).read_bytes())
    for name in COUNTERS:
        setattr(loop, name, saved[name])
    for name in SAMPLES:
        setattr(loop, name, saved.get(name))
    if loop.best_sample is None:  # an old checkpoint without samples: its best loss is of other data
        loop.best_loss = None
    loop.scaler.load_state_dict(saved["scaler"])
    _restore_optimizer(folder, loop)
    loop.states = _restore_memory(folder, loop, saved["processes"])
    return int(saved["metrics_bytes"])


def difference(one: Any, other: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """The first field in which two JSON values differ, with both values; None if they do not."""
    if isinstance(one, dict) and isinstance(other, dict):
        for field in sorted(one.keys() | other.keys()):
            found = difference(one.get(field), other.get(field), f"{name}.{field}".lstrip("."))
            if found is not None:
                return found
        return None
    return None if one == other else (name, one, other)


def _optimizer(loop: Saved) -> bytes:
    """The optimiser state, keyed by parameter name; learning rates and weight decay come from the settings."""
    names = {id(p): name for name, p in loop.model.named_parameters()}
    tensors = {
        f"{names[id(p)]}:{what}": torch.as_tensor(value).detach().cpu().contiguous()
        for p, state in loop.optimizer.state.items()
        for what, value in state.items()
    }
    return to_bytes(tensors)


def _restore_optimizer(folder: Path, loop: Saved) -> None:
    tensors = load_file(folder / OPTIMIZER)
    state: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        parameter, _, what = name.rpartition(":")
        state.setdefault(current_name(parameter), {})[what] = value
    names = {id(p): name for name, p in loop.model.named_parameters()}
    whole = loop.optimizer.state_dict()
    order = [names[id(p)] for group in loop.optimizer.param_groups for p in group["params"]]
    whole["state"] = {i: state[name] for i, name in enumerate(order) if name in state}
    loop.optimizer.load_state_dict(whole)


def _memory(states: list[State | None]) -> bytes:
    """The states of a process's micro-batches; their plain numbers are in the header of the file."""
    tensors: dict[str, Tensor] = {}
    packed = []
    for i, state in enumerate(states):
        mine: dict[str, Tensor] = {}
        packed.append(pack(state, mine))
        tensors.update({f"{i}:{name}": value for name, value in mine.items()})
    return to_bytes(tensors, metadata={"states": json.dumps(packed)})


def _restore_memory(folder: Path, loop: Saved, processes: int) -> list[State | None]:
    """The states of this process's rows, whichever processes wrote them."""
    parts: list[tuple[Any, dict[str, Tensor]]] = []
    for rank in range(processes):
        file = folder / MEMORY.format(rank)
        if not file.exists():
            return []
        with safe_open(file, framework="pt") as read:
            names = list(read.keys())
            for i, packed in enumerate(json.loads(read.metadata()["states"])):
                mine = f"{i}:"
                parts.append((packed, {name.removeprefix(mine): read.get_tensor(name) for name in names if name.startswith(mine)}))
    packed, tensors = join_rows(parts)
    whole: State = unpack(packed, tensors, loop.device)
    every = torch.arange(whole.batch, device=loop.device)
    return [whole.select(every[rows]) for rows in loop.rows]
