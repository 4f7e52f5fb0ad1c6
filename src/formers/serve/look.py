"""Attention over a text, one layer and head at a time, as bytes: sqrt of a weight from 0 to 255, so that 1 % can be seen beside 100 %.

Maps of long texts are large: 4,096 tokens make 17 million weights a head. A layer is computed when it is first asked for, and its heads
are then kept as bytes. A picture of a map is the largest weight of each of at most SIDE x SIDE rectangles; any part of a map can be asked
for, down to single weights.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from formers.core import FormersError, Watch
from formers.generation import tokenizer_of
from formers.inspect.measure.attention import SELF, views_of
from formers.inspect.measure.buckets import buckets_facts, buckets_of
from formers.inspect.measure.ponder import ponder_facts, ponder_of
from formers.inspect.measure.spans import spans_facts, spans_of
from formers.inspect.measure.token_labels import token_labels
from formers.model import Model, StackModel, evaluating
from formers.score import DynamicSpan, Span
from formers.serve.errors import ApiError
from formers.serve.limits import Limits

SIDE = 512
"""Rows and columns of a picture of a map, at the most."""
SMALL = 1 << 22
"""Up to so many weights all layers are computed at once."""
MORE_TOKENS = 1024
"""Up to so many tokens spans, ponder times and buckets are told, too."""


@dataclass(eq=False)
class Shown:
    """One kind of attention over a text: its tokens, and by layer maps (heads + 1, queries, keys) of bytes, the last their mean."""

    title: str
    queries: list[str]
    keys: list[str]
    layers: int
    heads: int
    memory: int = 0
    note: str = ""
    maps: dict[int, NDArray[np.uint8]] = field(default_factory=dict)


@dataclass(eq=False)
class Look:
    """The attention of a model over one text."""

    model: str
    views: list[Shown]
    ids: list[int] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    """Spans, ponder times and buckets, where the member has them."""

    @property
    def bytes(self) -> int:
        """Bytes of the maps."""
        return sum(found.nbytes for view in self.views for found in view.maps.values())

    def told(self) -> dict[str, Any]:
        """What there is to look at, ready for JSON."""
        views = [
            {"title": v.title, "queries": v.queries, "keys": v.keys if v.keys != v.queries else None, "layers": v.layers, "heads": v.heads,
             "memory": v.memory, "note": v.note}
            for v in self.views
        ]  # fmt: skip
        return {"model": self.model, "views": views, **self.more}


class Looks:
    """The texts that were looked at last."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._looks: OrderedDict[str, Look] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, look: Look) -> str:
        """Keeps a look, and gives its name."""
        name = secrets.token_hex(8)
        with self._lock:
            self._looks[name] = look
            while len(self._looks) > self.limits.looks:
                self._looks.popitem(last=False)
        return name

    def get(self, name: str) -> Look:
        """The look of a name."""
        with self._lock:
            if name not in self._looks:
                raise ApiError(404, "this text is no longer looked at: look at it again.", code="look_not_found")
            self._looks.move_to_end(name)
            return self._looks[name]

    def trim(self, keep: Look) -> None:
        """Lets go of maps where all together are too large; they are computed again when they are asked for."""
        with self._lock:
            total = sum(look.bytes for look in self._looks.values())
            for look in self._looks.values():
                if total <= self.limits.look_bytes:
                    return
                for view in look.views:
                    for layer in list(view.maps):
                        if total > self.limits.look_bytes and (look is not keep or len(view.maps) > 1) and _is_lazy(look):
                            total -= view.maps.pop(layer).nbytes


def _is_lazy(look: Look) -> bool:
    return bool(look.ids)


def look_at(model: Model, name: str, text: str, limits: Limits) -> Look:
    """What a model's attention looks at while it reads a text; maps of a long text are computed layer by layer, when asked for."""
    tokenizer = tokenizer_of(model)
    ids = tokenizer.encode(text)
    if not ids:
        raise FormersError("the text is empty, so that there is nothing to look at: give at least one token.")
    if len(ids) > limits.look_tokens:
        raise ApiError(400, f"the text has {len(ids):,} tokens: attention is shown of at most {limits.look_tokens:,}.", param="text")
    spec = model.spec
    weights = spec.attention_steps * spec.heads * len(ids) ** 2
    long = isinstance(model, StackModel) and spec.memory.limit is None and spec.fact is None and not spec.extra and weights > SMALL
    more = _more(model, name, text, ids)
    if not long:
        try:
            views = [
                Shown(v.title, v.queries, v.keys, v.layers, v.heads, v.memory, v.note, dict(enumerate(map(quantised, v.weights))))
                for v in views_of(model, text)
            ]
        except FormersError:
            if not more:
                raise
            views = []
        return Look(name, views, [], more)
    if spec.heads * len(ids) ** 2 > limits.look_weights:
        most = int((limits.look_weights / spec.heads) ** 0.5)
        raise ApiError(
            400, f"{len(ids):,} tokens under {spec.heads} heads make too many weights: give at most {most:,} tokens.", param="text"
        )
    made = spec.attention.key_count(spec.sizes, len(ids))
    labels = token_labels(tokenizer, ids)
    keys = labels if made is None else [f"⟨{number}⟩" for number in range(made)]
    return Look(name, [Shown(SELF, labels, keys, spec.depth.steps, spec.heads)], ids, more)


