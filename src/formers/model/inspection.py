"""Inspection of a forward pass: attention maps, computed by the equation (E1), and norms of hidden states.

Sublayers record these values in a `Watch`; the pass itself is unchanged.
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
"""The largest number of attention weights that an inspection stores."""
NORM = " norm"
"""Suffix of the names of recorded norms."""
BY_TOKEN = " by token"
"""Suffix of the names of recorded values per token, (batch, length, ...)."""
ORDER = "order"
"""Suffix of the name of the recorded compaction of padded rows."""
BUCKETS = "buckets"
"""Suffix of the names of recorded LSH buckets, (batch, heads, rounds, length)."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """The values recorded in one forward pass, by depth step, in the order of the given tokens; weights and norms of padding are 0.

    Extra vectors come first, before the tokens, in maps and in norms.
    """

    output: Output
    attention: list[Tensor] = field(default_factory=list)
    """Self-attention weights of each step, (batch, heads, queries, keys); with a state, past keys come before those of the tokens.

    Keys are the tokens, except in attention with projected keys (LowRank).
    """
    cross: list[Tensor] = field(default_factory=list)
    """Cross-attention weights of each step, (batch, heads, target, source), for encoder-decoders."""
    encoder: list[Tensor] = field(default_factory=list)
    """The encoder's self-attention weights, (batch, heads, source, source)."""
    norms: dict[str, Tensor] = field(default_factory=dict)
    """Norms (steps, batch, length): "stream" is x before each block and after the last; others are the outputs of sublayers."""
    notes: dict[str, list[Any]] = field(default_factory=dict)
    """All other recorded values, by name and step; those with names that end in "by token" are in token order, 0 at padding.

    So are the buckets of LSH layers, (batch, heads, rounds, length), which are -1 at padding, and the values of adaptive computation
    time, "halting", "ponder steps" and "remainder".
    """


def size_of(x: Tensor) -> tuple[int, int]:
    """Batch size and length of an input, before the model has checked it."""
    if not isinstance(x, Tensor) or x.dim() < 2:
        got = f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise FormersError(f"inspect got {got}: give a tensor of shape (batch, length).")
    return x.shape[0], x.shape[1]


def inspect_pass(model: Model, run: Callable[[Watch], Output], weights: int) -> Inspection:
    """The inspection of `run`, a forward pass of a model with `weights` attention weights in total."""
    if weights > WEIGHTS:
        raise FormersError(f"the inspection would store {weights:,} attention weights, more than {WEIGHTS:,}: give fewer tokens or rows.")
    watch = Watch()
    with evaluating(model), torch.no_grad():
        output = run(watch)
    sides = {"attention": ("target", "target"), "cross": ("target", "source"), "encoder attention": ("source", "source")}
    made = {"attention": _projects_keys(model.spec), "cross": False, "encoder attention": _projects_keys(model.spec.encoder)}
    seen = {name: [by_step[step] for step in sorted(by_step)] for name, by_step in watch.notes.items()}
    orders = {side: seen.pop(name, [None])[0] for side, name in (("target", ORDER), ("source", ENCODER + ORDER))}
    maps = {}
    for name, (queries, keys) in sides.items():
        rows, columns = orders[queries], None if made[name] else orders[keys]
        maps[name] = [_in_order(a, rows, columns) for a in seen.pop(name, [])]
    norms = {}
    for name in [name for name in seen if name.endswith(NORM)]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        norms[name.removesuffix(NORM)] = torch.stack([_restore_order(n, order) for n in seen.pop(name)])
    for name in [name for name in seen if name.endswith(BY_TOKEN)]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        seen[name] = [_restore_order(values, order) for values in seen[name]]
    for name in [name for name in seen if name.endswith(BUCKETS)]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        # 0 is a valid bucket: buckets are shifted by 1 meanwhile, so that padding becomes -1.
        seen[name] = [_restore_order(values.movedim(-1, 1) + 1, order).movedim(1, -1) - 1 for values in seen[name]]
    for name in [name for name in seen if name.endswith((HALTING, STEPS, REMAINDER))]:
        order = orders["source" if name.startswith(ENCODER) else "target"]
        seen[name] = [_restore_order(values, order, Compaction.back) for values in seen[name]]
    return Inspection(output, maps["attention"], maps["cross"], maps["encoder attention"], norms, seen)


def _projects_keys(spec: Spec | None) -> bool:
    """Whether the keys of a stack are projected from its tokens, so that they are not in token order."""
    return spec is not None and spec.attention.key_count(spec.sizes, 1) is not None


def _in_order(weights: Tensor, queries: Compaction | None, keys: Compaction | None) -> Tensor:
    """Weights (batch, heads, queries, keys) of compacted rows in the order of the given tokens, 0 at padding."""
    weights = _restore_order(weights.transpose(1, 2), queries).transpose(1, 2)
    return _restore_order(weights.permute(0, 3, 1, 2), keys).permute(0, 2, 3, 1)


def _restore_order(x: Tensor, order: Compaction | None, undo: Callable[[Compaction, Tensor], Tensor] = Compaction.undo) -> Tensor:
    """Compacted rows x (batch, length, ...) in the order of the given tokens; a past or extra vectors before them are unchanged."""
    if order is None:
        return x
    before = x.shape[1] - order.order.shape[1]
    return torch.cat([x[:, :before], undo(order, x[:, before:])], dim=1)
