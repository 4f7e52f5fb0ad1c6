"""Images as integer levels: named sets, folders of image files, and NumPy files."""

from formers.data.images.batches import Cells, ImageBatches
from formers.data.images.binary import draw_binary, evaluated, fixed_binary
from formers.data.images.opening import open_images
from formers.data.images.values import ImageData, ImageOptions, ImageSet

__all__ = [
    "Cells",
    "ImageBatches",
    "ImageData",
    "ImageOptions",
    "ImageSet",
    "draw_binary",
    "evaluated",
    "fixed_binary",
    "open_images",
]
