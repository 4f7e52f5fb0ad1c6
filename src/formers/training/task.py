"""The task of a member and its data: the spec determines the batches, the data determine the vocabulary and the classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from formers.core import FormersError
from formers.core.paths import given_path
from formers.data.babi import StoryData
from formers.data.batches import Batches, Language, LastWord, Masked
from formers.data.catalogue import default_tokens
from formers.data.collate import Labelled, Pairs
from formers.data.examples import Examples
from formers.data.files import Lazy, Parts
from formers.data.images import ImageBatches, ImageData
from formers.data.lanes import Streams
from formers.data.numbers import NumberPairs
from formers.data.pairs import Encoded
from formers.data.passages import Passages
from formers.data.reading import Reading
from formers.data.registry import kind_of, open_data
from formers.data.stream import token_stream
from formers.data.text import Text, TextData
from formers.data.tokenize import Bytes, Tokenizer
from formers.data.vocabulary import find_tokenizer
from formers.data.words import Words
from formers.evaluation.protocol import Protocol
from formers.family import spec as member_spec
from formers.family.members import member as find_member
from formers.heads import AdaptiveSoftmax, Classify, LanguageModel, MaskedLM
from formers.memory import NoMemory
from formers.model import Spec, check
from formers.training.exercise import drawn, exercise_spec
from formers.training.images import open_for, prepare_images
from formers.training.stories import prepare_stories, refuse_reader, story_batches

log = logging.getLogger(__name__)

DATA = "a file, a folder, a glob such as 'texts/*.txt', or a name such as stdlib"
"""Accepted data, for error messages."""
WORDS = 1 << 30
"""A vocabulary larger than that of any data, before words are counted."""


class Task(NamedTuple):
    """A spec with the vocabulary of its data, the batches for training and evaluation, and where they come from."""

    spec: Spec
    tokenizer: Tokenizer | None
    """None if there is no text."""
    batches: Batches
    about: str
    text: Text | None
    """The bytes themselves, for members that read them as tokens."""
    fingerprint: str = ""
    """The sha256 of the data and of how they were split."""
    labels: tuple[str, ...] | None = None
    """The classes in the order of their numbers."""
    source: str = ""
    """The absolute name, which opens the same data from any folder."""
    protocol: Protocol = Protocol()
    """How texts are read in an evaluation."""


def prepare(
    member: str, data: str | Path, preset: str | None = None, options: dict[str, Any] | None = None, reading: Reading = Reading()
) -> Task:
    """The task of a member and its data."""
    given_path("data", data, DATA)
    options, kind = dict(options or {}), kind_of(data)
    if kind == "task":
        return _exercise(exercise_spec(member, data, preset, options), data, reading)
    if kind == "stories":
        return _task(*prepare_stories(member, data, preset, options, reading))
    reads_only_images = "levels" in find_member(member).options
    if kind == "images" or reads_only_images:  # opening other data raises
        return _of_images(*prepare_images(member, data, preset, options, reading))
    return _prepare_text(member, data, preset, options, reading, has_labels=kind == "labels")


def _prepare_text(member: str, data: str | Path, preset: str | None, options: dict[str, Any], reading: Reading, has_labels: bool) -> Task:
    """The task of a running text, of labelled texts or of pairs."""
    unknown = WORDS if options.get("cutoffs") else 256
    probe = member_spec(member, preset=preset, **{"vocab": unknown, **options})
    check(probe)  # this and the vocabulary are checked before the data are read
    tokens = reading.tokens or default_tokens(data, words="cutoffs" in find_member(member).options)
    specials = _specials(probe)
    vocab = probe.vocab if "vocab" in options else None
    if vocab is not None and tokens not in ("characters", "words"):
        _refuse_small(vocab, 256 + len(specials))
    if "classes" in find_member(member).options and isinstance(probe.head, MaskedLM) and has_labels:
        probe, specials = member_spec(member, preset=preset, **{"vocab": 256, **options, "classes": 2}), ()
        options["classes"] = None
    opened = _open(probe, data, reading)
    assert isinstance(opened, TextData | Examples)
    tokenizer = find_tokenizer(tokens, opened, specials, vocab)
    if vocab is not None and tokens not in ("bpe", "words"):  # a small text may have fewer ids than requested
        _refuse_small(vocab, tokenizer.vocab)
    else:
        options["vocab"] = tokenizer.vocab
    if isinstance(probe.head, Classify) and isinstance(opened, Examples) and opened.labels is not None:
        if options["classes"] not in (None, len(opened.labels)):
            raise FormersError(f"classes={options['classes']} does not fit {data}, which has {len(opened.labels)} labels: leave it out.")
        options["classes"] = len(opened.labels)
    spec = member_spec(member, preset=preset, **options)
    check(spec)
    return _task(spec, tokenizer, opened)


def task_of(
    spec: Spec, tokenizer: Tokenizer | None, data: str | Path, reading: Reading = Reading(), labels: Sequence[str] | None = None
) -> Task:
    """The task of a spec with a given tokenizer and labels, such as those of a saved run."""
    kind = kind_of(data)
    if kind == "images":
        return _of_images(spec, *open_for(spec, data, reading))
    if kind == "task":
        return _exercise(spec, data, reading, tokenizer)
    if tokenizer is None:
        raise FormersError(
            f"{spec.name or 'this model'} has no tokenizer, so {data} cannot be read: give data of the kind it was trained on."
        )
    if kind == "passages":
        return _passages(spec, data, tokenizer)
    return _task(spec, tokenizer, _open(spec, data, reading, labels))


def _passages(spec: Spec, data: str | Path, tokenizer: Tokenizer) -> Task:
    """The task of passages whose last word is predicted."""
    opened = open_data(data, kind="passages")
    assert isinstance(opened, Passages)
    if not spec.head.generates or spec.encoder is not None:
        raise FormersError(f"{data} needs next-word prediction, which {spec.name} does not do: use a language model.")
    if isinstance(tokenizer, Words):
        raise FormersError(f"{data} is plain text, and words between spaces do not fit it: evaluate a model of bytes or bpe on it.")
    batches = LastWord(opened.parts, spec.length, tokenizer)
    return Task(spec, tokenizer, batches, opened.about, None, opened.fingerprint, None, opened.source)


def _of_images(spec: Spec, data: ImageData, batches: ImageBatches) -> Task:
    """The task of images."""
    return Task(spec, None, batches, data.about, None, data.fingerprint, data.labels, data.source)


def _exercise(spec: Spec, data: str | Path, reading: Reading, tokenizer: Tokenizer | None = None) -> Task:
    """The task of an exercise."""
    made = drawn(spec, data, reading, tokenizer)
    return Task(spec, made.tokenizer, made.batches, made.about, None, made.fingerprint, made.labels, made.source)


def _open(spec: Spec, data: str | Path, reading: Reading, labels: Sequence[str] | None = None) -> TextData | Examples | StoryData:
    """The data, opened as the kind that a model of the spec reads."""
    kind = kind_of(data)
    if kind == "stories":
        refuse_reader(str(data), spec.name, spec.fact is not None)
    elif spec.fact is not None:
        raise FormersError(f"{data} has no facts, and {spec.name} with fact={spec.fact} only reads facts: give stories, such as babi:1.")
    elif spec.encoder is not None:
        kind = "pairs"
    elif isinstance(spec.head, Classify):
        kind = "labels"
    else:
        if kind == "labels":
            log.warning("%s has labels or pairs, and %s reads it as plain text, because it does not classify or translate", data, spec.name)
        kind = "text"
    opened = open_data(data, reading, kind, labels=labels, reader=spec.name)
    assert isinstance(opened, TextData | Examples | StoryData)
    for notice in opened.notices if isinstance(opened, TextData) else ():
        log.warning("%s", notice)
    return opened


def _refuse_small(vocab: int, ids: int) -> None:
    if vocab < ids:
        raise FormersError(f"vocab={vocab} is smaller than the {ids} ids that the data need: leave it out.")


def _specials(spec: Spec) -> tuple[str, ...]:
    """The special tokens that a spec's head needs."""
    if spec.encoder is not None:
        return ("begin", "end")
    if isinstance(spec.head, MaskedLM):
        return ("mask",)
    if isinstance(spec.head, AdaptiveSoftmax | LanguageModel | Classify):
        return ()
    raise FormersError(f"{spec.name} with the {type(spec.head).__name__} head cannot be trained from data: call the model yourself.")


