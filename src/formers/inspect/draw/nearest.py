"""Pictures of samples, each above its nearest training image."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from formers.inspect.draw.images import Rgb, rows_with_titles, save_png
from formers.inspect.measure.nearest import nearest_images


def nearest_picture(samples: Tensor, training: Tensor, levels: int, columns: int = 8) -> Rgb:
    """Samples, below each its nearest training image, and the distance between them."""
    found = nearest_images(samples, training, levels)
    captions = ["identical" if distance == 0 else f"{distance:.2f}" for distance in found.distance.tolist()]
    rows = {"samples": samples.cpu(), "nearest in training": training.cpu()[found.place]}
    return rows_with_titles(rows, levels, columns, captions)


def save_nearest(path: str | Path, samples: Tensor, training: Tensor, levels: int, columns: int = 8) -> Path:
    """Writes the picture of samples and their nearest training images as a PNG file, and returns its path."""
    return save_png(path, nearest_picture(samples, training, levels, columns))