def layer_of(model: Model, look: Look, view: int, layer: int) -> None:
    """Computes the maps of a layer, unless they are there; called by the worker's thread."""
    shown = look.views[view]
    if layer in shown.maps:
        return
    watch = _OneLayer(layer)
    tokens = torch.tensor([look.ids], device=next(model.parameters()).device)
    with evaluating(model), torch.no_grad():
        model(tokens, watch=watch)
    if watch.map is None:
        raise FormersError(f"layer {layer} of {look.model} has no attention to look at: choose another layer.")
    shown.maps[layer] = watch.map


class _OneLayer(Watch):
    """Keeps the attention maps of one layer, as bytes."""

    def __init__(self, layer: int) -> None:
        super().__init__(only="attention")
        self.layer = layer
        self.map: NDArray[np.uint8] | None = None

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        if name == "attention" and step == self.layer:
            self.map = quantised(value()[0])


def quantised(weights: Tensor) -> NDArray[np.uint8]:
    """Weights (heads, queries, keys) as bytes, 255 times their square root, and behind the heads their mean."""
    if not bool(weights.isfinite().all()):
        raise FormersError("the attention weights are not finite: the training has diverged; use an earlier checkpoint.")
    each = (*weights, weights.float().mean(dim=0))  # one at a time, for they may be large
    return np.stack([(head.float().clamp(0, 1).sqrt_() * 255).round_().to(torch.uint8).cpu().numpy() for head in each])


def part_of(look: Look, view: int, layer: int, head: int, rows: slice, columns: slice) -> tuple[NDArray[np.uint8], int, int]:
    """A part of a map as a picture of at most SIDE x SIDE bytes, and the rows and columns that each stands for; head -1 is the mean."""
    part = look.views[view].maps[layer][head][rows, columns]
    down, across = max(1, -(-part.shape[0] // SIDE)), max(1, -(-part.shape[1] // SIDE))
    return _pooled(part, down, across), down, across


def row_of(look: Look, view: int, layer: int, head: int, query: int, back: bool = False) -> NDArray[np.uint8]:
    """What a query looks at, or with back who looks at a key: a byte for each."""
    chosen = look.views[view].maps[layer][head]
    return chosen[:, query] if back else chosen[query]


def _pooled(part: NDArray[np.uint8], down: int, across: int) -> NDArray[np.uint8]:
    """The largest of each rectangle."""
    if down == across == 1:
        return np.ascontiguousarray(part)
    rows, columns = -(-part.shape[0] // down) * down, -(-part.shape[1] // across) * across
    padded = np.zeros((rows, columns), np.uint8)
    padded[: part.shape[0], : part.shape[1]] = part
    return padded.reshape(rows // down, down, columns // across, across).max(axis=(1, 3))


def _more(model: Model, name: str, text: str, ids: list[int]) -> dict[str, Any]:
    """Spans, ponder times and buckets, where the member has them."""
    return dict(_more_facts(model, name, text, ids)) if len(ids) <= MORE_TOKENS else {}


def _more_facts(model: Model, name: str, text: str, ids: list[int]) -> Iterator[tuple[str, Any]]:
    spec = model.spec
    if isinstance(spec.score, Span | DynamicSpan):
        yield "spans", spans_facts(spans_of(model, text if isinstance(spec.score, DynamicSpan) else None, name))
    if spec.ponders is not None or (spec.encoder is not None and spec.encoder.ponders is not None):
        yield "ponder", ponder_facts(*ponder_of(model, text, name=name), name)
    if any(kind.__class__.__name__ == "LSH" for kind in spec.attention.kinds) and spec.encoder is None:
        device = next(model.parameters()).device
        yield "buckets", buckets_facts(buckets_of(model, torch.tensor([ids], device=device), name), None, 0, 0)
