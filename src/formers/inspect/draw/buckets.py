"""Drawings of LSH buckets: the text with the bucket of every token, and the pairs that meet; in the terminal, or as the paper's figure.

The picture has three columns (Kitaev et al., 2020, figure 2): the tokens as they stand, sorted by bucket, and cut into chunks. Each has
its row of tokens, in the colours of their buckets, and its map of pairs.
"""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import Any

import torch
from rich.cells import cell_len
from rich.text import Text
from torch import Tensor

from formers.attention.lsh.reference import pair_counts
from formers.inspect.draw.figure import TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.fonts import drawable, fonts_for
from formers.inspect.draw.patterns import grid
from formers.inspect.draw.terminal import TIMES, has_unicode, lines_of, sayable
from formers.inspect.measure.buckets import Buckets, Figures, LayerBuckets, figures, without_self
from formers.inspect.measure.leak import Moved
from formers.inspect.measure.token_labels import plain_label

STYLES = ("black on color(153)", "black on color(223)", "black on color(157)", "black on color(218)", "black on color(229)",
          "black on color(189)", "black on color(159)", "black on color(216)")  # fmt: skip
"""How the tokens of a bucket look in a terminal with colours; buckets that are that many apart look alike, and their letters differ."""
LABELS = 64
"""Up to so many tokens a picture writes into their cells."""
ITSELF, DROPPED = 0.93, 0.72
"""How light the grey of a token and itself is, and of a pair that chunks keep apart."""
CUT = "#c4572b"
"""The colour of the lines between chunks."""
MAP = 80
"""The most columns that a map takes in a terminal."""


def bucket_names(buckets: Tensor) -> dict[int, str]:
    """A name of letters for each bucket that holds a token, in the order in which tokens are sorted: a ... z, aa, ab ..."""
    return {bucket: _letters(place) for place, bucket in enumerate(sorted(set(buckets.tolist())))}


def draw_buckets(
    seen: Buckets, layer: int | None = None, head: int = 0, round: int = 0, columns: int = 80, encoding: str = "utf-8"
) -> Text:
    """The text with the letter of its bucket in one round below every token, and a map of the pairs that meet in any round."""
    shown = seen.chosen(layer, head, round)
    drawing = Text(end="")
    drawing.append_text(_marked(seen.labels, shown.hashed.buckets[0, head, round], columns, encoding))
    rows, each = grid(shown.head(head).met()[0] > 0, min(columns, MAP), has_unicode(encoding))
    drawing.append(sayable("\n".join(rows), encoding) + "\n\n")
    words = f"{seen.name}, {_which(shown, head)}. Below every token stands its bucket in round {round}. {_said(shown, head)}"
    if each > 1:
        words += f" Each mark of the map stands for {each} keys {TIMES} {2 * each} queries."
    drawing.append(sayable("\n".join(lines_of(words, columns)), encoding))
    return drawing


def save_buckets(seen: Buckets, path: str | Path, layer: int | None = None, head: int = 0, round: int = 0) -> Path:
    """Writes the figure of one round, .png or .svg, and returns its path."""
    shown = seen.chosen(layer, head, round)
    one, n = shown.head(head, round), shown.length
    figure = new_figure(path, 13.2, 5.6)
    from matplotlib.colors import ListedColormap

    panels = figure.subplots(2, 3, height_ratios=[0.12, 1.0])
    buckets, order = one.hashed.buckets[0, 0, 0], one.hashed.order[0, 0, 0]
    names = bucket_names(buckets)
    numbers = torch.tensor([list(names).index(b) for b in buckets.tolist()])
    palette = ListedColormap([_colour(place, 0.95) for place in range(len(names))])
    chunked = one.rules.reach == "chunk"
    titles = ("the tokens as they stand", "sorted by bucket", f"in chunks of {one.rules.chunk}" if chunked else "whole buckets")
    as_is = torch.arange(n)
    for column, (places, title) in enumerate(zip((as_is, order, order), titles, strict=True)):
        strip, pairs = panels[0][column], panels[1][column]
        cuts = range(one.rules.chunk, n, one.rules.chunk) if chunked and column == 2 else ()
        _strip(strip, [seen.labels[i] for i in places.tolist()], numbers[places], palette, cuts)
        strip.set_title(title, fontsize=10, color=TEXT)
        image = _painted(one, numbers, final=column == 2)[places][:, places]
        pairs.imshow(image.numpy(), interpolation="none" if n <= 512 else "antialiased", aspect="auto", extent=(0, n, n, 0))
        for cut in cuts:
            pairs.axhline(cut, color=CUT, linewidth=0.7)
            pairs.axvline(cut, color=CUT, linewidth=0.7)
        pairs.set_xticks([])
        pairs.set_yticks([])
        pairs.set_xlabel("key", fontsize=8, color=TEXT)
        pairs.set_ylabel("query", fontsize=8, color=TEXT)
        tidy(pairs)
    words = "coloured pairs meet" + (", grey ones share a bucket and are in no chunk that the query looks at" if chunked else "")
    write_caption(figure, f"{seen.name}, {_which(shown, head)}, round {round} of {shown.rounds}: {words}. {_said(shown, head)}")
    return save_figure(figure, path)


def layer_row(layer: LayerBuckets, found: Figures, move: Moved | None) -> list[str]:
    """The figures of a layer, for a table with the columns of `COLUMNS`."""
    return [
        str(layer.step), f"{found.used:.1f}/{layer.buckets:,}", f"{found.largest:,}", f"{found.keys:.1f}", f"{found.most_keys:,}",
        _percent(found.alone), _percent(found.several), _percent(found.dropped),
        "" if move is None else _percent(move.queries[layer.step]),
    ]  # fmt: skip


