"""The buckets of LSH attention over a text, and the pairs of tokens that meet in them, for each layer.

What is counted is what `attention.pair_counts` says, the truth of LSH attention; here it is asked about one row of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention import LSH
from formers.attention.lsh.hashing import Hashed, in_order
from formers.attention.lsh.reference import Rules, pair_counts
from formers.core import FormersError, Watch
from formers.generation import tokenizer_of
from formers.inspect.measure.token_labels import token_labels
from formers.model import Model, StackModel, evaluating
from formers.model.inspection import BUCKETS

TOKENS = 2048
"""The most tokens whose pairs are counted: a pair of them has a number in every round and head."""


class LayerBuckets(NamedTuple):
    """An LSH layer's buckets over one row of tokens, and how far it looks."""

    step: int
    """Which layer it is, counted from 0."""
    hashed: Hashed
    """(1, heads, rounds, length)"""
    rules: Rules
    buckets: int
    """How many there are."""

    @property
    def rounds(self) -> int:
        return self.hashed.buckets.shape[2]

    @property
    def length(self) -> int:
        return self.hashed.buckets.shape[3]

    def head(self, head: int, round: int | None = None) -> LayerBuckets:
        """The same layer with one of its heads alone, and with one of its rounds where one is given."""
        rounds = slice(None) if round is None else slice(round, round + 1)
        return self._replace(hashed=Hashed(*(t[:, head : head + 1, rounds] for t in self.hashed)))

    def met(self) -> Tensor:
        """How often (heads, n, n) each query meets each key, in how many rounds; a token itself does not count."""
        each = self.rules._replace(duplicates=True)
        return without_self(torch.cat([pair_counts(self.head(h).hashed, each)[0] for h in range(self.hashed.buckets.shape[1])]))


class Figures(NamedTuple):
    """Statistics of the buckets of a layer, means over heads and rounds unless stated otherwise."""

    used: float
    """Buckets that hold a token."""
    largest: int
    """Tokens in the largest bucket of any head and round."""
    keys: float
    """Keys that a query sees beside itself, over all rounds."""
    most_keys: int
    """The most that any query sees."""
    alone: float
    """The share of queries that see no key but themselves."""
    several: float | None
    """The share of the pairs that meet which meet in several rounds; None where there is one round, or no pair meets."""
    dropped: float | None
    """The share of the pairs in one bucket that reach "chunk" does not let meet; None where no two tokens share a bucket."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """The buckets of a model's LSH layers over a text."""

    name: str
    labels: list[str]
    """The tokens, as labels."""
    tokens: Tensor
    """(1, length)"""
    layers: list[LayerBuckets]
    """Its LSH layers, in their order."""

    def chosen(self, layer: int | None = None, head: int = 0, round: int = 0) -> LayerBuckets:
        """The layer of a number, the first with buckets unless given; refuses heads and rounds that it has not."""
        steps = [each.step for each in self.layers]
        if layer is not None and layer not in steps:
            raise FormersError(f"layer={layer} of {self.name} has no buckets: give one of {', '.join(map(str, steps))}.")
        found = self.layers[0 if layer is None else steps.index(layer)]
        for name, value, count in (("head", head, found.hashed.buckets.shape[1]), ("round", round, found.rounds)):
            if not 0 <= value < count:
                raise FormersError(f"{name}={value} is none of layer {found.step}'s: give 0 ... {count - 1}.")
        return found


def buckets_of(model: Model, tokens: Tensor, name: str = "") -> Buckets:
    """The buckets of one row of tokens (1, length), as a model has them in evaluation."""
    name = name or model.spec.name or "this model"
    if model.spec.encoder is not None:
        raise FormersError(f"{name} reads a source and writes a target, and buckets are drawn of one text: use a member with one stack.")
    if not isinstance(model, StackModel) or not any(isinstance(kind, LSH) for kind in model.spec.attention.kinds):
        raise FormersError(f"{name} has no LSH attention, so that nothing has buckets: use a reformer, or attention=LSH() in a spec.")
    if not 1 <= tokens.shape[1] <= TOKENS:
        raise FormersError(f"{tokens.shape[1]:,} tokens cannot be looked at pair by pair: give 1 ... {TOKENS:,}.")
    labels = token_labels(tokenizer_of(model), tokens[0].tolist())
    layers = [_layer(model, step, found) for step, found in read(model, tokens)[0].items()]
    return Buckets(name, labels, tokens, layers)


