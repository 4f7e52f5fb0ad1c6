"""Generation: sampling and beam search with an exact KV cache."""

from formers.generation.images import Drawn, sample_images
from formers.generation.line import Line, tokenizer_of
from formers.generation.options import Options
from formers.generation.write import answer, generate, stream, stream_with, texts, whole_text

__all__ = [
    "Drawn",
    "Line",
    "Options",
    "answer",
    "generate",
    "sample_images",
    "stream",
    "stream_with",
    "texts",
    "tokenizer_of",
    "whole_text",
]
