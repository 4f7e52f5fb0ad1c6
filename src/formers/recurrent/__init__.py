"""Token mixers that are not attention: recurrent layers, ACT layers, word windows and attentive recurrent decoders."""

from formers.recurrent.act import Pondering
from formers.recurrent.attentive import Aligned
from formers.recurrent.layer import Recurrent
from formers.recurrent.window import Window

__all__ = ["Aligned", "Pondering", "Recurrent", "Window"]
