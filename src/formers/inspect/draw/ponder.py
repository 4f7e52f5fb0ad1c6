"""Ponder times as pictures: coloured tokens in the terminal, bars over tokens, lines over difficulty, halting probabilities by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.table import Table
from rich.text import Text

from formers.core import FormersError
from formers.inspect.draw.attention import LABELS, LONG, short_label
from formers.inspect.draw.curves import COLOURS
from formers.inspect.draw.figure import FAINT, INK, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.fonts import drawable, fonts_for
from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.draw.terminal import has_unicode, lines_of, sayable
from formers.inspect.measure.difficulty import Difficulty
from formers.inspect.measure.ponder import Flops, Ponder, StepHalting
from formers.inspect.measure.token_labels import plain_label

PALE, REST = "#c9d5e6", "#c4572b"
"""A step that is taken, and the remainder."""
LOW, HIGH = (236, 241, 248), (18, 62, 128)
"""The background colours of tokens that take one step, and all steps."""
LEGEND = "Above each token stands N, how many steps it takes; the darker it is, the more."
BARS = "A box is a step, filled up to the halting probability h of that step; on top stands the remainder R, so that a bar ends at N + R."


def draw_ponder(seen: Sequence[Ponder], flops: Flops, columns: int = 80, encoding: str = "utf-8") -> Text:
    """The tokens of a text, their N above them, in lines of at most `columns` characters; dark where they take many steps."""
    drawing = Text()
    for each in seen:
        drawing.append("\n".join(lines_of(sayable(f"{each.words}.", encoding), columns - 1)) + "\n\n")
        for line in _lines(each, max(columns - 2, 8), encoding):
            above, below = Text(" "), Text(" ")
            for number, label, style in line:
                above.append(number)
                below.append_text(Text(label, style))
            for row in (above, below):
                row.rstrip()
                drawing.append_text(row).append("\n")
            drawing.append("\n")
    return drawing.append("\n".join([*lines_of(LEGEND, columns - 1), *lines_of(f"A pass takes {flops.words}", columns - 1)]))


def steps_table(steps: Sequence[StepHalting]) -> Table:
    """A line for each step that any token takes: its halting probabilities, and the share of all tokens that continue."""
    table = new_table("step", "mean h", "lower quartile", "upper quartile", "still running", right=4)
    for step in (step for step in steps if step.mean is not None):
        known = ["" if value is None else f"{value:.3f}" for value in (step.mean, step.lower, step.upper)]
        add_row(table, str(step.number), *known, f"{100 * step.running:.1f}%")
    return table


def difficulty_table(seen: Sequence[Difficulty]) -> Table:
    """A line for each difficulty: items, N and its spread in each stack, and what was right."""
    thought = [word for each in seen for word in (f"{each.title} mean N".strip(), "spread")]
    known = [what for what in ("accuracy", "exact") if getattr(seen[0].groups[0], what) is not None]
    table = new_table(seen[0].dial, seen[0].unit, *thought, *known, right=len(thought) + len(known) + 1)
    for groups in zip(*(each.groups for each in seen), strict=True):
        first = groups[0]
        cells = [f"{value:.2f}" for group in groups for value in (group.mean, group.spread)]
        right = ["" if getattr(first, what) is None else f"{getattr(first, what):.3f}" for what in known]
        add_row(table, "all" if first.difficulty is None else f"{first.difficulty:,}", f"{first.items:,}", *cells, *right)
    return table


def save_ponder(seen: Sequence[Ponder], path: str | Path, flops: Flops, name: str = "") -> Path:
    """Writes bars over tokens, .png or .svg, stacks one below the other, and returns its path."""
    longest, widest = max(len(each.labels) for each in seen), max(len(short_label(label)) for each in seen for label in each.labels)
    figure = new_figure(path, min(max(2.6 + 0.19 * longest, 4.4), 26.0), (3.2 + 0.06 * (widest - 1)) * len(seen) + 0.8)
    for axes, each in zip(figure.subplots(len(seen), 1, squeeze=False)[:, 0], seen, strict=True):
        _bars(axes, each)
    words = " ".join(f"{each.words}." for each in seen)
    write_caption(figure, f"{name}: {words} {BARS} A pass takes {flops.words}" if name else f"{words} {BARS}")
    return save_figure(figure, path)


def save_difficulty(seen: Sequence[Difficulty], path: str | Path, name: str = "") -> Path:
    """Writes N against difficulty, and where it was asked for halting by step, .png or .svg, and returns its path."""
    graded = seen[0].groups[0].difficulty is not None
    stepped = seen[0].steps is not None
    if not graded and not stepped:
        raise FormersError("the data do not say how hard their rows are, so that there is nothing to draw: give --steps, or other data.")
    figure = new_figure(path, 5.4 * (graded + stepped) + 0.6, 4.2)
    panels = list(figure.subplots(1, graded + stepped, squeeze=False)[0])
    if graded:
        _by_difficulty(panels.pop(0), seen)
    if stepped:
        _by_step(panels.pop(0), seen)
    words = " ".join(f"{each.words}." for each in seen)
    bands = "Bands: " + " and ".join(
        [*(["one standard deviation to either side"] if graded else []), *(["the quartiles of h"] if stepped else [])]
    )
    write_caption(figure, f"{name}: {words} {bands}." if name else f"{words} {bands}.")
    return save_figure(figure, path)


def _lines(each: Ponder, width: int, encoding: str) -> list[list[tuple[str, str, Style]]]:
    """Numbers, labels and colours of tokens, in lines that are at most `width` wide, number and label of one width."""
    shown = str if has_unicode(encoding) else plain_label
    # What are sentences, and no words, stand whole, below one another.
    sentences = any(len(label) > LONG for label in each.labels)
    labels = [sayable(set_cell_size(shown(label), width) if sentences else short_label(shown(label)), encoding) for label in each.labels]
    numbers = [str(int(n)) for n in each.steps]
    # Single characters with single digits read as a text; else a space keeps neighbours apart.
    gap = 0 if all(cell_len(label) == 1 for label in labels) and each.most < 10 else 1
    lines: list[list[tuple[str, str, Style]]] = [[]]
    room = width
    for number, label, steps in zip(numbers, labels, each.steps.tolist(), strict=True):
        size = max(len(number), cell_len(label))
        if size + gap > room and lines[-1]:
            lines.append([])
            room = width
        room -= size + gap
        lines[-1].append((set_cell_size(number, size + gap), set_cell_size(label, size) + " " * gap, _style(steps, each.most)))
    return lines


def _style(steps: float, most: int) -> Style:
    """A dark background for a token that takes many steps."""
    share = (steps - 1) / max(most - 1, 1)
    red, green, blue = (round(low + share * (high - low)) for low, high in zip(LOW, HIGH, strict=True))
    return Style(color="white" if share > 0.5 else "black", bgcolor=f"#{red:02x}{green:02x}{blue:02x}")


def _bars(axes: Any, each: Ponder) -> None:
    places = list(range(len(each.labels)))
    halting = each.halting.nan_to_num()
    for t in range(int(each.steps.max())):
        here = [i for i in places if each.steps[i] > t]
        label = {"label": "one step"} if t == 0 else {}
        axes.bar(here, [0.97] * len(here), bottom=t, width=0.86, color=PALE, **label)
        label = {"label": "halting probability h"} if t == 0 else {}
        axes.bar(here, [0.97 * float(halting[i, t]) for i in here], bottom=t, width=0.86, color=INK, **label)
    axes.bar(places, each.remainder.tolist(), bottom=each.steps.tolist(), width=0.86, color=REST, label="remainder R")
    axes.axhline(each.most, color="#888888", linestyle="dashed", linewidth=1.0, zorder=0)
    axes.text(-0.6, each.most + 0.08, f"at most {each.most} steps", fontsize=7, color="#888888", clip_on=True)
    if len(places) <= LABELS:
        families, missing = fonts_for(each.labels)
        texts = [drawable(short_label(label), missing) for label in each.labels]
        axes.set_xticks(places, texts, fontfamily=families, parse_math=False, rotation=90 if max(map(len, texts)) > 1 else 0)
    axes.set_xlim(-0.7, len(places) - 0.3)
    axes.set_ylim(0, each.most + 1.05)
    axes.set_xlabel("token", fontsize=8, color=TEXT)
    axes.set_ylabel(f"{each.title}: steps N + R" if each.title else "steps N + R", fontsize=8, color=TEXT)
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.1)
    tidy(axes)


def _by_difficulty(axes: Any, seen: Sequence[Difficulty]) -> None:
    for each, colour in zip(seen, COLOURS * len(seen), strict=False):
        x, mean, spread = ([getattr(group, what) for group in each.groups] for what in ("difficulty", "mean", "spread"))
        low, high = (
            [max(1.0, m + sign * s) for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1)
        )  # every token takes at least one step
        if len(x) == 1:
            axes.errorbar(x, mean, spread, color=colour, marker="o", markersize=4, capsize=3)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, mean, color=colour, linewidth=1.6, marker="o", markersize=3, label=each.title or None)
    axes.set_ylim(0, axes.get_ylim()[1])  # a part of a step is not made to look like much
    _dress(axes, seen[0].dial, f"mean steps N of {seen[0].unit}", len(seen) > 1)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _by_step(axes: Any, seen: Sequence[Difficulty]) -> None:
    for each, colour in zip(seen, COLOURS * len(seen), strict=False):
        asked = [step for step in each.steps or [] if step.mean is not None]
        x, title = [step.number for step in asked], f"{each.title}: " if each.title else ""
        axes.fill_between(x, [s.lower for s in asked], [s.upper for s in asked], color=colour, alpha=0.15, linewidth=0)
        axes.plot(x, [s.mean for s in asked], color=colour, linewidth=1.6, marker="o", markersize=3, label=f"{title}mean h")
        axes.plot(
            [0, *x], [1.0, *(s.running for s in asked)], color=colour, linewidth=1.2, linestyle="dashed",
            label=f"{title}tokens still running after the step",
        )  # fmt: skip
    axes.set_ylim(0, 1.03)
    _dress(axes, "step", "probability, or share of tokens", True)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _dress(axes: Any, across: str, up: str, legend: bool) -> None:
    axes.grid(color=FAINT, linewidth=1.0, zorder=0)
    tidy(axes)
    axes.set_xlabel(across, fontsize=8, color=TEXT)
    axes.set_ylabel(up, fontsize=8, color=TEXT)
    if legend:
        axes.legend(fontsize=8, frameon=False)
