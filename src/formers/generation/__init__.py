"""Writing: sampling with the exact decoding cache."""

from formers.generation.sample import answer, generate

__all__ = ["answer", "generate"]
