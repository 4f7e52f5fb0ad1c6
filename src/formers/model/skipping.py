"""Adaptive depth in evaluation, computed only for tokens that have not halted: faster, with the same output.

Rows whose tokens have all halted are skipped. In the others, queries and the feed-forward layer are computed for running tokens; keys
and values for tokens that changed in the last step; those of halted tokens are reused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.multihead import SelfAttention, next_cache, within
from formers.core import Context, HiddenMemory, KVCache, Positions, Range, compact
from formers.core.positions import EMPTY, SubsetPositions
from formers.core.state import LayerState
from formers.depth.adaptive import AdaptiveBlocks, Averaged
from formers.depth.base import BlockState, States
from formers.depth.halting import Halting, add_weighted
from formers.depth.step_input import StepInput
from formers.feedforward.dense import Transition
from formers.model.block import Block
from formers.patterns import Full


def skip_halted(depth: AdaptiveBlocks, state: Tensor, context: Context, past: States, step_input: StepInput, halting: Halting) -> Averaged:
    """`AdaptiveBlocks.averaged`, computed only for running tokens, and for rows that have any."""
    out, done, batch = torch.zeros_like(state), halting, torch.arange(len(state), device=state.device)
    part, block, steps = depth.part, depth.blocks[0], depth.steps
    assert isinstance(block, Block)
    states: list[BlockState] = [()] * steps
    y, reuse = out, KeyValueReuse()
    rows_can_end = not context.keep and not past and isinstance(step_input.positions, Range)
    for t in range(steps):
        alive = halting.running.any(dim=1)
        if rows_can_end and not bool(alive.all()):  # store the results of rows that end here
            out, done = out.to(y.dtype).index_copy(0, batch, y), done.put(batch, halting)
            rows = alive.nonzero()[:, 0]
            context, reuse = rows_of(context, rows), reuse.rows(rows)
            batch, state, y, halting = batch[alive], state[alive], y[alive], halting.rows(rows)
            if not len(batch):
                return out, done, states
        x, active, before = step_input(state, t), halting.running, past[t] if past else None
        some = None
        if not bool(active.all()):
            known = reusable(reuse, block, x, t, step_input)
            some = run_subset(block, x, context, before, t, active, known)
            if some is not None:
                known.changed = active
        if some is None:
            reuse = reuse if reuse.kv is None else KeyValueReuse()  # all tokens change
            new, states[t] = depth.run_block(block, x, context, before, t)
            h = depth.halting(new)
            state = torch.where(active[..., None], new, state)
            p, halting = halting.step(h, part.epsilon, last=t == steps - 1)
            y = add_weighted(y, new, p)
        else:
            new, states[t] = some
            h = torch.zeros_like(halting.total).masked_scatter_(active, depth.halting(new).to(halting.total.dtype))
            p, halting = halting.step(h, part.epsilon, last=t == steps - 1)
            places = active.nonzero(as_tuple=True)
            state = state.index_put(places, new.to(state.dtype))
            y = y.index_put(places, p[places][:, None].to(y.dtype) * new.to(y.dtype), accumulate=True)
    return out.to(y.dtype).index_copy(0, batch, y), done.put(batch, halting), states


def rows_of(context: Context, rows: Tensor) -> Context:
    """The context of some rows (n,) of a batch."""
    source = context.source
    if source is not None:
        source = source._replace(hidden=source.hidden[rows], valid=None if source.valid is None else source.valid[rows])
    return replace(context, valid=None if context.valid is None else context.valid[rows], source=source)


@dataclass(frozen=True)
class TokenSubset:
    """Some tokens of rows (batch, length): as a flat sequence, or as padded rows."""

    active: Tensor
    """(batch, length) bool."""
    count: int
    """The number of tokens in total."""
    order: Tensor
    """(batch, most): the indices of each row's tokens, in order, followed by arbitrary indices."""
    held: Tensor
    """(batch, most) bool: which of these indices are tokens of the subset."""

    @classmethod
    def of(cls, active: Tensor) -> TokenSubset:
        """The tokens marked in active (batch, length) bool; rows have at least one slot."""
        packed, counts = compact(active), active.sum(dim=1)
        most = max(1, int(counts.max()))
        return cls(active, int(counts.sum()), packed.order[:, :most], packed.valid[:, :most])

    @property
    def even(self) -> bool:
        """Whether every row has the same number of tokens."""
        return self.count == self.held.numel()

    def flat(self, x: Tensor) -> Tensor:
        """The vectors (count, dim) of the tokens, row by row, of x (batch, length, dim)."""
        return x[self.active]

    def padded(self, flat: Tensor) -> Tensor:
        """Vectors (count, dim) as rows (batch, most, dim), padded with 0."""
        if self.even:
            return flat.view(*self.held.shape, flat.shape[1])
        rows = flat.new_zeros(*self.held.shape, flat.shape[1])
        rows[self.held] = flat
        return rows

    def unpadded(self, rows: Tensor) -> Tensor:
        """Rows (batch, most, dim) as vectors (count, dim)."""
        return rows.reshape(-1, rows.shape[2]) if self.even else rows[self.held]

    def positions(self, all_: Positions) -> SubsetPositions:
        """The positions of the tokens (batch, most), EMPTY after those of a row."""
        index = all_.tensor(self.order.device).expand(self.active.shape).gather(1, self.order)
        return SubsetPositions(index.masked_fill(~self.held, EMPTY), all_.stop)


