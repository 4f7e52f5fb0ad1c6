"""What a member is trained on: its spec decides which batches it needs, and the data decides its vocabulary."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

from formers.core import FormersError
from formers.data import Bytes, Language, Masked, Pairs, Tokenizer, read_text
from formers.data.batches import Batches
from formers.data.pairs import read_pairs
from formers.data.text import Text
from formers.family import spec as member_spec
from formers.heads import LanguageModel, MaskedLM
from formers.model import Spec, check
from formers.position import Learned

log = logging.getLogger(__name__)


class Task(NamedTuple):
    """A spec with the vocabulary of its data, the batches to train and judge it on, and what they were made of."""

    spec: Spec
    tokenizer: Tokenizer
    batches: Batches
    about: str
    text: Text | None
    """The text itself, for members that read one."""


def prepare(member: str, data: str | Path, preset: str | None = None, options: dict[str, Any] | None = None) -> Task:
    """The task that a member and its data make."""
    options = options or {}
    probe = member_spec(member, preset=preset, **{"vocab": 256, **options})
    tokenizer = tokenizer_for(probe)
    vocab = probe.vocab if "vocab" in options and probe.vocab is not None else tokenizer.vocab
    if vocab < tokenizer.vocab:
        raise FormersError(f"vocab={vocab} is smaller than the {tokenizer.vocab} ids of the data: leave it out.")
    made = member_spec(member, preset=preset, **{**options, "vocab": vocab})
    check(made)  # before the data are read
    return task_of(made, tokenizer, data)


def task_of(spec: Spec, tokenizer: Tokenizer, data: str | Path) -> Task:
    """The task of a spec whose tokenizer is known, as that of a saved run."""
    if spec.encoder is not None:
        if not str(data).endswith(".tsv"):
            raise FormersError(
                f"{spec.name} learns from pairs and {str(data)!r} has none: give a .tsv file with a pair a line, source, tab, target."
            )
        pairs = read_pairs(data, tokenizer)
        longest = max(max(len(a), len(b) + 1) for a, b in (*pairs.train, *pairs.valid))
        if isinstance(spec.position, Learned) and longest > spec.length:
            raise FormersError(f"{data} has texts of up to {longest} tokens, more than length={spec.length}: use --set length={longest}.")
        return Task(spec, tokenizer, Pairs(pairs.train, pairs.valid, tokenizer), pairs.about, None)
    text = read_text(data)
    if len(text.train) < spec.length:
        log.warning("%s has %d tokens to learn from, fewer than length=%d: windows are that short", data, len(text.train), spec.length)
    if isinstance(spec.head, MaskedLM):
        return Task(spec, tokenizer, Masked(text.train, text.valid, spec.length, tokenizer), text.about, text)
    return Task(spec, tokenizer, Language(text.train, text.valid, spec.length), text.about, text)


def tokenizer_for(spec: Spec) -> Tokenizer:
    """Bytes, with the special tokens that a spec's head needs."""
    if spec.encoder is not None:
        return Bytes(specials=("begin", "end"))
    if isinstance(spec.head, MaskedLM):
        return Bytes(specials=("mask",))
    if isinstance(spec.head, LanguageModel):
        return Bytes()
    raise FormersError(
        f"{spec.name} with the {type(spec.head).__name__} head cannot be trained from a text file: call the model yourself, "
        "or leave out `classes` for a masked language model."
    )
