"""The memory of a layer in one pass (E50, E52): the keys and values for attention, and the memory after the pass.

A memory is stored as hidden states. With gradients, keys and values are computed from them with the current weights. Without, those
of an earlier pass are reused, if nothing that they depend on has changed.
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
                f"the state has a {type(past).__name__} where this model needs a memory: "
                "another model made it; start from initial_state(batch)."
            )
        self.kv_version = None if torch.is_grad_enabled() else kv_version(attention, residual, x, self.reach)
        """What keys and values depend on in this pass; None if they must not be reused."""
        self.attended: KVCache | HiddenMemory | None = past
        """The past for attention: keys and values, or hidden states after the residual's norm."""
        if isinstance(past, HiddenMemory):
            past.check(x)
            if self.kv_version is not None and past.cached_kv is not None and past.cached_kv[0] == self.kv_version:
                self.attended = past.cached_kv[1]
            else:
                seen = within(past, self.reach)
                self.attended = HiddenMemory(residual.prenorm(seen.states.to(x.dtype)), seen.positions)

    def next_memory(self, x: Tensor, context: Context, entry: LayerState | None) -> KVCache | HiddenMemory:
        """The last `limit` hidden states of the past and of x; without gradients, also with the keys and values of `entry`."""
        assert isinstance(entry, KVCache)
        past, limit, count, padded = self.past, self.limit, x.shape[1], context.valid is not None
        keys = (entry.left_padded() if padded else within(entry, self.reach)).last(
            limit
        )  # for longer spans, keys are recomputed from hidden states
        if isinstance(past, KVCache) and (count < limit or padded):
            return keys  # earlier versions saved only keys and values: used as constants until one segment fills the memory
        here = HiddenMemory(x.detach(), real(context.positions, context.valid))
        if padded:
            memory = (past.append(here.states, here.positions) if isinstance(past, HiddenMemory) else here).left_padded().last(limit)
        elif isinstance(past, HiddenMemory) and count < limit:
            memory = past.last(limit - count).append(here.states, here.positions)  # E52
        else:
            memory = here.last(limit)
        zeros = isinstance(past, HiddenMemory) and past.zeros
        return replace(memory, zeros=zeros, cached_kv=None if self.kv_version is None else (self.kv_version, keys))


def kv_version(attention: SelfAttention, residual: ResidualModule, x: Tensor, reach: int | None) -> tuple[object, ...] | None:
    """All that the keys and values of a memory depend on beside its hidden states, as a comparable value; None if unknown.

    This is the version of the weights, the dtype of the products, and the number of cached keys.
    """
    if type(attention.qkv) is not nn.Linear:
        return None  # a wrapper, such as an adapter, may change without a change of its weights
    weights = [w for w in attention.qkv._parameters.values() if w is not None]
    now = weights_version(*weights, *(residual.parameters() if residual.has_prenorm else ()))
    kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    return None if now is None else (now, kind, reach)
