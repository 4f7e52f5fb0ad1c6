"""Where a token stands, added to what it is."""

from formers.position.base import NoPosition, Position
from formers.position.learned import Learned
from formers.position.sinusoidal import Sinusoidal, sinusoid

__all__ = ["Learned", "NoPosition", "Position", "Sinusoidal", "sinusoid"]
