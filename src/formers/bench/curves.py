"""Time against length: crossover points, and all curves in one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from formers.core import FormersError
from formers.inspect.draw.curves import COLOURS
from formers.inspect.draw.figure import FAINT, TEXT, new_figure, save_figure, tidy, write_caption

WHOLE = {"causal": "solid", "full": "dashed"}
"""How the lines of the fused kernel are drawn, which are grey."""


def crossover(lengths: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The length from which on something is faster, straight lines drawn between what was measured, in logarithms of both.

    The first of the lengths where it is always faster, None where it is slower at the last one.
    """
    slower = [i for i, speedup in enumerate(speedups) if speedup < 1]
    if not slower:
        return float(lengths[0])
    last = slower[-1]
    if last == len(lengths) - 1:
        return None
    below, above = math.log(speedups[last]), math.log(speedups[last + 1])
    return lengths[last] * (lengths[last + 1] / lengths[last]) ** (below / (below - above))


def new_curves(path: Path, lengths: Sequence[int]) -> Any:
    """The empty figure, created before timing, so that errors are raised at once."""
    if len(set(lengths)) < 2:
        raise FormersError(f"{path.name!r} would show time against length and there is one length: give --length at least twice.")
    if not path.absolute().parent.is_dir():
        raise FormersError(f"{str(path.parent)!r} is not a folder, so {path.name!r} cannot be written: create it first.")
    return new_figure(path, 7.6, 5.6)


def save_curves(figure: Any, path: Path, results: Mapping[str, Any]) -> Path:
    """Draws what `bench_attention` found into the figure, writes it and returns its path."""
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    axes = figure.subplots()
    names = list(dict.fromkeys(row["pattern"] for row in results["rows"]))
    lengths = sorted({row["length"] for row in results["rows"]})
    colours = dict(zip((n for n in names if n not in WHOLE), COLOURS * len(names), strict=False))
    ends = {}
    for name in names:
        times = [row["seconds"] for row in results["rows"] if row["pattern"] == name]
        axes.plot(lengths, times, color=colours.get(name, "#888888"), linestyle=WHOLE.get(name, "solid"), linewidth=1.6, zorder=2)
        ends[name] = times[-1]
        start = results["faster_from"].get(name)
        if name not in WHOLE and start is not None and start > lengths[0]:
            height = _between(lengths, times, start)
            axes.plot([start], [height], "o", color=colours[name], markersize=5, zorder=3)
            words = axes.annotate(f"{start:,.0f}", (start, height), (5, -11), textcoords="offset points", fontsize=8, color=colours[name])
            words.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(color=FAINT, linewidth=1.0, zorder=0)
    tidy(axes)
    axes.set_xlabel("tokens", fontsize=8, color=TEXT)
    axes.set_ylabel("CPU seconds, forward and backward", fontsize=8, color=TEXT)
    for name, height in _spread(ends, *axes.get_ylim()).items():
        label = f"SDPA, {name}" if name in WHOLE else name
        axes.annotate(label, (1.01, height), xycoords=("axes fraction", "data"), fontsize=8, va="center", color=colours.get(name, TEXT))
    write_caption(figure, results["caption"])
    return save_figure(figure, path)


def _between(lengths: Sequence[int], times: Sequence[float], length: float) -> float:
    """The time at a length, on straight lines in logarithms."""
    right = next(i for i, n in enumerate(lengths) if n >= length)
    share = math.log(length / lengths[right - 1]) / math.log(lengths[right] / lengths[right - 1])
    return times[right - 1] * (times[right] / times[right - 1]) ** share


def _spread(ends: Mapping[str, float], low: float, high: float) -> dict[str, float]:
    """Where the names of lines that end at such heights stand, none on another."""
    apart = (high / low) ** 0.04
    places: dict[str, float] = {}
    for name, height in sorted(ends.items(), key=lambda end: end[1]):
        places[name] = max(height, *(h * apart for h in places.values())) if places else height
    return places
