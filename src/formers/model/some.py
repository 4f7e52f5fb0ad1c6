"""A block, applied to some of the tokens of a stream: the others are looked at, and otherwise left as they are.

Keys and values are made for all tokens that have changed since the step before, all else for those that are asked for. What comes out for
them is what the whole block gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from formers.attention.chosen import Kept, choose
from formers.core import Hidden, Stream
from formers.core.state import Entry

if TYPE_CHECKING:
    from formers.model.stack import Block, Entries


def some_tokens(
    block: Block, x: Tensor, stream: Stream, past: Entries | None, step: int, active: Tensor, kept: Kept
) -> tuple[Tensor, Entries] | None:
    """The active tokens of x (batch, length, dim), marked in active (batch, length), one step deeper as (tokens, dim), and what each
    sublayer leaves behind. None where the block has to compute all tokens at once.
    """
    block.check(past)
    memory = block.memory(x, None if past is None else past[0], step)
    if not block.skips or (memory is not None and isinstance(memory.entering, Hidden)):
        return None
    modules: dict[str, Any] = block._modules
    chosen = choose(active)
    inner, left = chosen.flat(x), []
    for i, (around, name) in enumerate(block.names):
        join, sublayer, before = modules[around], modules[name], None if past is None else past[i]
        entry: Entry | None
        if name == "attention":
            y, entry = sublayer.some(join.enter, x, stream, before if memory is None else memory.entering, step, chosen, kept)
            if memory is not None and stream.keep:
                entry = memory.remember(x, stream, entry)
        elif name == "cross":
            if chosen.count or before is None:
                padded, entry = sublayer(join.enter(chosen.padded(inner)), stream, before, step)
                y = chosen.unpadded(padded)
            else:
                y, entry = inner, before
        else:
            y, entry = sublayer(join.enter(inner)[None], stream, before, step)
            y = y[0]
        inner = join.leave(inner, y)
        left.append(entry)
    return inner, tuple(left)