@dataclass
class KeyValueReuse:
    """Keys and values of the tokens of one pass, reused from step to step for tokens that have not changed."""

    kv: Tensor | None = None
    """(batch, length, widths), keys and values concatenated; None if not computed."""
    changed: Tensor | None = None
    """(batch, length) bool: the tokens that have changed since kv was computed."""
    signal: Tensor | None = None
    """(dim): the vector that the position adds to every token at this step, not included in kv; None if there is none."""

    def project(self, project: Callable[[Tensor], Tensor], x: Tensor, added: Callable[[Tensor], Tensor]) -> Tensor:
        """project(x) for x (batch, length, dim), where `project` computes each token separately; added(s) = project(x + s) - project(x).

        The rounding of a token's values depends only on when it changed, not on other tokens: else the future leaks into the last bits.
        """
        more = None if self.signal is None else added(self.signal)
        if self.kv is None or self.changed is None:
            made = project(x)
            self.kv = made if more is None else made - more
            return made
        new, old = project(x[self.changed]), self.kv
        self.kv = old.clone()  # the old tensor may be part of a state
        self.kv[self.changed] = new if more is None else new - more
        if more is None:
            return self.kv
        made = old + more
        made[self.changed] = new
        return made

    def rows(self, which: Tensor) -> KeyValueReuse:
        """The keys and values of some rows."""
        return KeyValueReuse() if self.kv is None or self.changed is None else KeyValueReuse(self.kv[which], self.changed[which])


def reusable(reuse: KeyValueReuse, block: Block, x: Tensor, t: int, step_input: StepInput) -> KeyValueReuse:
    """The keys and values that can be reused at step t; none if the position changes tokens in another way at every step."""
    if not step_input.every_step:
        return reuse
    # Projections are linear: the step's part is added to the cached values, unless there is a norm before.
    reuse.signal = None if step_input.extra or block.residual_attention.has_prenorm else step_input.position.step_vector(t, x)
    return KeyValueReuse() if reuse.signal is None else reuse


def run_subset(
    block: Block, x: Tensor, context: Context, past: BlockState | None, step: int, active: Tensor, reuse: KeyValueReuse
) -> tuple[Tensor, BlockState] | None:
    """The active tokens of x (batch, length, dim), marked in active (batch, length), after the block, as (tokens, dim), and the state of
    each sublayer. None if the block cannot compute a subset.
    """
    before = block.check(past)
    memory = None if block.memory_length is None else block.memory(x, before[0], step)
    if not can_skip(block) or (memory is not None and isinstance(memory.attended, HiddenMemory)):
        return None
    subset = TokenSubset.of(active)
    inner, states = subset.flat(x), []
    for (_, residual, sublayer), own in zip(block.sublayers(), before, strict=True):
        state: LayerState | None
        if sublayer is block.attention:
            keys = own if memory is None else memory.attended
            assert keys is None or isinstance(keys, KVCache)
            y, state = attend_subset(sublayer, residual.prenorm, x, context, keys, step, subset, reuse)
            if memory is not None and context.keep:
                state = memory.next_memory(x, context, state)
        elif isinstance(sublayer, Transition):
            y, state = sublayer(residual.prenorm(inner)[None], context, own, step)
            y = y[0]
        elif subset.count or own is None:  # cross-attention
            padded, state = sublayer(residual.prenorm(subset.padded(inner)), context, own, step)
            y = subset.unpadded(padded)
        else:
            y, state = inner, own
        inner = residual.merge(inner, y)
        states.append(state)
    return inner, tuple(states)


def can_skip(block: Block) -> bool:
    """Whether a block can be applied to a subset of the tokens."""
    if type(block.attention) is not SelfAttention or (block.has_feedforward and not isinstance(block.feedforward, Transition)):
        return False
    return type(block.attention.qkv) is nn.Linear  # its weight is used in parts, which a wrapper, such as an adapter, does not allow


def attend_subset(
    attention: SelfAttention,
    prenorm: Callable[[Tensor], Tensor],
    x: Tensor,
    context: Context,
    past: KVCache | None,
    step: int,
    subset: TokenSubset,
    reuse: KeyValueReuse,
) -> tuple[Tensor, KVCache | None]:
    """y (tokens, dim) for a subset of the tokens of x (batch, length, dim); keys and values are those of all of x and of the past."""
    pattern, own, score = attention.patterns[step], attention.widths[0], attention.score
    reach, furthest = (None, None) if score is None else (score.reach(step), score.max_reach(step))
    if context.valid is None and not pattern.is_causal:
        pattern = pattern.of(x.shape[1])
    weight, bias = attention.qkv.weight, attention.qkv.bias
    kv = reuse.project(
        lambda x: F.linear(prenorm(x), weight[own:], None if bias is None else bias[own:]), x, lambda s: F.linear(s, weight[own:])
    )
    k, v = attention.split_all(kv, 2)
    cache = KVCache(k, v, context.positions) if past is None else within(past, furthest).append(k, v, context.positions)
    state = next_cache(cache, pattern, context, furthest) if context.keep else None
    seen = cache if reach is None else within(cache, reach + x.shape[1])
    asking = prenorm(subset.flat(x))
    if not subset.count:
        return asking, state
    q = attention.split(subset.padded(F.linear(asking, weight[:own], None if bias is None else bias[:own])), attention.sizes.head_dim)
    # A query that sees all keys does not need its position.
    anywhere = isinstance(pattern, Full) and score is None
    queries: Positions = Range(0, q.shape[2]) if anywhere else subset.positions(context.positions)
    term = None
    if score is not None:
        inner = replace(context, positions=queries, valid=subset.held)
        q, term = score(subset.padded(asking), q, seen.positions, inner, attention.scale, step)
    request = attention.request(pattern, queries, seen.positions, None if pattern.is_causal else context.valid, term)
    return subset.unpadded(attention.mix(q, seen, request, context, step)), state
