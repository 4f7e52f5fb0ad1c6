"""Generation: sampling and beam search with an exact KV cache."""

from formers.generation.classify import Classified, classify
from formers.generation.images import Drawn, sample_images
from formers.generation.line import Line, tokenizer_of
from formers.generation.options import Options
from formers.generation.translate import translate
from formers.generation.write import answer, generate, stream, stream_with, texts, whole_text

__all__ = [
    "Classified",
    "Drawn",
    "Line",
    "Options",
    "answer",
    "classify",
    "generate",
    "sample_images",
    "stream",
    "stream_with",
    "texts",
    "tokenizer_of",
    "translate",
    "whole_text",
]
