"""The vectors that a model adds at each position."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError, Range
from formers.model import load
from formers.position import sinusoid

LONGEST = 4096
"""The largest length and dim that are worth a drawing."""


class PositionTable(NamedTuple):
    """What is added to the stream at each position, (length, dim), and the words below it."""

    values: Tensor
    caption: str

    @property
    def largest(self) -> float:
        """The largest size of a value, which has the darkest colour."""
        return float(self.values.abs().max())


def sinusoid_table(length: int = 64, dim: int = 64) -> PositionTable:
    """PE, the sinusoids of E7."""
    for name, size in (("length", length), ("dim", dim)):
        if not 1 <= size <= LONGEST:
            raise FormersError(f"{name}={size} cannot be drawn: give 1 ... {LONGEST}.")
    words = f"Sinusoidal positions, length {length}, dim {dim}: sines in even dimensions, cosines in odd ones."
    return PositionTable(sinusoid(torch.arange(length), dim), words)


def run_table(run: str | Path, length: int | None = None) -> PositionTable:
    """What the model of a run adds to its stream at the first positions, as many as it was trained on, or as are worth a drawing."""
    model = load(run)
    spec, length = model.spec, min(model.spec.length, 64) if length is None else length
    if not 1 <= length <= LONGEST:
        raise FormersError(f"length={length} cannot be drawn: give 1 ... {LONGEST}.")
    with torch.no_grad():
        nothing = torch.zeros(1, length, spec.dim, dtype=next(model.parameters()).dtype)
        values = model.get_submodule("stack.position")(nothing, Range(0, length), 0)[0].double()
    kind = type(spec.position).__name__
    if not values.any():
        raise FormersError(f"{run} adds no positions to its stream ({kind}): there is nothing to draw.")
    if not values.isfinite().all():
        raise FormersError(f"{run} has positions that are not numbers, as a run that diverged has: take an earlier checkpoint.")
    side = "" if spec.encoder is None else "the decoder's, "
    return PositionTable(values, f"{kind} positions of {run}, {side}{length} of the {spec.length} it was trained on, dim {spec.dim}.")


def positions_facts(table: PositionTable) -> dict[str, Any]:
    """What a drawing shows, ready for JSON: a row of values a position."""
    length, dim = table.values.shape
    return {"length": length, "dim": dim, "values": table.values.tolist()}
