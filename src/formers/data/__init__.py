"""Data and their batches: files, folders and named sets as tokens; a training batch is a pure function of (seed, step)."""

from formers.data.babi import open_stories, story
from formers.data.batches import Batch, Batches, Graded, Language, LastWord, Masked, StepGraded
from formers.data.bpe import BPE
from formers.data.collate import Labelled, Pairs, Stories
from formers.data.images import ImageData, ImageOptions, ImageSet, open_images
from formers.data.labelled import open_labelled
from formers.data.lanes import Streams
from formers.data.pairs import open_pairs
from formers.data.reading import Reading
from formers.data.registry import kind_of, open_data
from formers.data.stream import read_text, token_stream
from formers.data.text import Text, open_text
from formers.data.tokenize import Bytes, Characters, Tokenizer
from formers.data.vocabulary import find_tokenizer
from formers.data.words import Words

__all__ = [
    "BPE",
    "Batch",
    "Batches",
    "Bytes",
    "Characters",
    "Graded",
    "ImageData",
    "ImageOptions",
    "ImageSet",
    "Labelled",
    "Language",
    "LastWord",
    "Masked",
    "Pairs",
    "Reading",
    "StepGraded",
    "Stories",
    "Streams",
    "Text",
    "Tokenizer",
    "Words",
    "find_tokenizer",
    "kind_of",
    "open_data",
    "open_images",
    "open_labelled",
    "open_pairs",
    "open_stories",
    "open_text",
    "read_text",
    "story",
    "token_stream",
]
