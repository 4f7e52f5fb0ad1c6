"""The curves of a run from its metrics.jsonl: read once, then only what is new, and thinned to so many points that a screen can show.

A point of a curve is (step, seconds, value). Where a loss was not finite, metrics.jsonl says null, and the curve has a gap there.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

STEP, SECONDS = "step", "seconds"
CHUNK = 1 << 20
"""Bytes that are read at once."""
LINE = 1 << 22
"""Bytes of the longest line that is read; a longer one is skipped."""
TAIL = 64
"""Bytes before the end of what was read by which a replaced file is told from a longer one."""
TEXT = 4000
"""Characters of a sample that are kept."""
NAMES = 64
"""Curves of a run at the most."""
SCORES = {"valid_loss": np.argmin, "return": np.argmax, "loss": np.argmin}
"""What a run is compared by, the first that it has, and which of its values is the best."""


@dataclass
class MetricCurve:
    """The values of one name."""

    step: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: float, seconds: float, value: float) -> None:
        """Adds a point; one that is not finite is a gap."""
        self.step.append(step)
        self.seconds.append(seconds)
        self.value.append(value)

    @property
    def bytes(self) -> int:
        """Bytes of its points."""
        return 24 * len(self.value)


@dataclass
class MetricsFile:
    """What metrics.jsonl has told so far."""

    limit: int
    """Samples that are kept."""
    curves: dict[str, MetricCurve] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    step: float = 0.0
    seconds: float = 0.0
    offset: int = 0
    """Bytes of the file that have been read, whole lines."""
    tail: bytes = b""
    """The last of them."""
    skipped: int = 0
    """Lines that are not understood."""
    lines: int = 0

    def read(self, path: Path) -> Iterator[int]:
        """Reads what is new in the file, a piece between two yields, which give the bytes read so far; a replaced file is read again."""
        with path.open("rb") as file:
            if not self._goes_on(file):
                self.__init__(self.limit)  # type: ignore[misc]
            file.seek(self.offset)
            rest = b""
            while piece := file.read(CHUNK):
                data = rest + piece
                end = data.rfind(b"\n") + 1
                whole, rest = data[:end], data[end:]
                if len(rest) > LINE:  # no line of ours
                    self.skipped += 1
                    self.offset += len(data)
                    self.tail, rest = data[-TAIL:], b""
                    continue
                for line in whole.split(b"\n"):
                    if line:
                        self._add(line)
                self.offset += end
                self.tail = (self.tail + whole)[-TAIL:]
                yield self.offset

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether the file still begins with what was read: a resumed run cuts it, a new one replaces it."""
        if not self.offset:
            return True
        file.seek(self.offset - len(self.tail))
        return file.read(len(self.tail)) == self.tail

    def _add(self, line: bytes) -> None:
        self.lines += 1
        try:
            figures = json.loads(line)
        except (ValueError, RecursionError):
            self.skipped += 1
            return
        if not isinstance(figures, dict):
            self.skipped += 1
            return
        step, seconds = figures.get(STEP), figures.get(SECONDS)
        self.step = step if _is_number(step) else self.step
        self.seconds = seconds if _is_number(seconds) else self.seconds
        if isinstance(figures.get("sample"), str):
            prompt = figures.get("prompt")
            sample = {"step": self.step, "prompt": prompt[:TEXT] if isinstance(prompt, str) else "", "text": figures["sample"][:TEXT]}
            self.samples = [*self.samples, sample][-self.limit :]
            return
        for name, value in figures.items():
            if name in (STEP, SECONDS):
                continue
            if value is None and f"{name}_word" in figures:
                value = math.nan
            if (type(value) is float or type(value) is int) and (name in self.curves or len(self.curves) < NAMES):
                try:
                    self.curves.setdefault(name, MetricCurve()).add(self.step, self.seconds, value)
                except OverflowError:
                    self.skipped += 1

    @property
    def bytes(self) -> int:
        """Bytes of the curves."""
        return sum(curve.bytes for curve in self.curves.values())

    def forget(self) -> None:
        """Lets go of the points, which are read again when they are asked for."""
        self.__init__(self.limit)  # type: ignore[misc]

    def summary(self) -> dict[str, Any]:
        """The step, the seconds, and the last and the best of what the run is judged by."""
        found: dict[str, Any] = {"step": self.step, "seconds": self.seconds, "names": sorted(self.curves), "skipped_lines": self.skipped}
        for name, pick in SCORES.items():
            curve = self.curves.get(name)
            if curve is None or not len(curve.value):
                continue
            values = np.frombuffer(curve.value, dtype=np.float64).copy()
            finite = np.isfinite(values)
            place = int(pick(np.where(finite, values, np.inf if pick is np.argmin else -np.inf)))
            best = {"value": float(values[place]), "step": curve.step[place]} if finite.any() else None
            found |= {"score": name, "last": float(values[-1]) if finite[-1] else None, "best": best}
            break
        return found


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e15


def thinned(x: NDArray[np.float64], y: NDArray[np.float64], points: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """At most `points` points of a curve: of each stretch the lowest and the highest, and a gap where a value is not finite."""
    n = len(y)
    if n <= points:
        return x.astype(np.float32), y.astype(np.float32)
    stretches = max(1, points // 3)
    edges = np.linspace(0, n, stretches + 1).round().astype(np.int64)
    starts = edges[:-1]
    finite = np.isfinite(y)
    low = _places(np.where(finite, y, np.inf), starts, edges, np.argmin)
    high = _places(np.where(finite, y, -np.inf), starts, edges, np.argmax)
    gaps = np.logical_or.reduceat(~finite, starts)
    gap = np.where(gaps, _places((~finite).astype(np.float64), starts, edges, np.argmax), low)
    kept = np.unique(np.concatenate([low, high, gap, [n - 1]]))
    return x[kept].astype(np.float32), y[kept].astype(np.float32)


def _places(values: NDArray[np.float64], starts: NDArray[np.int64], edges: NDArray[np.int64], pick: Any) -> NDArray[np.int64]:
    """The place of the smallest or largest value of each stretch."""
    width = int((edges[1:] - edges[:-1]).max())
    fill = np.inf if pick is np.argmin else -np.inf
    index = starts[:, None] + np.arange(width)
    inside = index < edges[1:, None]
    table = np.where(inside, values[np.minimum(index, len(values) - 1)], fill)
    return starts + pick(table, axis=1)
