"""Which pixels a pixel attends to, as a page: one HTML file that works offline, with every layer and head, and every pixel if it fits.

A weight w is stored in 8 bits, q = round(255 sqrt(w / top)), with the largest weight `top` of each layer, head and predicted pixel: the
weights of an image are small, and the page shades by the square root.
"""

from __future__ import annotations

import base64
from pathlib import Path

from formers import __version__
from formers.inspect.draw.attention_page import quantised
from formers.inspect.draw.html_page import assemble_page, write_atomically
from formers.inspect.draw.images import to_rgb
from formers.inspect.measure.image_attention import PixelAttention


def image_attention_page(view: PixelAttention, model: str = "", layer: int = 0, head: int | None = None) -> str:
    """The page as HTML; `layer` and `head` (None: the mean of heads) are what it opens with."""
    view.chosen(layer, head)  # refuses a layer or head that does not exist
    tops = view.weights.double().amax(dim=(3, 4))
    serialisable = (view.weights.double() / tops.clamp_min(1e-30)[..., None, None]).sqrt()
    height, width = view.size
    data = {
        "version": __version__,
        "model": model,
        "begin": {"layer": layer, "head": -1 if head is None else head, "pixel": view.pixel[0] * width + view.pixel[1]},
        "height": height,
        "width": width,
        "layers": view.layers,
        "heads": view.heads,
        "channel": None if view.whole else view.channel,
        "image": base64.b64encode(to_rgb(view.image[None], view.levels).tobytes()).decode(),
        "values": view.image.reshape(height * width, -1).tolist(),
        "place": view.place.reshape(-1).tolist(),
        "queries": list(view.queries),
        "weights": base64.b64encode(quantised(serialisable, 8)).decode(),
        "tops": [float(f"{top:.4g}") for top in tops.flatten().tolist()],
        "start": [float(f"{share:.4g}") for share in view.start.flatten().tolist()],
    }
    return assemble_page("image.html", "image.js", ("attention.css", "image.css"), f"Attention of {model}" if model else "Attention", data)


def save_image_attention_page(view: PixelAttention, path: str | Path, model: str = "", layer: int = 0, head: int | None = None) -> Path:
    """Writes the page, whole or not at all, and returns its path."""
    return write_atomically(path, image_attention_page(view, model, layer, head).encode())
