"""How much a later token moves: the one exception to "no leak", measured.

With reach "chunk" tokens are sorted by bucket and cut into chunks of equal size. A token that changes its bucket moves the cuts, so that
queries before it may gain or lose keys of their past. In the layers above, what these queries have become may change their buckets, too.
With reach "bucket" nothing before a token depends on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.lsh.hashing import in_order
from formers.core import FormersError
from formers.core.random import generator
from formers.inspect.measure.buckets import Buckets, read
from formers.model import Model

PLACES = 16
"""How many tokens are changed in turn, unless a text has fewer."""


class Moved(NamedTuple):
    """What changed before a token when that token alone was changed, the mean over the places where one was."""

    places: int
    """How many tokens were changed in turn."""
    queries: dict[int, float]
    """By layer, the share of the queries before the token, of all heads, that have other keys than before."""
    keys: dict[int, float]
    """By layer, the share of their pairs that came or went: those that meet either before or after, of those that meet at all."""
    predictions: float | None
    """The mean distance (total variation, 0 ... 1) of what is predicted before the token; None where no token is predicted."""


def moved(model: Model, seen: Buckets, places: int = PLACES, seed: int = 0) -> Moved | None:
    """What one later token moves, over the tokens of a text: each of some, evenly spread, becomes another one; None of a model that is not
    causal, which has no earlier tokens.
    """
    if places < 1:
        raise FormersError(f"places={places} changes no token: give at least 1.")
    length, vocab = seen.tokens.shape[1], model.spec.vocab
    if not all(layer.rules.causal for layer in seen.layers) or length < 2 or vocab is None or vocab < 2:
        return None
    before, logits = read(model, seen.tokens)
    met = {layer.step: _met(seen, i, before[layer.step]) for i, layer in enumerate(seen.layers)}
    random = generator(seed, "moved")
    where = sorted({int(t) for t in torch.linspace(1, length - 1, min(places, length - 1))})
    queries: dict[int, list[float]] = {step: [] for step in met}
    keys: dict[int, list[float]] = {step: [] for step in met}
    distances = []
    for t in where:
        other = seen.tokens.clone()
        other[0, t] = (other[0, t] + torch.randint(1, vocab, (1,), generator=random).to(other)) % vocab
        after, there = read(model, other)
        for i, layer in enumerate(seen.layers):
            old, new = met[layer.step][:, :t], _met(seen, i, after[layer.step])[:, :t]
            queries[layer.step].append(float((old != new).any(dim=2).double().mean()))
            keys[layer.step].append(int((old != new).sum()) / max(1, int((old | new).sum())))
        if logits is not None and there is not None and logits.dim() == 3:
            distances.append(_apart(logits[:, :t], there[:, :t]))
    return Moved(len(where), _means(queries), _means(keys), sum(distances) / len(distances) if distances else None)


def moved_facts(found: Moved | None) -> dict[str, Any] | None:
    """What moved, ready for JSON."""
    if found is None:
        return None
    return {
        "places": found.places,
        "queries": {str(step): share for step, share in found.queries.items()},
        "keys": {str(step): share for step, share in found.keys.items()},
        "predictions": found.predictions,
    }


def _met(seen: Buckets, place: int, buckets: Tensor) -> Tensor:
    """Whether (heads, n, n) each query meets each key, with buckets in the place of a layer's own."""
    return seen.layers[place]._replace(hashed=in_order(buckets.cpu())).met() > 0


def _apart(one: Tensor, other: Tensor) -> float:
    """The mean total variation distance of what logits (1, n, vocab) predict."""
    return float((one.double().softmax(-1) - other.double().softmax(-1)).abs().sum(-1).mean()) / 2


def _means(values: dict[int, list[float]]) -> dict[int, float]:
    return {step: sum(each) / len(each) for step, each in values.items()}
