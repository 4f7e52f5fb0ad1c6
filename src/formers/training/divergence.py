"""Runs that diverge: losses, gradients or weights that are not finite.

`Diverged` ends a run with exit code 3. Weights that are not finite are never saved, so the last good checkpoint is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save as to_bytes
from torch import Tensor

from formers.core import FormersError
from formers.model.files import checkpoints, write_through
from formers.training.folder import BAD


class Diverged(FormersError):
    """The loss, the gradient or the weights are not finite; exit code 3 on the command line."""


def advice(learning_rate: float, folder: Path | None) -> str:
    """What to do after a run has diverged, with its last good checkpoint."""
    less = f"train with less than learning_rate={learning_rate:g}"
    kept = [] if folder is None else checkpoints(folder)
    return f"{less}, from its last good checkpoint ({kept[0]}) with --from {folder} and --data" if kept else less


def save_bad_batch(folder: Path | None, step: int, rank: int, tensors: Mapping[str, Tensor], loss: float, norm: float) -> str:
    """Writes the batch of a skipped step into the run's folder; returns its path there."""
    if folder is None:
        return "none: the run has no folder"
    place = folder / BAD / f"step-{step:08d}-{rank}.safetensors"
    found = {name: value.cpu().contiguous() for name, value in tensors.items()}
    try:
        place.parent.mkdir(exist_ok=True)
        write_through(place, to_bytes(found, metadata={"step": str(step), "loss": str(loss), "norm": str(norm)}))
    except OSError as error:
        return f"none: {error.strerror}"
    return str(place.relative_to(folder))
