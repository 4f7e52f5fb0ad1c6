"""Text, pairs and their batches; a batch is a pure function of (seed, step)."""

from formers.data.batches import Batch, Language, Masked, Pairs
from formers.data.text import Text, read_text
from formers.data.tokenize import Bytes, Tokenizer

__all__ = ["Batch", "Bytes", "Language", "Masked", "Pairs", "Text", "Tokenizer", "read_text"]
