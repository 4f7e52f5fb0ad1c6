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
from formers.core import Cache, FormersError, Hidden, Stream
from formers.core.content import mark
from formers.core.state import Entry
from formers.residual.base import Join


class MemoryPass:
    """The memory of one layer in one pass over x (batch, length, dim)."""

    def __init__(self, attention: Any, join: Any, x: Tensor, past: Entry | None, step: int, limit: int) -> None:
        self.past, self.limit, self.reach = past, limit, attention.reach(step)
        if past is not None and not isinstance(past, Hidden | Cache):
            raise FormersError(
                f"the state holds a {type(past).__name__} where this model keeps a memory: it is of another; use initial_state."
            )
        self.made_of = None if torch.is_grad_enabled() else made_of(attention, join, x, self.reach)
        """What keys and values are computed from in this pass; None where they are not to be used again."""
        self.entering: Cache | Hidden | None = past
        """What attention is given: keys and values, or hidden states that have passed through the join as the stream does."""
        if isinstance(past, Hidden):
            past.check(x)
            if self.made_of is not None and past.known is not None and past.known[0] == self.made_of:
                self.entering = past.known[1]
            else:
                seen = within(past, self.reach)
                self.entering = Hidden(join.enter(seen.states.to(x.dtype)), seen.positions)

    def remember(self, x: Tensor, stream: Stream, entry: Entry | None) -> Cache | Hidden:
        """The last `limit` hidden states of the past and of x; without gradients, with the keys and values of `entry` beside them."""
        assert isinstance(entry, Cache)
        past, limit, count, padded = self.past, self.limit, x.shape[1], stream.valid is not None
        keys = (entry.packed() if padded else within(entry, self.reach)).last(limit)  # what longer spans need, hidden states give again
        if isinstance(past, Cache) and (count < limit or padded):
            return keys  # earlier versions saved keys and values alone: they stay constants until a segment alone fills the memory
        here = Hidden(x.detach(), real(stream.positions, stream.valid))
        if padded:
            kept = (past.append(here.states, here.positions) if isinstance(past, Hidden) else here).packed().last(limit)
        elif isinstance(past, Hidden) and count < limit:
            kept = past.last(limit - count).append(here.states, here.positions)  # E52
        else:
            kept = here.last(limit)
        zeros = isinstance(past, Hidden) and past.zeros
        return replace(kept, zeros=zeros, known=None if self.made_of is None else (self.made_of, keys))


def made_of(attention: SelfAttention, join: Join, x: Tensor, reach: int | None) -> tuple[object, ...] | None:
    """All that the keys and values of a memory depend on beside its hidden states, as a value to compare; None where it is unknown.

    That is the content of the weights, the type of the products, and how far back keys are kept.
    """
    if type(attention.qkv) is not nn.Linear:
        return None  # a wrapper, such as an adapter, may change without a change of its weights
    weights = [w for w in attention.qkv._parameters.values() if w is not None]
    now = mark(*weights, *(() if join.enters_as_it_is else join.parameters()))
    kind = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    return None if now is None else (now, kind, reach)
