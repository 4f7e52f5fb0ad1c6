"""Line charts as inline SVG, made here: no library draws them, and no style is inline, so that a content security policy can forbid it."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 12, 40
POINTS = 240
"""Points of a curve, at the most; more are averaged in groups."""
COLOURS = 8
"""How many colours there are; the style sheet says which."""


class ChartLine(NamedTuple):
    """A curve: points in the order of x; y is None where a figure was not finite, and the curve has a gap there."""

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int
    dashed: bool = False


def chart(lines: Sequence[ChartLine], x_title: str, y_title: str, log_x: bool = False, log_y: bool = False, title: str = "") -> str:
    """A chart of curves on shared axes; an empty string where there is nothing to draw."""
    drawn = [line._replace(points=thinned([p for p in line.points if p[0] > 0 or not log_x])) for line in lines]
    xs = [x for line in drawn for x, y in line.points if y is not None]
    ys = [y for line in drawn for _, y in line.points if y is not None and (y > 0 or not log_y)]
    if not xs or not ys:
        return ""
    across, down = _scale(xs, log_x, LEFT, WIDTH - RIGHT), _scale(ys, log_y, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title or f"{y_title} against {x_title}")}">'
    ]
    for value in ticks(min(ys), max(ys), log_y):
        y = down(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for value in ticks(min(xs), max(xs), log_x):
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{short(value)}</text>')
    for line in drawn:
        kind = f"curve c{line.colour % COLOURS}" + (" dashed" if line.dashed else "")
        for piece in pieces(line.points, log_y):
            if len(piece) == 1:
                parts.append(
                    f'<circle class="dot c{line.colour % COLOURS}" cx="{across(piece[0][0]):.1f}" cy="{down(piece[0][1]):.1f}" r="2.5"/>'
                )
                continue
            path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in piece)
            parts.append(f'<polyline class="{kind}" points="{path}"><title>{html.escape(line.name)}</title></polyline>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{html.escape(x_title)}</text>')
    parts.append(
        f'<text class="axis" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{html.escape(y_title)}</text></svg>'
    )
    return "".join(parts)


def thinned(points: Sequence[tuple[float, float | None]], most: int = POINTS) -> list[tuple[float, float | None]]:
    """At most so many points: the means of groups; a group with a figure that was not finite has none."""
    if len(points) <= most:
        return list(points)
    found: list[tuple[float, float | None]] = []
    for i in range(most):
        group = points[i * len(points) // most : (i + 1) * len(points) // most]
        values = [y for _, y in group if y is not None]
        whole = len(values) == len(group)
        found.append((group[-1][0], sum(values) / len(values) if whole else None))
    return found


def pieces(points: Sequence[tuple[float, float | None]], log_y: bool = False) -> list[list[tuple[float, float]]]:
    """The stretches of a curve between its gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None or (log_y and y <= 0):
            found.append([])
        else:
            found[-1].append((x, y))
    return [piece for piece in found if piece]


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Round values between two."""
    if log:
        powers = [10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        inside = [p for p in powers if low <= p <= high]
        return inside if len(inside) > 1 else [low, high]
    if high <= low:
        return [low]
    step = 10.0 ** math.floor(math.log10(high - low))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if (high - low) / s <= 5.01)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number of few letters: 12k, 3.4M, 0.25."""
    for size, letter in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _scale(values: Sequence[float], log: bool, start: float, end: float) -> Callable[[float], float]:
    """Where a value stands between two places."""
    low, high = min(values), max(values)
    if log:
        low, high = math.log10(low), math.log10(high)
    room = (high - low) or 1.0

    def place(value: float) -> float:
        at = math.log10(value) if log else value
        return start + (at - low) / room * (end - start)

    return place