COLUMNS = ("layer", "buckets", "largest", "keys", "most", "alone", "several", "dropped", "moved")
"""What stands above the figures of layers."""


def columns_words(seen: Buckets, move: Moved | None) -> str:
    """What the columns mean."""
    whole = any(layer.rules.reach == "bucket" for layer in seen.layers)
    words = (
        "Means over heads and rounds. Buckets are those that hold a token, of all that there are; keys those that a query sees in any "
        "round beside itself; alone is the share of queries that see none; several that of the pairs that meet which do so in several "
        f"rounds; dropped that of the pairs in one bucket which chunks {'would keep' if whole else 'keep'} apart."
    )
    if move is not None:
        words += (
            f" Moved is the share of queries whose keys are others when one later token is another, the mean over {move.places} such "
            "tokens."
        )
        if move.predictions is not None:
            words += f" What is predicted before that token then moves by {move.predictions:.2g} (total variation, 0 to 1)."
    return words


def _marked(labels: list[str], buckets: Tensor, columns: int, encoding: str) -> Text:
    """The tokens in lines, the letters of their buckets below them, both in the bucket's colour."""
    shown = str if has_unicode(encoding) else plain_label
    names = bucket_names(buckets)
    places = {bucket: place for place, bucket in enumerate(names)}
    drawing, above, below, used = Text(), Text(" "), Text(" "), 1
    for label, bucket in zip(labels, buckets.tolist(), strict=True):
        token, name, style = sayable(shown(label), encoding), names[bucket], STYLES[places[bucket] % len(STYLES)]
        wide = max(cell_len(token), len(name))
        if used + wide > max(columns, 20) and used > 1:
            drawing.append_text(above).append("\n").append_text(below).append("\n\n")
            above, below, used = Text(" "), Text(" "), 1
        above.append(token, style).append(" " * (wide - cell_len(token)), style)
        below.append(name, style).append(" " * (wide - len(name)), style)
        used += wide
    return drawing.append_text(above).append("\n").append_text(below).append("\n\n")


def _strip(axes: Any, labels: list[str], numbers: Tensor, palette: Any, cuts: range | tuple[()]) -> None:
    """A row of tokens in the colours of their buckets, with lines where chunks end."""
    n = len(labels)
    axes.imshow(
        numbers[None].numpy(), cmap=palette, vmin=-0.5, vmax=palette.N - 0.5, aspect="auto", extent=(0, n, 1, 0), interpolation="none"
    )
    if n <= LABELS:
        families, missing = fonts_for(labels)
        for place, label in enumerate(labels):
            text = drawable(label if len(label) <= 4 else label[:3] + "…", missing)
            size = max(3.0, min(8.0, 270 / n / max(1, 0.7 * len(text))))
            axes.text(place + 0.5, 0.5, text, ha="center", va="center", fontsize=size, color=TEXT, fontfamily=families, parse_math=False)
    for cut in cuts:
        axes.axvline(cut, color=CUT, linewidth=1.4)
    axes.set_xticks([])
    axes.set_yticks([])
    tidy(axes)


def _painted(layer: LayerBuckets, numbers: Tensor, final: bool) -> Tensor:
    """The pairs of one head and round as colours (n, n, 3): that of the query's bucket where two meet, grey where chunks keep them apart.

    Where chunks are not yet cut, all pairs of a bucket meet.
    """
    whole = without_self(pair_counts(layer.hashed, layer.rules._replace(reach="bucket", across_buckets=False))[0, 0]) > 0
    met = layer.met()[0] > 0 if final else whole
    inks = torch.tensor([_colour(place, 0.7) for place in range(int(numbers.max()) + 1)])
    image = torch.ones(layer.length, layer.length, 3)
    image[torch.eye(layer.length, dtype=torch.bool)] = ITSELF
    image[whole] = DROPPED
    return torch.where(met[..., None], inks[numbers][:, None], image)


def _which(layer: LayerBuckets, head: int) -> str:
    rules = layer.rules
    words = [f"layer {layer.step}", f"head {head}", f"{layer.rounds} round{'s' * (layer.rounds > 1)}"]
    words.append(f"chunks of {rules.chunk}" if rules.reach == "chunk" else "whole buckets")
    return ", ".join(words)


def _said(layer: LayerBuckets, head: int) -> str:
    """The figures of a head, in words."""
    found = figures(layer.head(head))
    words = (
        f"{layer.length:,} tokens are in {found.used:.3g} of {layer.buckets:,} buckets in a round, {found.largest:,} in the largest. "
        f"A query sees {found.keys:.1f} keys beside itself, {found.most_keys:,} at most; {_percent(found.alone)} see none."
    )
    if found.several is not None:
        words += f" {_percent(found.several)} of the pairs that meet do so in several rounds."
    if found.dropped is not None and layer.rules.reach == "chunk":
        words += f" Chunks keep {_percent(found.dropped)} of the pairs of a bucket apart."
    return words


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def _letters(place: int) -> str:
    name = ""
    while place >= 0:
        name, place = chr(ord("a") + place % 26) + name, place // 26 - 1
    return name


def _colour(place: int, light: float) -> tuple[float, float, float]:
    """A bucket's colour, which differs from those of the buckets beside it: hues a golden section apart."""
    return colorsys.hsv_to_rgb(place * 0.618034 % 1.0, 0.35 + 0.2 * (place % 2) + (0.95 - light), light)
