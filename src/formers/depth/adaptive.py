"""Adaptive depth: every token goes through the same block as often as it takes (Dehghani et al., 2018, section 2.2, after Graves, 2016).

s^t = Block(s^{t-1} + P^t)       of the tokens that have not halted; the others keep their state           (E14, E100)
y = sum_t p^t s^t                weights and halting as in core/halting.py, for each token by itself        E40-E43

Whoever has halted is still looked at: its last state gives keys and values to all later steps. So a batch equals its rows, and a token
that comes later may think longer than those before it. Where nothing is learnt, halted tokens are not computed but for their keys and
values, which are kept where they stay the same, whole rows of them not at all, and no step is taken when nobody is running any more.

`act="t2t"` is tensor2tensor's: the halting unit looks at the state before the block, positions added, tokens that have halted go on being
transformed and looked at, and what comes out is the interpolation E44.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Sizes, Stream
from formers.core.compiler import concrete
from formers.core.halting import HALTING, Act, Bias, Epsilon, Halting, Price, account, averaged, begin, looked_at, may_skip
from formers.depth.base import Depth, DepthModule, Walk


class Adaptive(Depth):
    """One block, applied to each token until it halts, `layers` times at the most."""

    layers: PositiveInt
    """The most steps there are."""
    epsilon: Epsilon = 0.01
    """Who has spent 1 - epsilon halts."""
    ponder: Price = 0.01
    """What a step costs: this times the mean of N + R is added to the loss."""
    bias: Bias = 1.0
    """Of the halting unit at the start: the larger, the sooner it halts."""
    act: Act = "graves"

    @property
    def steps(self) -> int:
        return self.layers

    @property
    def shared(self) -> bool:
        return True

    @property
    def ponders(self) -> int:
        return self.layers

    def build(self, block: Callable[[int], nn.Module], sizes: Sizes) -> DepthModule:
        return AdaptiveBlocks(block(0), sizes.dim, self)


class AdaptiveBlocks(DepthModule):
    """Applies its one block, and asks after each step who has thought enough."""

    skipping = True
    """Whether evaluation leaves out what has halted, and whether anything ends when all have; what comes out is the same."""

    def __init__(self, block: nn.Module, dim: int, part: Adaptive) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block])
        self.steps, self.part = part.layers, part
        self.unit = nn.Linear(dim, 1)
        nn.init.zeros_(self.unit.weight)  # at first a token's state says nothing about how long it should think
        nn.init.constant_(self.unit.bias, part.bias)

    def forward(self, x: Tensor, stream: Stream, walk: Walk) -> Tensor:
        real = stream.valid
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
        spent = begin(running, x.dtype)
        skips = self.skipping and may_skip(x, stream, self.training)
        run = self.interpolated if self.part.act == "t2t" else self.skipped if skips else self.thought
        y, spent = run(x, stream, walk, spent)
        account(stream, 0, spent, self.part.ponder, real)
        return y

    def halting(self, state: Tensor) -> Tensor:
        """h (...) of states (..., dim)."""
        return torch.sigmoid(self.unit(state)).squeeze(-1)  # E40

    def over(self, spent: Halting, stream: Stream) -> bool:
        """Whether nobody is running, and nobody needs what further steps would leave behind, or looks on at all of them."""
        if not self.skipping or stream.keep or looked_at(stream.watch) or not concrete(spent.running):
            return False
        return not bool(spent.running.any())

    def thought(self, state: Tensor, stream: Stream, walk: Walk, spent: Halting) -> tuple[Tensor, Halting]:
        """sum_t p^t s^t, every step computed for all tokens; those that have halted keep their state."""
        y, part = torch.zeros_like(state), self.part
        for t in range(self.steps):
            new = walk.through(self.blocks[0], walk.enter(state, t), t)
            h = self.halting(new)
            self.show(stream, t, h, spent)
            state = torch.where(spent.running[..., None], new, state)
            p, spent = spent.step(h, part.epsilon, last=t == self.steps - 1)
            y = averaged(y, new, p)
            if self.over(spent, stream):
                break
        return y, spent

    def interpolated(self, state: Tensor, stream: Stream, walk: Walk, spent: Halting) -> tuple[Tensor, Halting]:
        """What E44 makes of the states of all steps; nobody stops being transformed as long as somebody is running."""
        y = torch.zeros_like(state)
        for t in range(self.steps):
            x = walk.enter(state, t)
            h = self.halting(x)
            self.show(stream, t, h, spent)
            state = walk.through(self.blocks[0], x, t)
            p, spent = spent.step(h, self.part.epsilon, last=t == self.steps - 1, act="t2t")
            y = averaged(y, state, p, "t2t")
            if self.over(spent, stream):
                break
        return y, spent

    def skipped(self, state: Tensor, stream: Stream, walk: Walk, spent: Halting) -> tuple[Tensor, Halting]:
        """The same as `thought`, computed for those alone who have not halted, and for the rows that have such."""
        out, done, batch = torch.zeros_like(state), spent, torch.arange(len(state), device=state.device)
        part, block = self.part, self.blocks[0]
        y = out
        for t in range(self.steps):
            alive = spent.running.any(dim=1)
            inner = None if bool(alive.all()) else walk.rows(alive.nonzero()[:, 0])
            if inner is not None:  # what is known of the rows that end here is put aside
                out, done = out.to(y.dtype).index_copy(0, batch, y), done.put(batch, spent)
                walk, batch, state, y = inner, batch[alive], state[alive], y[alive]
                spent = spent.rows(alive.nonzero()[:, 0])
                if not len(batch):
                    return out, done
            x = walk.enter(state, t)
            active = spent.running
            new = None if bool(active.all()) else walk.some(block, x, t, active)
            if new is None:
                new = walk.through(block, x, t)
                h = self.halting(new)
                state = torch.where(active[..., None], new, state)
                p, spent = spent.step(h, part.epsilon, last=t == self.steps - 1)
                y = averaged(y, new, p)
            else:
                h = torch.zeros_like(spent.total).masked_scatter_(active, self.halting(new).to(spent.total.dtype))
                p, spent = spent.step(h, part.epsilon, last=t == self.steps - 1)
                places = active.nonzero(as_tuple=True)
                state = state.index_put(places, new.to(state.dtype))
                y = y.index_put(places, p[places][:, None].to(y.dtype) * new.to(y.dtype), accumulate=True)
        return out.to(y.dtype).index_copy(0, batch, y), done.put(batch, spent)

    def show(self, stream: Stream, t: int, h: Tensor, spent: Halting) -> None:
        """Shows whoever looks on the halting probabilities of a step, not a number where a token has halted before it."""
        if stream.watch is not None:
            stream.watch.note(HALTING, t, lambda: h.masked_fill(~spent.running, torch.nan))