def _task(spec: Spec, tokenizer: Tokenizer, data: TextData | Examples | StoryData) -> Task:
    """The task of a spec, its tokenizer and its data."""
    text = None
    batches: Batches
    if isinstance(data, TextData):
        streams = Lazy({part: partial(token_stream, data, part, tokenizer) for part in data.parts}, data.parts.name)
        size = sum(stretch.size for stretch in data.parts["train"])
        if size < spec.length:
            log.warning("%s has %d bytes for training, fewer than length=%d: windows are shorter", streams.name, size, spec.length)
        batches = _over_text(spec, tokenizer, streams)
        if isinstance(tokenizer, Bytes):
            text = Text(streams["train"], streams["valid"], data.about)
    elif isinstance(data, StoryData):
        batches = story_batches(spec, tokenizer, data)
    elif data.labels is not None:
        _say_cuts(spec, tokenizer, data)
        batches = Labelled(data.parts, data.labels, spec.length, tokenizer)
    else:
        _refuse_long(spec, tokenizer, data)
        batches = Pairs(Parts({part: Encoded(pairs, tokenizer) for part, pairs in data.parts.items()}, data.parts.name), tokenizer)
    labels = data.labels if isinstance(data, Examples | StoryData) else None
    return Task(spec, tokenizer, batches, data.about, text, data.fingerprint, labels, data.source)


def _over_text(spec: Spec, tokenizer: Tokenizer, streams: Parts[Any]) -> Batches:
    """Windows, masked windows, or lanes for a member with a memory."""
    if isinstance(spec.head, MaskedLM):
        return Masked(streams, spec.length, tokenizer)
    return (Language if isinstance(spec.memory, NoMemory) else Streams)(streams, spec.length, tokenizer)


def _say_cuts(spec: Spec, tokenizer: Tokenizer, data: Examples) -> None:
    """Warns if labelled texts are longer than the model reads."""
    long = [text for texts in data.parts.values() for text, _ in texts if len(text.encode("utf-8")) > spec.length]
    count = sum(len(tokenizer.encode(text)) > spec.length for text in long)
    if count:
        log.warning("%s has %d texts of more than length=%d tokens: they are cut off there", data.parts.name, count, spec.length)


def _refuse_long(spec: Spec, tokenizer: Tokenizer, data: Examples) -> None:
    """Raises if pairs are longer than the model's table of positions."""
    if not spec.position.bounded:
        return
    pairs = [two for part in data.parts.values() for two in (part.longest if isinstance(part, NumberPairs) else part)]
    longest = max(max(len(tokenizer.encode(source)), len(tokenizer.encode(target)) + 1) for source, target in pairs)
    if longest > spec.position.table_length(spec.length):
        name = data.parts.name
        raise FormersError(f"{name} has texts of up to {longest} tokens, more than length={spec.length}: use --set length={longest}.")
