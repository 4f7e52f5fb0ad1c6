"""Output heads: logits and their loss."""

from formers.heads.adaptive import AdaptiveSoftmax
from formers.heads.auxiliary import Auxiliary
from formers.heads.base import Head, NoHead
from formers.heads.classify import Classify
from formers.heads.language import LanguageModel, MaskedLM
from formers.heads.pixels import PixelCategorical, PixelHead, PixelMixture
from formers.heads.policy import PolicyValue
from formers.heads.tag import Tag

__all__ = [
    "AdaptiveSoftmax",
    "Auxiliary",
    "Classify",
    "Head",
    "LanguageModel",
    "MaskedLM",
    "NoHead",
    "PixelCategorical",
    "PixelHead",
    "PixelMixture",
    "PolicyValue",
    "Tag",
]
