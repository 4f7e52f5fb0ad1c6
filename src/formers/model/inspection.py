"""What a model computed on its way: attention maps by the explicit path (E1), and how long the vectors of the stream are.

Sublayers offer these values to whoever looks on (`Watch`); the pass itself is the usual one, so that what is seen is what happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from formers.core import FormersError, Watch
from formers.core.context import ENCODER, Compaction
from formers.depth.halting import HALTING, REMAINDER, STEPS
from formers.model.modes import evaluating

if TYPE_CHECKING:
    from formers.model.model import Model, Output
    from formers.model.spec import Spec

WEIGHTS = 1 << 29
"""The largest number of attention weights that an inspection keeps."""
NORM = " norm"
"""How the name of a note ends that holds the lengths of vectors."""
BY_TOKEN = " by token"
"""How the name of a note ends that holds something for each token, (batch, length, ...)."""
ORDER = "order"
"""How the name of a note ends that holds the compaction of padded rows."""
BUCKETS = "buckets"
"""How the name of a note ends that holds the buckets of hashing, (batch, heads, rounds, length)."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """What was seen in one forward pass, by depth step, in the order of the given tokens; padding has weights and norms of 0.

    Of a model with extra vectors these come first, before the tokens, in maps and in norms.
    """

    output: Output
    attention: list[Tensor] = field(default_factory=list)
    """Self-attention weights of each step, (batch, heads, queries, keys); with a state the past stands before the tokens.

    Keys are the tokens, unless the attention makes keys of them (LowRank): these are numbered.
    """
    cross: list[Tensor] = field(default_factory=list)
    """Cross-attention weights of each step, (batch, heads, target, source); of encoder-decoders."""
    encoder: list[Tensor] = field(default_factory=list)
    """The encoder's self-attention weights, (batch, heads, source, source)."""
    norms: dict[str, Tensor] = field(default_factory=dict)
    """Lengths of vectors (steps, batch, length): "stream" before each block and behind the last, and each sublayer's answer."""
    notes: dict[str, list[Any]] = field(default_factory=dict)
    """Whatever else the parts of a member tell, by name and step; what is told "by token" is in the order of the tokens, 0 at padding.

    The buckets of LSH layers, (batch, heads, rounds, length), are so, too; those of padding are -1, which no token has. So is how long
    tokens think, "halting", "ponder steps" and "remainder".
    """


def size_of(x: Tensor) -> tuple[int, int]:
    """Rows and places of what is to be read, before the model has looked at it."""
    if not isinstance(x, Tensor) or x.dim() < 2:
        got = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise FormersError(f"inspect was given {got}: give a tensor of shape (batch, length).")
    return x.shape[0], x.shape[1]


def inspect_pass(model: Model, run: Callable[[Watch], Output], weights: int) -> Inspection:
    """What `run`, a forward pass of a model that makes so many attention weights, shows to a watch."""
    if weights > WEIGHTS:
        raise FormersError(
            f"looking at so many tokens would keep {weights:,} attention weights, more than {WEIGHTS:,}: give fewer tokens or rows."
        )
    watch = Watch()
    with evaluating(model), torch.no_grad():
        output = run(watch)
    sides = {"attention": ("target", "target"), "cross": ("target", "source"), "encoder attention": ("source", "source")}
    made = {"attention": _condenses(model.spec), "cross": False, "encoder attention": _condenses(model.spec.encoder)}
    seen = {name: [by_step[step] for step in sorted(by_step)] for name, by_step in watch.notes.items()}
    orders = {side: seen.pop(name, [None])[0] for side, name in (("target", ORDER), ("source", ENCODER + ORDER))}
    maps = {}
    for name, (queries, keys) in sides.items():
        rows, columns = orders[queries], None if made[name] else orders[keys]
        maps[name] = [_in_order(a, rows, columns) for a in seen.pop(name, [])]
    norms = {}
    for name in [name for name in seen if name.endswith(NORM)]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        norms[name.removesuffix(NORM)] = torch.stack([_behind(n, order) for n in seen.pop(name)])
    for name in [name for name in seen if name.endswith(BY_TOKEN)]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        seen[name] = [_behind(values, order) for values in seen[name]]
    for name in [name for name in seen if name.endswith(BUCKETS)]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        # 0 is a bucket, too: counted from 1 on the way, padding ends up below the first.
        seen[name] = [_behind(values.movedim(-1, 1) + 1, order).movedim(1, -1) - 1 for values in seen[name]]
    for name in [name for name in seen if name.endswith((HALTING, STEPS, REMAINDER))]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        seen[name] = [_behind(values, order, Compaction.back) for values in seen[name]]
    return Inspection(output, maps["attention"], maps["cross"], maps["encoder attention"], norms, seen)


def _condenses(spec: Spec | None) -> bool:
    """Whether the keys of a stack are made of its tokens instead of being these, so that they have an order of their own."""
    return spec is not None and spec.attention.key_count(spec.sizes, 1) is not None


def _in_order(weights: Tensor, queries: Compaction | None, keys: Compaction | None) -> Tensor:
    """Weights (batch, heads, queries, keys) of compacted rows in the order of the given tokens, 0 at padding."""
    weights = _behind(weights.transpose(1, 2), queries).transpose(1, 2)
    return _behind(weights.permute(0, 3, 1, 2), keys).permute(0, 2, 3, 1)


def _behind(x: Tensor, order: Compaction | None, undo: Callable[[Compaction, Tensor], Tensor] = Compaction.undo) -> Tensor:
    """Compacted rows x (batch, length, ...) in the order of the given tokens, behind what stands before these: a past, extra vectors."""
    if order is None:
        return x
    before = x.shape[1] - order.order.shape[1]
    return torch.cat([x[:, :before], undo(order, x[:, before:])], dim=1)
