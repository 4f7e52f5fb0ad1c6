"""Labels for texts, with the probability of each: p = softmax(logits) of a model whose head classifies."""

from __future__ import annotations

import logging
from typing import NamedTuple, overload

import torch

from formers.core import FormersError
from formers.data.batches import pad
from formers.generation.compose import check_ids
from formers.generation.kinds import refuse_other
from formers.generation.line import tokenizer_of
from formers.model import Model, evaluating

log = logging.getLogger(__name__)

BATCH = 64
"""Texts that are read side by side by default."""


class Classified(NamedTuple):
    """The most probable label of a text, and the probability of every label."""

    label: str
    probabilities: dict[str, float]


@overload
def classify(model: Model, texts: str, batch: int = BATCH) -> Classified: ...
@overload
def classify(model: Model, texts: list[str], batch: int = BATCH) -> list[Classified]: ...
def classify(model: Model, texts: str | list[str], batch: int = BATCH) -> Classified | list[Classified]:
    """The label of a text, or of each of several, with the probability of every label, the most probable first.

    A text is cut off at the length that the model was trained with, as in training. The labels are those of the data that it learned from.
    """
    refuse_other(model, "classify")
    given = checked_texts([texts] if isinstance(texts, str) else texts)
    if batch < 1:
        raise FormersError(f"batch={batch} reads nothing: give 1 or more.")
    encode, length = tokenizer_of(model).encode, model.spec.length
    ids = [encode(text) for text in given]
    long = sum(len(row) > length for row in ids)
    if long:
        log.warning("%d texts have more than length=%d tokens: they are cut off there", long, length)
    vocab = model.spec.vocab
    assert vocab is not None
    classes = getattr(model.spec.head, "classes", 0)
    labels = model.labels or tuple(map(str, range(classes)))
    device = next(model.parameters()).device
    found: list[Classified] = []
    for start in range(0, len(ids), batch):
        tokens, mask = pad([row[:length] for row in ids[start : start + batch]])
        check_ids(tokens[mask].tolist(), vocab)
        with evaluating(model), torch.no_grad():
            logits = model(tokens.to(device), mask=mask.to(device)).logits
        for row in logits.cpu().double().softmax(dim=-1).tolist():
            ranked = sorted(zip(labels, row, strict=True), key=lambda pair: -pair[1])
            found.append(Classified(ranked[0][0], dict(ranked)))
    return found[0] if isinstance(texts, str) else found


def checked_texts(texts: list[str]) -> list[str]:
    """Texts as a list, after refusing what is none, and empty ones."""
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise FormersError(f"the texts are a {type(texts).__name__}: give a text, or a list of texts.")
    if not texts:
        raise FormersError("the list of texts is empty: give at least one.")
    for number, text in enumerate(texts, 1):
        if not text:
            raise FormersError(f"text {number} is empty: give at least one character.")
    return list(texts)
