"""Small pictures as PNG in a data address, written without a library for images."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def png(image: NDArray[np.uint8]) -> str:
    """The data address of an image (height, width), grey, or (height, width, 3)."""
    height, width = image.shape[:2]
    colour = 0 if image.ndim == 2 else 2
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in parts)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def shaded(weights: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Weights in 0 ... 1 as shades from white to dark blue, small ones spread by a square root."""
    level = np.sqrt(np.clip(weights, 0.0, 1.0))[..., None]
    low, high = np.array([247.0, 250.0, 255.0]), np.array([8.0, 48.0, 107.0])
    return np.round(low + level * (high - low)).astype(np.uint8)


def coloured(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Whole numbers as colours that differ; numbers below 0 are white."""
    hues = np.stack([(numbers * 67 + 40) % 200 + 30, (numbers * 131 + 90) % 200 + 30, (numbers * 29 + 140) % 200 + 30], axis=-1)
    return np.where(numbers[..., None] < 0, 255, hues).astype(np.uint8)