def read(model: Model, tokens: Tensor) -> tuple[dict[int, Tensor], Tensor | None]:
    """The buckets (1, heads, rounds, length) of each LSH layer by its number, and the logits (1, length, vocab)."""
    watch = Watch(BUCKETS)
    with evaluating(model), torch.no_grad():
        logits = model(tokens, watch=watch).logits
    return dict(sorted(watch.notes[BUCKETS].items())), logits


def _layer(model: StackModel, step: int, buckets: Tensor) -> LayerBuckets:
    spec = model.spec
    block = step % len(model.stack.depth.blocks)  # a block that is applied again hashes again, by its own rules
    part = spec.attention.at(block)
    assert isinstance(part, LSH)
    count = int(torch.tensor(part.factors(spec.sizes.length)).prod())
    return LayerBuckets(step, in_order(buckets.cpu()), part.rules(spec.pattern.at(step).is_causal), count)


def dropped_share(hashed: Hashed, rules: Rules, real: Tensor | None = None) -> float | None:
    """The share of pairs in one bucket in some round that reach "chunk" does not let meet; None where there is no such pair.

    A pair is a query and a key other than itself, which the query may see: in causal attention an earlier one. The share is that of all
    heads and rows together; real (batch, n) says which are tokens.
    """
    within, dropped = _in_bucket(hashed, rules, real)
    return dropped / within if within else None


def _in_bucket(hashed: Hashed, rules: Rules, real: Tensor | None = None) -> tuple[int, int]:
    """The number of pairs in one bucket in some round, and of those among them that no chunk lets meet."""
    within = dropped = 0
    for head in range(hashed.buckets.shape[1]):  # one at a time, to limit memory
        one = Hashed(*(t[:, head : head + 1] for t in hashed))
        whole = without_self(pair_counts(one, rules._replace(reach="bucket", across_buckets=False), real)) > 0
        near = pair_counts(one, rules._replace(reach="chunk"), real) > 0
        within += int(whole.sum())
        dropped += int((whole & ~near).sum())
    return within, dropped


def figures(layer: LayerBuckets) -> Figures:
    """The statistics of a layer's buckets."""
    found = layer.hashed.buckets[0].long()  # (heads, rounds, n)
    counts = torch.stack([torch.bincount(row, minlength=layer.buckets) for row in found.flatten(0, 1)])
    met = layer.met()
    keys, pairs = (met > 0).sum(dim=2), int((met > 0).sum())
    return Figures(
        used=float((counts > 0).sum(dim=1).double().mean()),
        largest=int(counts.max()),
        keys=float(keys.double().mean()),
        most_keys=int(keys.max()),
        alone=float((keys == 0).double().mean()),
        several=int((met > 1).sum()) / pairs if pairs and layer.rounds > 1 else None,
        dropped=dropped_share(layer.hashed, layer.rules),
    )


def buckets_facts(seen: Buckets, layer: int | None = None, head: int = 0, round: int = 0) -> dict[str, Any]:
    """What is drawn, ready for JSON: the figures of every LSH layer, and the buckets and keys of the one that is looked at."""
    shown = seen.chosen(layer, head, round)
    met = shown.head(head).met()[0]
    return {
        "model": seen.name,
        "tokens": seen.labels,
        "layers": [
            {"layer": each.step, "rounds": each.rounds, "chunk": each.rules.chunk, "reach": each.rules.reach, "causal": each.rules.causal,
             "buckets": each.buckets, **figures(each)._asdict()}
            for each in seen.layers
        ],
        "layer": shown.step,
        "head": head,
        "round": round,
        "buckets": shown.hashed.buckets[0, head, round].tolist(),
        "order": shown.hashed.order[0, head, round].tolist(),
        "keys": [row.nonzero()[:, 0].tolist() for row in met],
    }  # fmt: skip


def without_self(met: Tensor) -> Tensor:
    """Meetings (..., n, n) without those of a token with itself."""
    return met * ~torch.eye(met.shape[-1], dtype=torch.bool, device=met.device)
