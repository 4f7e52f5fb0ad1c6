"""Loss curves: by position within a segment, and by training step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from formers.core import FormersError
from formers.inspect.draw.curves import Curve, Panel
from formers.inspect.measure.losses import Losses, training_losses

BINS_PER_OCTAVE = 4
"""The first positions or steps have a bin each; later bins grow in proportion."""


def binned(losses: Losses) -> Curve:
    """The mean loss over bins of positions, which grow with the position; x is the middle of a bin, counted from 1."""
    bins = _bins(int((losses.counts > 0).sum()))
    return Curve(losses.name, [(a + b - 1) / 2 for a, b in bins], [losses.mean(a - 1, b - 1) for a, b in bins])


def losses_panel(losses: Sequence[Losses]) -> Panel:
    """All curves with one pair of axes; their units must agree."""
    units = {each.unit for each in losses}
    if len(units) > 1:
        raise FormersError("bytes and other tokens cannot be drawn on one axis: give runs whose tokens are alike.")
    curves = [binned(each) for each in losses]
    named = [curve._replace(name=f"{curve.name}: {each.mean():.4f}") for curve, each in zip(curves, losses, strict=True)]
    return Panel(named, "position within the segment", units.pop())


def smooth(name: str, losses: Sequence[float]) -> Curve:
    """The mean loss over bins of steps, which grow with the step; x is the middle of a bin."""
    bins = _bins(len(losses))
    return Curve(name, [(a + b - 1) / 2 for a, b in bins], [math.fsum(losses[a - 1 : b - 1]) / (b - a) for a, b in bins])


def learning_panel(runs: Mapping[str, str | Path]) -> Panel:
    """The training losses of runs over bytes, one named curve a run, in bits per byte."""
    curves = [smooth(name, [nats / math.log(2) for nats in training_losses(run)]) for name, run in runs.items()]
    return Panel(curves, "training step", "training loss, bits per byte")


def _bins(count: int) -> list[tuple[int, int]]:
    """The numbers 1 ... count in bins [a, b)."""
    octaves = math.ceil(BINS_PER_OCTAVE * math.log2(count + 1))
    edges = sorted({round(2 ** (k / BINS_PER_OCTAVE)) for k in range(octaves + 1)} | {count + 1})
    return [(a, b) for a, b in pairwise(edges) if b <= count + 1]
