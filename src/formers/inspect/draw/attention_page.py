"""Attention maps as an HTML page: one file that works offline, with every view, layer and head in it."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from formers import __version__
from formers.core import FormersError
from formers.inspect.draw.html_page import assemble_page, write_atomically
from formers.inspect.measure.attention import View

FINE = 1_000_000
"""Up to this many weights a page stores 16 bits each, beyond that 8: 6 layers of 8 heads over 200 tokens are 2.6 MB."""
MOST = 16_000_000
"""Maximum number of weights of a page: 21 MB."""


def attention_page(views: Sequence[View], model: str = "", layer: int = 0, head: int | None = None, first: int = 0) -> str:
    """The page of some views as HTML; `layer`, `head` (None: the mean of heads) and the view `first` are what it opens with."""
    _check_size(views)
    views[first].chosen(layer, head)  # raises for what does not exist
    bits = 16 if _weights(views) <= FINE else 8
    data = {
        "version": __version__,
        "model": model,
        "start": {"view": first, "layer": layer, "head": -1 if head is None else head},
        "views": [_packed(view, bits) for view in views],
    }
    return assemble_page("attention.html", "attention.js", ("attention.css",), f"Attention of {model}" if model else "Attention", data)


def save_attention_page(
    views: Sequence[View], path: str | Path, model: str = "", layer: int = 0, head: int | None = None, first: int = 0
) -> Path:
    """Writes the page of some views, whole or not at all, and returns its path."""
    return write_atomically(path, attention_page(views, model, layer, head, first).encode())


def quantised(weights: Tensor, bits: int) -> bytes:
    """Weights in 0 ... 1 as unsigned integers of 8 or 16 bits, the lowest byte first: 0 stays 0, 1 is the largest, no weight moves
    by more than half a step.
    """
    steps = weights.cpu().double().clamp(0.0, 1.0).mul(2**bits - 1).round().numpy()
    return steps.astype(np.dtype(f"<u{bits // 8}")).tobytes()


def _packed(view: View, bits: int) -> dict[str, Any]:
    return {
        "title": view.title,
        "queries": view.queries,
        "keys": view.keys,
        "names": dict(zip(("queries", "keys"), view.sides, strict=True)),
        "note": view.note,
        "same": view.same,
        "projected": view.projected,
        "memory": view.memory,
        "layers": view.layers,
        "heads": view.heads,
        "bits": bits,
        "weights": base64.b64encode(quantised(view.weights, bits)).decode(),
    }


def _weights(views: Sequence[View]) -> int:
    return sum(view.weights.numel() for view in views)


def _check_size(views: Sequence[View]) -> None:
    if not views:
        raise FormersError("there is no attention to show: give at least one view.")
    count = _weights(views)
    if count > MOST:
        longest = max(max(len(view.queries), len(view.keys)) for view in views)
        fits = max(1, math.floor(longest * math.sqrt(MOST / count)))
        raise FormersError(
            f"a page of {count:,} weights would be too large for a browser ({MOST:,} at most): cut the text from {longest:,} to about "
            f"{fits:,} tokens, or write a .png."
        )
