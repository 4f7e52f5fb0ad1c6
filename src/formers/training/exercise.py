"""How a member is trained on an exercise: its form, the batches, and the sizes that the exercise sets.

| the member                                  | is trained on                                  |
|---------------------------------------------|------------------------------------------------|
| has `features` and `places`                 | vectors with a class at each step, if the exercise has them |
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
"""The options of a member that an exercise of vectors sets."""


class Drawn(NamedTuple):
    """An exercise in the form that a model of some spec reads."""

    tokenizer: Tokenizer
    batches: Batches
    about: str
    fingerprint: str
    labels: tuple[str, ...] | None
    source: str


def exercise_spec(member: str, data: str | Path, preset: str | None, options: dict[str, Any]) -> Spec:
    """The spec of a member for an exercise, which sets its vocabulary, classes and so on."""
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
    """Whether a member with these options is trained on exercises of vectors."""
    return {"features", "places"} <= set(options)


def drawn(spec: Spec, data: str | Path, reading: Reading = Reading(), tokenizer: Tokenizer | None = None) -> Drawn:
    """An exercise in the form that a model of this spec reads; a given tokenizer must be that of the exercise."""
    if reading.tokens not in (None, "characters"):
        raise FormersError(f"tokens={reading.tokens} cannot be used with {data}, whose tokens are its characters: leave it out.")
    if reading.valid is not None:
        raise FormersError(f"valid={reading.valid} cannot be used with {data}, which has its own held-out rows: leave it out.")
    if spec.features is not None:
        vectors = open_vectors(data)
        _refuse_other(spec, Tag(classes=vectors.classes, places=vectors.places), vectors.features, data)
        return Drawn(Bytes(), DrawnVectors(vectors), vectors.about, mark(vectors), None, written(vectors))  # vectors need no tokenizer
    exercise = open_strings(data)
    own = tokenizer_of(exercise, _specials(spec, exercise))
    if tokenizer is not None and tokenizer != own:
        raise FormersError(f"{data} has other characters than the model knows: train a new model, or give a task with the same characters.")
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
    """The maximum number of tokens of a row of these parts, as a model of this spec reads it."""
    sizes = [exercise.longest(size) for part in parts for size in exercise.span(part)]
    source, answer = (max(side) for side in zip(*sizes, strict=True))
    if spec.encoder is not None:
        return max(source, answer + 1)
    if isinstance(spec.head, Classify):
        return source
    return source + 1 + answer + (0 if spec.head.generates else 1)  # the end token is a blank; a language model does not read it


def _vector_spec(member: str, data: str | Path, preset: str | None, options: dict[str, Any]) -> Spec:
    exercise = open_vectors(data)
    sizes = {name: getattr(exercise, name) for name in VECTORS}
    for name, size in sizes.items():
        _fixed(options, name, size, data)
    spec = member_spec(member, preset=preset, **{**options, **sizes})
    check(spec)
    return spec


def _fixed(options: dict[str, Any], name: str, size: int, data: str | Path) -> None:
    """Raises if a size is given that differs from that of the exercise."""
    if size == 0:
        labelled = ", ".join(PREFIX + name for name, forms in EXERCISES.items() if forms.strings.labels is not None)
        raise FormersError(f"{name}={options[name]} is for labels, and {data} has texts as answers: leave it out, or use {labelled}.")
    if options.get(name) not in (None, size):
        raise FormersError(f"{name}={options[name]} does not match {data}, which has {size}: leave it out.")


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
        f"{spec.name} with the {type(spec.head).__name__} head cannot train on {PREFIX}{exercise.name}: use an encoder-decoder such as "
        "transformer, a language model such as decoder, or encoder."
    )


def _refuse_other(spec: Spec, head: Tag, features: int, data: str | Path) -> None:
    if spec.head != head or spec.features != features:
        raise FormersError(
            f"{data} has {features} features, {head.classes} classes and {head.places} places per step, which do not match the model: "
            "train a new one."
        )
