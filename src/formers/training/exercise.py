"""How a member learns an exercise: which form of it, which batches, and the sizes that it decides.

| the member                                  | learns                                         |
|---------------------------------------------|------------------------------------------------|
| has `features` and `places`                 | vectors with a class at each step, where there are such |
| an encoder-decoder                          | pairs                                          |
| predicts the next token                     | rows source = answer                           |
| a masked language model                     | blanks; labels where the answers are few       |
| a classifier                                | labels                                         |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from formers.core import FormersError
from formers.data.batches import Batches
from formers.data.reading import Reading
from formers.data.tasks import Answers, Blanks, DrawnLabels, DrawnPairs, DrawnVectors, Exercise, Strings, open_strings, open_vectors
from formers.data.tasks.batches import tokenizer_of
from formers.data.tasks.naming import EXERCISES, PREFIX, forms_of, mark, written
from formers.data.tokenize import Bytes, Tokenizer
from formers.family import spec as member_spec
from formers.family.members import MEMBERS
from formers.family.members import member as find_member
from formers.heads import Classify, MaskedLM, Tag
from formers.model import Spec, check

VECTORS = ("features", "classes", "places")
"""The options of a member that learns exercises of vectors, which these decide."""


class Drawn(NamedTuple):
    """An exercise as a model of some spec reads it."""

    tokenizer: Tokenizer
    batches: Batches
    about: str
    fingerprint: str
    labels: tuple[str, ...] | None
    source: str


def exercise_spec(member: str, data: str | Path, preset: str | None, options: dict[str, Any]) -> Spec:
    """The spec of a member that learns an exercise: its vocabulary, classes and so on are the exercise's."""
    known, forms = find_member(member).options, forms_of(data)
    if forms.vectors is not None and reads_vectors(known) and "vocab" not in options:
        return _vector_spec(member, data, preset, options)
    if "vocab" not in known:
        others = ", ".join(name for name in MEMBERS if "vocab" in MEMBERS[name].options)
        vectors = ", ".join(PREFIX + name for name, each in EXERCISES.items() if each.vectors is not None)
        raise FormersError(f"{member} reads vectors, and {data} is text: use {others}, or {vectors}.")
    exercise = open_strings(data)
    probe = member_spec(member, preset=preset, **{"vocab": 256, **options})
    check(probe)
    if isinstance(probe.head, MaskedLM) and exercise.labels is not None and "classes" in known:
        options = {**options, "classes": len(exercise.labels)}
        probe = member_spec(member, preset=preset, **{"vocab": 256, **options})
    if isinstance(probe.head, Classify):
        _fixed(options, "classes", 0 if exercise.labels is None else len(exercise.labels), data)
    vocab = tokenizer_of(exercise, _specials(probe, exercise)).vocab
    if options.get("vocab", vocab) < vocab:
        raise FormersError(f"vocab={options['vocab']} is smaller than the {vocab} ids that {data} needs: leave it out.")
    length = longest(probe, exercise, "train", "valid", "test")
    said = {**find_member(member).presets.get(preset or "", {}), **options}
    fitted = {"length": length} if "length" in known and "length" not in said and length > probe.length else {}
    spec = member_spec(member, preset=preset, **{"vocab": vocab, **options, **fitted})
    check(spec)
    return spec


def reads_vectors(options: list[str]) -> bool:
    """Whether a member with these options learns exercises of vectors."""
    return {"features", "places"} <= set(options)


def drawn(spec: Spec, data: str | Path, reading: Reading = Reading(), tokenizer: Tokenizer | None = None) -> Drawn:
    """An exercise as a model of this spec reads it; a tokenizer that is given must be the exercise's own."""
    if reading.tokens not in (None, "characters"):
        raise FormersError(f"tokens={reading.tokens} cannot be had of {data}, whose tokens are its characters: leave it out.")
    if reading.valid is not None:
        raise FormersError(f"valid={reading.valid} cannot be held against {data}, which has rows of its own held out: leave it out.")
    if spec.features is not None:
        vectors = open_vectors(data)
        _refuse_other(spec, Tag(classes=vectors.classes, places=vectors.places), vectors.features, data)
        return Drawn(Bytes(), DrawnVectors(vectors), vectors.about, mark(vectors), None, written(vectors))  # there is nothing to tokenise
    exercise = open_strings(data)
    own = tokenizer_of(exercise, _specials(spec, exercise))
    if tokenizer is not None and tokenizer != own:
        raise FormersError(f"{data} has other characters than the model knows: train anew, or give a task of the same characters.")
    room = spec.position.table_length(spec.length)
    needed = longest(spec, exercise, "train", "valid")
    if spec.position.bounded and needed > room:
        raise FormersError(f"{data} has rows of up to {needed} tokens, more than length={spec.length}: use --set length={needed}.")
    batches: Batches
    if spec.encoder is not None:
        batches = DrawnPairs(exercise, own)
    elif isinstance(spec.head, Classify):
        batches = DrawnLabels(exercise, max(spec.length, longest(spec, exercise, "train", "valid", "test")), own)
    else:
        batches = (Answers if spec.head.generates else Blanks)(exercise, own)
    labels = exercise.labels if isinstance(spec.head, Classify) else None
    return Drawn(own, batches, exercise.about, mark(exercise), labels, written(exercise))


def longest(spec: Spec, exercise: Strings, *parts: str) -> int:
    """The most tokens of a row of these parts, as a model of this spec reads it."""
    sizes = [exercise.longest(size) for part in parts for size in exercise.span(part)]
    source, answer = (max(side) for side in zip(*sizes, strict=True))
    if spec.encoder is not None:
        return max(source, answer + 1)
    if isinstance(spec.head, Classify):
        return source
    return source + 1 + answer + (0 if spec.head.generates else 1)  # the end is a blank, and a language model reads all but it


def _vector_spec(member: str, data: str | Path, preset: str | None, options: dict[str, Any]) -> Spec:
    exercise = open_vectors(data)
    sizes = {name: getattr(exercise, name) for name in VECTORS}
    for name, size in sizes.items():
        _fixed(options, name, size, data)
    spec = member_spec(member, preset=preset, **{**options, **sizes})
    check(spec)
    return spec


def _fixed(options: dict[str, Any], name: str, size: int, data: str | Path) -> None:
    """Refuses another size than the exercise has."""
    if size == 0:
        labelled = ", ".join(PREFIX + name for name, forms in EXERCISES.items() if forms.strings.labels is not None)
        raise FormersError(f"{name}={options[name]} asks for one label a row, and {data} asks for a text: leave it out, or use {labelled}.")
    if options.get(name) not in (None, size):
        raise FormersError(f"{name}={options[name]} does not fit {data}, which has {size}: leave it out.")


def _specials(spec: Spec, exercise: Exercise) -> tuple[str, ...]:
    """The special tokens that the rows of an exercise need."""
    if spec.encoder is not None:
        return ("begin", "end")
    if spec.head.generates:
        return ("end",)
    if isinstance(spec.head, MaskedLM):
        return ("end", "mask")
    if isinstance(spec.head, Classify):
        return ()
    raise FormersError(
        f"{spec.name} with the {type(spec.head).__name__} head cannot learn {PREFIX}{exercise.name}: use an encoder-decoder such as "
        "transformer, a language model such as decoder, or encoder."
    )


def _refuse_other(spec: Spec, head: Tag, features: int, data: str | Path) -> None:
    if spec.head != head or spec.features != features:
        raise FormersError(
            f"{data} has {features} features, {head.classes} classes and {head.places} places a step, and the model is not made for "
            "them: train anew."
        )
