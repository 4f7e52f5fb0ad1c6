"""An agent's episode, drawn: the environment at each step, and beside it the attention over the remembered past, by layer and head.

.gif, a picture a step; or .html, a page with everything in it, to step through.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError
from formers.inspect.draw.html_page import assemble_page, write_atomically
from formers.rl.play import Played

CELL, GAP, MARGIN = 9, 6, 12
SIDE = 320
"""Pixels of the environment's picture."""
INK, PAPER, ACCENT = (30, 40, 60), (255, 255, 255), (200, 60, 40)


def save_episode(played: Played, path: str | Path) -> Path:
    """Writes an episode as .gif or .html, whole or not at all."""
    path = Path(path)
    content = _gif(played) if path.suffix.lower() == ".gif" else episode_page(played).encode()
    return write_atomically(path, content)


def heading(played: Played, t: int) -> str:
    """What happens at a step, in a line."""
    total = sum(played.rewards[: t + 1])
    return f"step {t}: action {played.actions[t]}, reward {played.rewards[t]:g}, return {total:g}, value {played.values[t]:.2f}"


def draw_step(played: Played, t: int) -> Any:
    """One step as a picture of Pillow."""
    from PIL import Image, ImageDraw

    attention = played.attention
    steps, layers, heads, _ = attention.shape
    cell = max(2, min(CELL, 900 // max(steps, 1)))
    wide = 2 * MARGIN + 70 + cell * steps
    high = MARGIN + 20 + layers * (heads * CELL + GAP + 14)
    text = [] if played.pictures else played.frames[t]
    side = SIDE if played.pictures else max(SIDE, 7 * max((len(line) for line in text), default=0) + 2 * MARGIN)
    image = Image.new("RGB", (max(side + wide, 640), max(high, SIDE + 40 if played.pictures else 90) + 24), PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((MARGIN, 6), heading(played, t), fill=INK)
    if played.pictures:
        drawn = Image.fromarray(played.pictures[t]).resize((SIDE - 2 * MARGIN, SIDE - 2 * MARGIN), Image.Resampling.NEAREST)
        image.paste(drawn, (MARGIN, 30))
    for i, line in enumerate(text):
        for j, letter in enumerate(line):  # one by one, so that all are equally wide
            pen.text((MARGIN + 7 * j, 34 + 14 * i), letter, fill=INK)
    left, top = side + MARGIN + 50, 30
    for layer in range(layers):
        pen.text((left - 50, top), f"layer {layer}", fill=INK)
        top += 14
        for head in range(heads):
            weights = attention[t, layer, head]
            for j in range(steps):
                shade = tuple(round(p + (i - p) * float(weights[j]) ** 0.5) for p, i in zip(PAPER, INK, strict=True))
                pen.rectangle((left + cell * j, top, left + cell * (j + 1) - 1, top + CELL - 2), fill=shade)
            top += CELL
        pen.rectangle((left + cell * t, top - heads * CELL - 1, left + cell * (t + 1) - 1, top - 1), outline=ACCENT)
        top += GAP
    return image


def _gif(played: Played) -> bytes:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise FormersError("a .gif needs Pillow, which is not installed: run `pip install pillow`, or write an .html.") from None
    pictures = [draw_step(played, t) for t in range(len(played.frames))]
    out = io.BytesIO()
    times = [200] * (len(pictures) - 1) + [2000]
    pictures[0].save(out, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0)
    return out.getvalue()


def episode_page(played: Played) -> str:
    """The page of an episode as HTML."""
    attention = played.attention
    data = {
        "headings": [heading(played, t) for t in range(len(played.frames))],
        "frames": ["\n".join(frame) for frame in played.frames],
        "pictures": [_png(picture) for picture in played.pictures],
        "shape": list(attention.shape),
        "weights": base64.b64encode(np.round(attention * 255).astype(np.uint8).tobytes()).decode(),
    }
    return assemble_page("episode.html", "episode.js", ("episode.css",), f"An episode of {played.env}", data)


def _png(picture: NDArray[np.uint8]) -> str:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
