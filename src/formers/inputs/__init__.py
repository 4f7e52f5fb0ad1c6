"""Input embeddings: from tokens or vectors to vectors of the model width."""

from formers.inputs.base import Input, InputModule, InputSizes
from formers.inputs.images import ChannelValues, Pixels
from formers.inputs.observations import Observations
from formers.inputs.tokens import Facts, Tokens
from formers.inputs.vectors import Features

__all__ = ["ChannelValues", "Facts", "Features", "Input", "InputModule", "InputSizes", "Observations", "Pixels", "Tokens"]
