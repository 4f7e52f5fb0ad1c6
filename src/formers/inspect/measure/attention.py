"""Attention weights of one kind of attention, with the tokens of queries and keys as labels.

w (layers, heads, queries, keys): w[l, h, i, j] is the share of query i's attention that goes to key j. A row sums to 1, or is 0
if a query had no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.core import FormersError
from formers.data import Tokenizer
from formers.data.babi import split_facts, story
from formers.generation import generate, tokenizer_of
from formers.inspect.measure.token_labels import CLOSE, OPEN, label_bytes, token_labels, visible
from formers.model import Model, Seq2Seq, Spec, StackModel, evaluating

SELF, ENCODER, CROSS, ALIGNMENT = "self-attention", "encoder self-attention", "cross-attention", "alignment"
KINDS = {"self": SELF, "encoder": ENCODER, "cross": CROSS}
"""The titles of views, by the short names of the command line."""
NOTHING = "{} has no attention to look at: use a member with attention, such as decoder, or a seq2seq with an alignment."
"""The error message if there are no attention maps."""
SPARE = 50
"""Number of tokens an encoder-decoder may generate beyond twice its source, if no target is given."""
NOTES = {
    CROSS: "A target token's row is where the decoder looked when it had read that token, to write the next.",
    ALIGNMENT: "A row is where the decoder looked to write that part of the target.",
}
"""Notes on the meaning of rows."""
MIXTURES = "A projected key is made of many tokens."


@dataclass(frozen=True, eq=False)
class View:
    """The attention weights of one kind of attention."""

    title: str
    queries: list[str]
    """The labels of the query tokens."""
    keys: list[str]
    """The labels of the key tokens."""
    weights: Tensor
    """(layers, heads, queries, keys), float32; rows sum to 1 or are 0."""
    projected: bool = False
    """Whether each key is a projection of many tokens; keys are then numbered."""
    memory: int = 0
    """How many of the keys, the first ones, are the memory: tokens of segments that were read before."""

    def __post_init__(self) -> None:
        wanted = (len(self.queries), len(self.keys))
        if self.weights.dim() != 4 or self.weights.shape[2:] != wanted or not self.weights.numel():
            raise FormersError(
                f"the weights of {self.title} have shape {tuple(self.weights.shape)}: give (layers, heads, {wanted[0]}, {wanted[1]}), "
                "as many queries and keys as there are tokens, at least one."
            )
        if not bool(self.weights.isfinite().all()):
            raise FormersError(f"the weights of {self.title} are not finite: the training has diverged; use an earlier checkpoint.")

    @property
    def layers(self) -> int:
        return self.weights.shape[0]

    @property
    def heads(self) -> int:
        return self.weights.shape[1]

    @property
    def same(self) -> bool:
        """Whether queries and keys are the same tokens; False for a target that happens to equal its source."""
        return self.title in (SELF, ENCODER) and self.queries == self.keys and not self.projected

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the query side and the key side."""
        if self.title in (CROSS, ALIGNMENT):
            return "target", "source"
        return "query", "projected key" if self.projected else "key"

    @property
    def note(self) -> str:
        """A note on rows or columns."""
        if self.memory:
            return f"The first {self.memory} keys are the memory, tokens that were read before this segment."
        return MIXTURES if self.projected else NOTES.get(self.title, "")

    def chosen(self, layer: int | None = None, head: int | None = None) -> Tensor:
        """The weights (queries, keys) of a layer and a head, counted from 0; the mean over those left out."""
        for name, value, count in (("layer", layer, self.layers), ("head", head, self.heads)):
            if value is not None and not 0 <= value < count:
                raise FormersError(f"{name}={value} is none of the {self.title}'s: give 0 ... {count - 1}.")
        layers = self.weights if layer is None else self.weights[layer : layer + 1]
        heads = layers if head is None else layers[:, head : head + 1]
        return heads.mean(dim=(0, 1))


