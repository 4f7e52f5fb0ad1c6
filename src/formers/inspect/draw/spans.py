"""Bar charts of learned spans: one bar for each head of each layer."""

from __future__ import annotations

from pathlib import Path

from formers.inspect.draw.figure import INK, TEXT, new_figure, save_figure, tidy, write_caption
from formers.inspect.draw.terminal import lines_of, sayable
from formers.inspect.measure.spans import Spans

PALE = "#a9bcd6"
"""The colour of what comes on top of a span."""


def draw_spans(spans: Spans, columns: int = 80, encoding: str = "utf-8") -> str:
    """A bar for each head: its span, and pale what comes on top, the largest of any token and the ramp."""
    layers, heads = spans.mean.shape
    labels = [f" {layer if head == 0 else '':>5}  {head:>4}  " for layer in range(layers) for head in range(heads)]
    far = float(spans.largest.max()) + spans.ramp
    room = max(columns - len(labels[0]) - len(f"{spans.most:,}.0") - 2, 8)
    lines = [" layer  head  span in places"]
    for label, mean, largest in zip(labels, spans.mean.flatten().tolist(), spans.largest.flatten().tolist(), strict=True):
        full, whole = (round(room * v / far) for v in (mean, min(largest + spans.ramp, far)))
        lines.append(f"{label}{'█' * full}{'░' * (whole - full)} {mean:,.1f}")
    return sayable("\n".join([*lines, *lines_of(spans.caption, columns - 2)]), encoding)


def save_spans(spans: Spans, path: str | Path) -> Path:
    """Draws the span of every head as a bar, the heads of a layer side by side, and returns the path of the picture."""
    layers, heads = spans.mean.shape
    figure = new_figure(path, min(2.5 + 0.16 * layers * (heads + 1), 24.0), 3.4)
    axes = figure.subplots()
    places = [layer * (heads + 1) + head for layer in range(layers) for head in range(heads)]
    mean, largest = spans.mean.flatten().tolist(), spans.largest.flatten().tolist()
    axes.bar(places, [v + spans.ramp for v in largest], width=0.9, color=PALE)
    axes.bar(places, mean, width=0.9, color=INK)
    axes.set_xticks([layer * (heads + 1) + (heads - 1) / 2 for layer in range(layers)], range(layers))
    axes.set_xlabel("layer, a bar for each head", fontsize=8, color=TEXT)
    axes.set_ylabel("span in places", fontsize=8, color=TEXT)
    tidy(axes)
    write_caption(figure, spans.caption)
    return save_figure(figure, path)
