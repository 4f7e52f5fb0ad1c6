"""One pass of a layer over its memory (E50, E52): what attention is given of it, and what is kept of it afterwards.

A memory is kept as hidden states. With gradients, keys and values are computed from them with the current weights. Without, those that an
earlier pass has computed are used again, if nothing that they depend on has changed since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from formers.attention.multihead import SelfAttention, real, within
from formers.core import Context, FormersError, HiddenMemory, KVCache
from formers.core.content import weights_version
from formers.core.state import LayerState
from formers.residual.base import ResidualModule


class MemoryPass:
    """The memory of one layer in one pass over x (batch, length, dim)."""

    def __init__(self, attention: Any, residual: Any, x: Tensor, past: LayerState | None, step: int, limit: int) -> None:
        self.past, self.limit, self.reach = past, limit, attention.reach(step)
        if past is not None and not isinstance(past, HiddenMemory | KVCache):
            raise FormersError(
                f"the state holds a {type(past).__name__} where this model keeps a memory: it is of another; use initial_state."
            )
        self.made_of = None if torch.is_grad_enabled() else made_of(attention, residual, x, self.reach)
        """What keys and values are computed from in this pass; None where they are not to be used again."""
        self.entering: KVCache | HiddenMemory | None = past
        """What attention is given: keys and values, or hidden states that have passed through the residual as the stream does."""
        if isinstance(past, HiddenMemory):
            past.check(x)
            if self.made_of is not None and past.cached_kv is not None and past.cached_kv[0] == self.made_of:
                self.entering = past.cached_kv[1]
            else:
                seen = within(past, self.reach)
                self.entering = HiddenMemory(residual.prenorm(seen.states.to(x.dtype)), seen.positions)

    def remember(self, x: Tensor, context: Context, entry: LayerState | None) -> KVCache | HiddenMemory:
        """The last `limit` hidden states of the past and of x; without gradients, with the keys and values of `entry` beside them."""
        assert isinstance(entry, KVCache)
        past, limit, count, padded = self.past, self.limit, x.shape[1], context.valid is not None
        keys = (entry.left_padded() if padded else within(entry, self.reach)).last(
            limit
        )  # what longer spans need, hidden states give again
        if isinstance(past, KVCache) and (count < limit or padded):
            return keys  # earlier versions saved keys and values alone: they stay constants until a segment alone fills the memory
        here = HiddenMemory(x.detach(), real(context.positions, context.valid))
        if padded:
            kept = (past.append(here.states, here.positions) if isinstance(past, HiddenMemory) else here).left_padded().last(limit)
        elif isinstance(past, HiddenMemory) and count < limit:
            kept = past.last(limit - count).append(here.states, here.positions)  # E52
        else:
            kept = here.last(limit)
        zeros = isinstance(past, HiddenMemory) and past.zeros
        return replace(kept, zeros=zeros, cached_kv=None if self.made_of is None else (self.made_of, keys))


def made_of(attention: SelfAttention, residual: ResidualModule, x: Tensor, reach: int | None) -> tuple[object, ...] | None:
    """All that the keys and values of a memory depend on beside its hidden states, as a value to compare; None where it is unknown.

    That is the content of the weights, the type of the products, and how far back keys are kept.
    """
    if type(attention.qkv) is not nn.Linear:
        return None  # a wrapper, such as an adapter, may change without a change of its weights
    weights = [w for w in attention.qkv._parameters.values() if w is not None]
    now = weights_version(*weights, *(residual.parameters() if residual.has_prenorm else ()))
    kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    return None if now is None else (now, kind, reach)