def views_of(model: Model, text: str, target: str | None = None) -> list[View]:
    """The attention weights of a model over a text: one view, or for an encoder-decoder the encoder's, the decoder's and the
    cross-attention, if they exist. An encoder-decoder's text is its source; its target is its greedy output
    by default. A model with a memory reads a text in segments, and the view is of the last one: its keys are the memory's
    tokens and its own.
    """
    tokenizer = tokenizer_of(model)
    device = next(model.parameters()).device
    if model.spec.fact is not None and isinstance(model, StackModel) and target is None:  # a position is a sentence
        tokens = story(text, tokenizer, model.spec.fact).to(device)
        labels = [f"{number} {fact}" for number, fact in enumerate(split_facts(text), start=1)]
        return [_view(SELF, model.spec, labels, model.inspect(tokens).attention)]
    source = tokenizer.encode(text)
    if not source:
        raise FormersError("the text is empty: give at least one token.")
    read = torch.tensor([source], device=device)
    if isinstance(model, Seq2Seq):
        return _two_sided(model, tokenizer, read, target)
    if target is not None:
        raise FormersError(f"{model.spec.name or 'this model'} reads one text and writes no target: leave the target out.")
    if not isinstance(model, StackModel) or all(kind.carries for kind in model.spec.attention.kinds):
        raise FormersError(NOTHING.format(model.spec.name or "this model"))
    *before, segment = in_segments(model.spec, read)
    state = model.initial_state(1) if before else None
    with evaluating(model), torch.no_grad():
        for piece in before:
            state = model(piece, state=state).state
    labels, maps = token_labels(tokenizer, source), model.inspect(segment, state=state).attention
    if not maps:
        raise FormersError(NOTHING.format(model.spec.name or "this model"))
    if not before:
        return [_view(SELF, model.spec, labels, maps)]
    queries, keys = maps[0].shape[2], max(weights.shape[3] for weights in maps)
    return [View(SELF, labels[-queries:], labels[-keys:], _stacked(maps), memory=keys - queries)]


