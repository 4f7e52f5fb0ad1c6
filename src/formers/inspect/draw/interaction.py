"""Table rows and curves of sequential operations and path lengths (measure/interaction.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

from formers.inspect.draw.curves import Curve, Panel
from formers.inspect.measure.interaction import Interaction, growth

NAMES = 36
"""Characters of a line in a legend."""


COLUMNS = ("", "operations", "growth", "path", "mean", "growth")


def words_of(each: Interaction) -> list[str]:
    """The row of a table with COLUMNS: figures at the first and the last length, or one where they agree, and how they grow."""
    grown = [growth(each.lengths, figures) for figures in (each.operations, each.paths)]
    first, second = ("" if grow is None else grow.words for grow in grown)
    mean = each.means[-1]
    return [each.name, _ends(each.operations), first, _ends(each.paths), "" if mean is None else f"{mean:,.3g}", second]


def _ends(figures: Sequence[int | None]) -> str:
    ends = ["never" if figure is None else f"{figure:,}" for figure in (figures[0], figures[-1])]
    return "-".join(dict.fromkeys(ends))


def interaction_panels(found: Sequence[Interaction]) -> list[Panel]:
    """Both figures over the length, in logarithms; members that agree at every length are one line."""
    panels = []
    for up, figures in (("operations one after the other", "operations"), ("operations between two tokens, the worst pair", "paths")):
        lines: dict[tuple[int | None, ...], list[str]] = {}
        for each in found:
            lines.setdefault(getattr(each, figures), []).append(each.name)
        curves = [
            Curve(
                "\n".join(wrap(", ".join(names), NAMES, break_on_hyphens=False)),
                list(found[0].lengths),
                [math.nan if y is None else float(y) for y in line],
            )
            for line, names in sorted(lines.items(), key=lambda item: -(item[0][-1] or 0))
        ]
        panels.append(Panel(curves, "length n", up, rise="logarithmic"))
    return panels
