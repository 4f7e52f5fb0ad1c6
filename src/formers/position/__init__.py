"""Positional encodings, added to the token embeddings."""

from formers.position.axial import Axial
from formers.position.base import NoPosition, Position
from formers.position.coordinate import Coordinate
from formers.position.grid import Grid
from formers.position.image import ImagePosition
from formers.position.learned import Learned
from formers.position.per_layer import PerLayer
from formers.position.sinusoidal import Sinusoidal, sinusoid

__all__ = ["Axial", "Coordinate", "Grid", "ImagePosition", "Learned", "NoPosition", "PerLayer", "Position", "Sinusoidal", "sinusoid"]