def in_segments(spec: Spec, tokens: Tensor) -> tuple[Tensor, ...]:
    """Tokens (rows, length) in the segments that a model with a memory reads, the first one as short as makes the last one whole.

    A model without a memory reads everything at once.
    """
    length = tokens.shape[1]
    if spec.memory.limit is None or length <= spec.length:
        return (tokens,)
    over = length % spec.length
    return torch.split(tokens, [*([over] if over else []), *[spec.length] * (length // spec.length)], dim=1)


def target_ids(model: Seq2Seq, tokenizer: Tokenizer, source: Tensor, target: str | None = None) -> list[int]:
    """What the decoder reads: `begin`, and a target, or what the model writes for its source (1, n), the likeliest token each time."""
    begin, end = tokenizer.special("begin"), tokenizer.special("end")
    if target is not None:
        return [begin, *tokenizer.encode(target)]
    written = generate(model, source, max_new_tokens=2 * source.shape[1] + SPARE, temperature=0)[0].tolist()
    return [begin, *(written[: written.index(end)] if end in written else written)]


def _two_sided(model: Seq2Seq, tokenizer: Tokenizer, source: Tensor, target: str | None) -> list[View]:
    ids = target_ids(model, tokenizer, source, target)
    seen = model.inspect(source, torch.tensor([ids], device=source.device))
    read, wrote = token_labels(tokenizer, source[0].tolist()), token_labels(tokenizer, ids)
    assert model.spec.encoder is not None
    views = []
    if seen.encoder:
        views.append(_view(ENCODER, model.spec.encoder, read, seen.encoder))
    if seen.attention:
        views.append(_view(SELF, model.spec, wrote, seen.attention))
    if seen.cross:
        views.append(View(CROSS, wrote, read, _stacked(seen.cross)))
    if not views:
        raise FormersError(NOTHING.format(model.spec.name or "this model"))
    return views


def _view(title: str, spec: Spec, tokens: list[str], maps: list[Tensor]) -> View:
    """The self-attention of a stack over the tokens of these labels, or over the keys that it makes of them."""
    # The extra vectors of a stack are no tokens, and stand before them.
    labels = [*(f"{OPEN}extra {number}{CLOSE}" for number in range(1, spec.extra + 1)), *tokens]
    made = spec.attention.key_count(spec.sizes, len(labels))
    if made is None:
        return View(title, labels, labels, _stacked(maps))
    return View(title, labels, [f"{OPEN}{number}{CLOSE}" for number in range(made)], _stacked(maps), projected=True)


def _stacked(maps: list[Tensor]) -> Tensor:
    """The maps of one text, (layers, heads, queries, keys); a layer that looks less far back has weights of 0 there."""
    most = max(weights.shape[3] for weights in maps)
    return torch.stack([F.pad(weights[0], (most - weights.shape[3], 0)) for weights in maps]).float().cpu()


def find_view(views: Sequence[View], name: str | None = None) -> int:
    """The place of a view among others by its short name; unless one is named that of cross-attention, which comes last if there is one."""
    titles = [view.title for view in views]
    if name is None:
        return len(views) - 1
    if name not in KINDS or KINDS[name] not in titles:
        known = [short for short, title in KINDS.items() if title in titles]
        raise FormersError(f"there is no view {name!r} of this model: it has {', '.join(known)}.")
    return titles.index(KINDS[name])


def which(view: View, layer: int | None = None, head: int | None = None) -> str:
    """A choice of layer and head in words."""
    if layer is None and head is None:
        return f"mean of all {view.layers * view.heads} heads" if view.layers * view.heads > 1 else "the one head"
    if head is None:
        return f"layer {layer}, " + (f"mean of {view.heads} heads" if view.heads > 1 else "its one head")
    return f"layer {layer}, head {head}" if layer is not None else f"head {head}, mean of {view.layers} layers"


def alignment_of(cross: View) -> View:
    """Cross-attention by the token that was then written: where the decoder looked when it had read y[t-1] is the row of y[t]."""
    if len(cross.queries) < 2:
        raise FormersError("the target is empty, so there is nothing to align: give one.")
    return replace(cross, title=ALIGNMENT, queries=cross.queries[1:], weights=cross.weights[:, :, :-1])


def by_words(view: View) -> View:
    """The view with a row and a column for each word instead of each token: attention to a word is the sum over its tokens, attention
    from a word the mean over them. A word reaches from one white space to the next; special tokens stay by themselves.
    """
    weights = view.weights
    queries, keys = _words(view.queries), _words(view.keys)
    if len(keys) < len(view.keys):
        weights = _sums(weights, keys, dim=3)
    if len(queries) < len(view.queries):
        counts = torch.tensor([len(word) for word in queries])
        weights = _sums(weights, queries, dim=2) / counts[:, None]
    memory = sum(word.start < view.memory for word in keys)
    return replace(view, queries=_named(view.queries, queries), keys=_named(view.keys, keys), weights=weights, memory=memory)


def _words(labels: Sequence[str]) -> list[range]:
    """The stretches of tokens that make up a word, with the white space before it."""
    starts: list[int] = []
    before: bytes | None = None
    for place, label in enumerate(labels):
        data = label_bytes(label)
        if place == 0 or before is None or data is None or _begins(before, data):
            starts.append(place)
        before = data
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True)]


def _begins(before: bytes, data: bytes) -> bool:
    """Whether a word begins with a token, after the one before it: white space goes with what follows it."""
    if not before.strip():
        return False
    return data[:1].isspace() or before[-1:].isspace()


def _named(labels: Sequence[str], words: list[range]) -> list[str]:
    return [_name([labels[place] for place in word]) for word in words]


def _name(labels: list[str]) -> str:
    """The label of a word: its text without the spaces around it, unless there is nothing else."""
    if label_bytes(labels[0]) is None:
        return labels[0]
    whole = b"".join(label_bytes(label) or b"" for label in labels)
    return visible(whole.strip(b" ") or whole)


def _sums(weights: Tensor, words: list[range], dim: int) -> Tensor:
    """The sums over the stretches of a dimension."""
    place = torch.repeat_interleave(torch.arange(len(words)), torch.tensor([len(word) for word in words]))
    shape = [len(words) if d == dim else size for d, size in enumerate(weights.shape)]
    return weights.new_zeros(shape).index_add_(dim, place, weights)


def attention_facts(view: View) -> dict[str, Any]:
    """What a view shows, ready for JSON: the tokens on both sides, and the weights by layer, head, query and key, to four digits."""
    weights = (view.weights.double() * 1e4).round() / 1e4
    return {
        "view": view.title,
        "layers": view.layers,
        "heads": view.heads,
        "queries": view.queries,
        "keys": view.keys,
        "memory": view.memory,
        "weights": [[[[round(w, 4) for w in row] for row in head] for head in layer] for layer in weights.tolist()],
    }
