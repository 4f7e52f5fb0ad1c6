"""The loss over the steps of trainings, from what their runs have kept: which of them learns faster, and whether one falls behind."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from formers.core import FormersError
from formers.inspect.curves import Curve, Panel
from formers.training.log import METRICS

FINE = 4
"""Bins of steps an octave: the first steps stand alone, later ones together, whose single losses are noise."""


def training_losses(run: str | Path) -> list[float]:
    """The training loss of every step of a run, in nats."""
    path = Path(run) / METRICS
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        raise FormersError(f"{str(run)!r} has no readable {METRICS}, and no losses to draw: give the folder of a training.") from None
    losses = [line["loss"] for line in lines if "loss" in line and line["loss"] is not None]
    if not losses:
        raise FormersError(f"{str(run)!r} has taken no step, and has no losses to draw: train it first.")
    return losses


def smooth(name: str, losses: Sequence[float]) -> Curve:
    """The mean loss over bins of steps, which grow with the step; x is the middle of a bin."""
    edges = sorted({round(2 ** (k / FINE)) for k in range(math.ceil(FINE * math.log2(len(losses) + 1)) + 1)} | {len(losses) + 1})
    bins = [(a, b) for a, b in pairwise(edges) if b <= len(losses) + 1]
    return Curve(name, [(a + b - 1) / 2 for a, b in bins], [math.fsum(losses[a - 1 : b - 1]) / (b - a) for a, b in bins])


def learning_panel(runs: Mapping[str, str | Path]) -> Panel:
    """The training losses of runs over bytes, by the names that they are to have, in bits per byte."""
    curves = [smooth(name, [nats / math.log(2) for nats in training_losses(run)]) for name, run in runs.items()]
    return Panel(curves, "training step", "training loss, bits per byte")
