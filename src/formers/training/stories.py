"""Training on stories (bAbI): the data set the vocabulary, the answers, the words per fact and the facts per row."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from formers.core import FormersError
from formers.data.babi import StoryData, open_stories
from formers.data.collate import Stories
from formers.data.reading import Reading
from formers.data.tokenize import Tokenizer
from formers.data.words import Words, build_words
from formers.family import members
from formers.family import spec as member_spec
from formers.family.members import member as find_member
from formers.model import Spec, check

log = logging.getLogger(__name__)

FACTS = 70
"""Default maximum number of facts in a row: longer stories are few, and make every batch with one of them slow."""


def prepare_stories(
    member: str, data: str | Path, preset: str | None, options: dict[str, Any], reading: Reading
) -> tuple[Spec, Words, StoryData]:
    """The spec of a member for some stories, the tokenizer, and the stories."""
    known = find_member(member)
    refuse_reader(str(data), member, "fact" in known.options)
    said = {**known.presets.get(preset or "", {}), **options}
    for name in ("decoder_steps", "decoder_layers"):
        if said.get(name):
            raise FormersError(f"{name}={said[name]} makes a decoder, and {data} is answered by a class: leave {name} out.")
    check(member_spec(member, preset=preset, **{"vocab": 256, "classes": 2, "fact": 1, **options}))  # checked before the data are read
    opened = open_stories(data, reading)
    answers = len(opened.labels)
    if said.get("classes") not in (None, answers):
        raise FormersError(f"classes={said['classes']} does not fit {data}, which has {answers} answers: leave it out.")
    tokenizer = build_words((f"{fact}\n" for fact in opened.facts("train")), said.get("vocab"))
    sizes = {"fact": opened.widest, "length": min(opened.longest, FACTS), "pool": "last"}  # the last is the question
    fitted = {name: size for name, size in sizes.items() if name in known.options and name not in said}
    spec = member_spec(member, preset=preset, **{**options, **fitted, "vocab": tokenizer.vocab, "classes": answers})
    check(spec)
    return spec, tokenizer, opened


def story_batches(spec: Spec, tokenizer: Tokenizer, data: StoryData) -> Stories:
    """The batches of a spec that reads facts; facts and words that do not fit are left out, with a warning."""
    assert spec.fact is not None
    name, stories = data.parts.name, [row for part in data.parts.values() for row in part]
    if long := sum(len(row.facts) > spec.length for row in stories):
        log.warning("%s: %d of %d rows have more than length=%d facts: their oldest are left out", name, long, len(stories), spec.length)
    facts = data.facts(*data.parts)
    if wide := sum(len(fact.split()) > spec.fact for fact in facts):
        log.warning("%s: %d of %d facts have more than fact=%d words: their last are left out", name, wide, len(facts), spec.fact)
    known = set(tokenizer.words) if isinstance(tokenizer, Words) else set()
    if strange := {word for fact in facts for word in fact.split()} - known:
        log.warning("%s: %d words do not occur in training, such as %s", name, len(strange), min(strange))
    return Stories(data.parts, data.labels, spec.length, spec.fact, tokenizer)


def refuse_reader(data: str, name: str, reads: bool) -> None:
    """Raises for a member or a model that cannot read facts."""
    if not reads:
        others = " or ".join(other for other in members() if "fact" in find_member(other).options)
        raise FormersError(f"{data} has stories of facts, which {name} does not read: train {others} on it.")
