"""LSH attention in four steps (Kitaev et al., 2020, figure 2): buckets, sorted, cut into chunks, and who attends to whom.

Buckets, order and visible pairs are those of the model's own layer over a text (attention/lsh).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from formers.core import FormersError
from formers.generation import tokenizer_of
from formers.inspect.draw.buckets import bucket_names
from formers.inspect.draw.figure import TEXT
from formers.inspect.draw.figures.base import WIDTH, DrawnFigure, Figure, FigureSubject, sized
from formers.inspect.draw.figures.diagram import EDGE, label, new_diagram
from formers.inspect.draw.fonts import drawable, fonts_for
from formers.inspect.measure.buckets import buckets_of

FILLS = ("#8fb8de", "#f2c879", "#b9d8b0", "#d9b3d6", "#e8a48f", "#d7d7a0", "#9fd0cf", "#c9c9c9")
"""Colours of buckets, which letters tell apart, too."""
LINKS, ITSELF = "#23508e", "#c4572b"


class LSHFigure(Figure):
    """One head and round over a text."""

    text: str = "sort into buckets"
    layer: int | None = None
    head: int = 0
    round: int = 0

    def draw(self, subject: FigureSubject, path: Path) -> DrawnFigure:
        model = subject.model
        ids = tokenizer_of(model).encode(self.text)
        if not ids:
            raise FormersError("the text is empty, so that there is nothing to look at: give at least one token.")
        seen = buckets_of(model, torch.tensor([ids]), subject.title)
        shown = seen.chosen(self.layer, self.head, self.round)
        n = sized("tokens of the text", shown.length, 24)
        one = shown.head(self.head, self.round)
        buckets, order = one.hashed.buckets[0, 0, 0].tolist(), one.hashed.order[0, 0, 0].tolist()
        met = one.met()[0] > 0
        figure, axes = new_diagram(path, 4.86, 4)
        wide = WIDTH / n
        names = bucket_names(torch.tensor(buckets))
        fills = {bucket: FILLS[place % len(FILLS)] for place, bucket in enumerate(names)}
        families, missing = fonts_for(seen.labels)

        def row(y: float, places: list[int], gap: bool = False) -> dict[int, float]:
            """A row of tokens in an order; where each stands."""
            where = {}
            chunk, space = one.rules.chunk, 0.1
            chunks = -(-n // chunk)
            cell = (WIDTH - space * (chunks - 1)) / n if gap else wide
            for place, token in enumerate(places):
                x = (place + 0.5) * cell + (space * (place // chunk) if gap else 0.0)
                where[token] = x
                _cell(axes, x, y, cell, drawable(seen.labels[token], missing), names[buckets[token]], fills[buckets[token]], families)
            return where

        chunked = one.rules.reach == "chunk"
        titles = (
            "1  hash: a letter is the bucket of a token", "2  sort by bucket, and in a bucket by position",
            f"3  cut into chunks of {one.rules.chunk}" if chunked else "3  whole buckets, without chunks",
            "4  attend: each query below, the keys it attends to above",
        )  # fmt: skip
        for y, title in zip((4.76, 2.98, 2.5, 0.08), titles, strict=True):
            label(axes, 0.0, y, title, 9, ha="left", fontweight="bold")
        start = row(4.44, list(range(n)))
        sorted_ = row(3.29, order)
        for token in range(n):
            axes.plot([start[token], sorted_[token]], [4.25, 3.48], color=fills[buckets[token]], linewidth=1.8, zorder=1)
        keys = row(2.18, order, chunked)
        queries = row(0.42, order, chunked)
        for query, key in met.nonzero().tolist():
            axes.plot([queries[query], keys[key]], [0.61, 1.99], color=LINKS, linewidth=0.8, zorder=1)
        for token in (~met.any(dim=1)).nonzero()[:, 0].tolist() if one.rules.itself == "alone" else range(n):
            axes.plot([queries[token], keys[token]], [0.61, 1.99], color=ITSELF, linewidth=1.2, linestyle="dashed", zorder=1)
        itself = "only if it sees no other key" if one.rules.itself == "alone" else "always"
        words = (
            f"{subject.title}{'' if subject.run else ', untrained'}, layer {shown.step}, head {self.head}, round {self.round}: "
            f"{len(names)} of {shown.buckets} buckets hold a token"
            f"{', queries look at their chunk and the one before' if chunked else ''}; a token looks at itself (dashed) {itself} (E90-E94)."
        )
        values = {"tokens": seen.labels, "buckets": buckets, "order": order, "chunk": one.rules.chunk if chunked else None,
                  "keys": [line.nonzero()[:, 0].tolist() for line in met]}  # fmt: skip
        return DrawnFigure(figure, words, values)


def _cell(axes: Any, x: float, y: float, width: float, text: str, bucket: str, fill: str, families: list[str]) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - width / 2, y - 0.19), width, 0.38, facecolor=fill, edgecolor="#ffffff", linewidth=1.0, zorder=3))
    size = min(9.0, 30 * width)
    label(axes, x, y + 0.075, text, size, fontfamily=families, parse_math=False)
    label(axes, x, y - 0.1, bucket, max(7.0, size - 2), EDGE if fill == "#ffffff" else TEXT, style="italic")
