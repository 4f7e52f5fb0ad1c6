"""A reversible stack: two halves updated in turn; the backward pass needs only the activations of the current sublayer.

(x_1, x_2) <- (x_2, x_1 + D(x_2))          D = Drop(F(LN(.))), a half step                              E95
x_1 = x'_2 - D(x_2)                        the inverse, from the output (x_2, x'_2)
g_1 = g'_2,  g_2 = g'_1 + g'_2 dD/dx_2     gradients of the input, from those of the output

The forward pass saves the last two halves, and what is needed to repeat each D exactly: the states of the random number generators,
autocast, and decisions (`Decisions`). The backward pass runs the half steps in reverse. It recomputes D from x_2, computes its gradient
at once, and subtracts D to get x_1. The gradients of weights are returned like those of inputs, never accumulated by an inner backward
pass: so DistributedDataParallel handles them as usual, and weights that several steps share get their sum.

Halves are at least float32, whatever the dtype of the weights, so that adding and subtracting does not drift. The inputs of sublayers
have the usual dtype.

A sublayer that computes each position separately may have an attribute `chunk`: its half step is then computed for that many
positions at a time, in both passes, and only the activations of one chunk exist at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from formers.attention.lsh.decisions import Decisions
from formers.core import Context, Source, Watch
from formers.core.allocator import release_memory
from formers.core.context import norm
from formers.core.devices import on_host
from formers.core.state import LayerState
from formers.model.replay import Casting, Randomness, replaying
from formers.residual.norm import DropoutResidual

if TYPE_CHECKING:
    from formers.model.block import Block

Ends = Callable[[Tensor, Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
RELEASE_EVERY = 8
"""Freed memory is released after every so many half steps: gradients of weights fragment the heap, and glibc would let it grow."""


class HalfStep(NamedTuple):
    """A half step: sublayer number `which` of a block at a depth step, and its past state."""

    block: Block
    which: int
    step: int
    past: LayerState | None = None

    @property
    def modules(self) -> tuple[DropoutResidual, nn.Module]:
        """The residual connection and the sublayer."""
        _, residual, sublayer = self.block.sublayers()[self.which]
        assert isinstance(residual, DropoutResidual)
        return residual, sublayer

    def slices(self, length: int) -> list[slice]:
        """The slices of positions that are computed at once; under torch.compile one, as in `core.chunks.in_chunks`."""
        chunk = None if torch.compiler.is_compiling() else getattr(self.modules[1], "chunk", None)
        return [slice(start, start + chunk) for start in range(0, length, chunk)] if chunk else [slice(0, length)]

    def added(self, x: Tensor, context: Context, kind: torch.dtype) -> tuple[Tensor, LayerState | None]:
        """D(x), computed in a dtype, and the state of the sublayer."""
        compute, *_ = self.block.sublayers()[self.which]
        y, entry = compute(x.to(kind), context, self.past, self.step)
        return self.modules[0].dropped(y), entry

    def updated(self, first: Tensor, second: Tensor, context: Context, kind: torch.dtype, free: bool) -> tuple[Tensor, LayerState | None]:
        """x_1 + D(x_2), and the state of the sublayer; free: all other tensors are freed, chunk by chunk."""
        parts = self.slices(second.shape[1])
        if len(parts) == 1:
            y, entry = self.added(leaf(second) if free else second, context, kind)
            return first + (y.detach() if free else y), entry
        watch = None if context.watch is None else _Slices(context.watch)
        context = replace(context, watch=watch)
        made = []
        for part in parts:
            y, _ = self.added(leaf(second[:, part]) if free else second[:, part], context, kind)
            made.append(first[:, part] + (y.detach() if free else y))
            del y  # frees its graph before the next chunk
        if watch is not None:
            watch.done()
        return torch.cat(made, dim=1), None


class _Slices(Watch):
    """Collects the recorded values of chunks, to concatenate them."""

    def __init__(self, outer: Watch) -> None:
        super().__init__(outer.only)
        self.outer = outer
        self.parts: dict[tuple[str, int], list[Tensor]] = {}

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        if self.only is None or name.endswith(self.only):
            self.parts.setdefault((name, step), []).append(value().detach())

    def done(self) -> None:
        """Records the concatenated values."""
        for (name, step), parts in self.parts.items():
            self.outer.note(name, step, partial(torch.cat, parts, dim=1))


def run_reversible(
    halves: Sequence[HalfStep], x: Tensor, context: Context, weights: Sequence[Tensor], ends: Ends, other: Tensor | None = None
) -> tuple[Tensor, Tensor, list[LayerState | None]]:
    """The two halves (batch, length, dim) for input x, and the state of each half step; extra losses are added to context.losses.

    With gradients only the final halves are saved; under torch.compile, which generates its own backward pass, it decides what is saved.
    `weights` are those of the stack. `ends` combines the halves, for an inspection. `other` is the initial second half, if it is not x.
    """
    kind, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
    other = None if other is None else other.to(x.dtype)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        source = None if context.source is None else context.source.hidden
        trained = [w for w in weights if w.requires_grad]
        if trained or any(t is not None and t.requires_grad for t in (x, other, source)):
            forward_pass, states = ReversiblePass.of(halves, context, kind, trained), list[LayerState | None]()
            first, second, *costs = ReversibleFunction.apply(forward_pass, context, ends, states, x, other, source, *trained)  # type: ignore[no-untyped-call]
            add_losses(context.losses, dict(zip(forward_pass.names, costs, strict=True)))
            return first, second, states
    inside = replace(context, losses={})
    first, second, states = run_forward(halves, x, inside, kind, ends, other=other)
    add_losses(context.losses, inside.losses)
    return first, second, states


def run_forward(
    halves: Sequence[HalfStep],
    x: Tensor,
    context: Context,
    kind: torch.dtype,
    ends: Ends,
    random: list[Randomness | None] | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, Tensor, list[LayerState | None]]:
    """Both halves after the last half step, and the state of each half step; extra losses are added to context.losses.

    random: a list that receives the generator states before each half step, so that it can be repeated. Computed tensors are then
    freed; they are still computed with gradients enabled, by the same code as in the backward pass.
    """
    first, second = x, x if other is None else other
    states: list[LayerState | None] = []
    for i, half in enumerate(halves):
        if context.watch is not None and half.which == 0:
            context.watch.note("stream norm", half.step, partial(_norm, ends, first, second))
        inside = context
        if random is not None:
            random.append(Randomness.now(x) if any(m.training for part in half.modules for m in part.modules()) else None)
            inside = replace(context, losses={})
            release_sometimes(i, x)
        made, entry = half.updated(first, second, inside, kind, free=random is not None)
        first, second = second, made  # E95
        states.append(entry)
        if random is not None:
            add_losses(context.losses, {name: loss.detach() for name, loss in inside.losses.items()})
    return first, second, states


@dataclass(eq=False)
class ReversiblePass:
    """What the backward pass needs from the forward pass, beside saved tensors."""

    halves: Sequence[HalfStep]
    context: Context
    """Without references to results: they would keep themselves alive."""
    valid: Tensor | None
    """The mask of real tokens of the source."""
    kind: torch.dtype
    weights: Sequence[Tensor]
    """All trainable weights of the stack: which of them a half step uses is determined when gradients are computed."""
    random: list[Randomness | None] = field(default_factory=list)
    castings: list[Casting] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """The names of the extra losses, in the order in which they are returned."""

    @classmethod
    def of(cls, halves: Sequence[HalfStep], context: Context, kind: torch.dtype, weights: Sequence[Tensor]) -> ReversiblePass:
        """The record of a new forward pass."""
        decisions: Decisions | None = context.channels.get(Decisions)
        # `keep` is unchanged: sublayers may depend on it, as the rotations of LSH do, and the backward pass must repeat them.
        own = replace(context, losses={}, watch=None, source=None).with_channels(Decisions() if decisions is None else decisions)
        return cls(halves, own, None if context.source is None else context.source.valid, kind, weights)

    def context_with(self, context: Context, source: Tensor | None) -> Context:
        """A context with a source, the decisions of the first pass, and separate losses."""
        inside = replace(context, losses={}, source=None if source is None else Source(source, self.valid))
        return inside.with_channels(self.context.channels[Decisions])


class ReversibleFunction(torch.autograd.Function):
    """The whole reversible stack as one autograd function, which saves only its output."""

    @staticmethod
    def forward(
        ctx: Any,
        forward_pass: ReversiblePass,
        context: Context,
        ends: Ends,
        states: list[Any],
        x: Tensor,
        other: Tensor | None,
        source: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        """Both halves, and the extra losses."""
        read = None if source is None else source.detach().requires_grad_(source.requires_grad)
        forward_pass.castings = Casting.now(x)
        context = forward_pass.context_with(context, read)
        with torch.enable_grad():
            start = None if other is None else other.detach()
            first, second, entries = run_forward(
                forward_pass.halves, x.detach(), context, forward_pass.kind, ends, forward_pass.random, start
            )
        states.extend(entries)
        forward_pass.names = list(context.losses)
        ctx.forward_pass, ctx.two = forward_pass, other is not None
        # Saving the weights makes torch check that they were not modified in place; the values are used from the modules.
        ctx.save_for_backward(first, second, source, *weights)
        return first, second, *context.losses.values()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first_slope: Tensor, second_slope: Tensor, *costs: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, of the second half, of the source and of the weights."""
        forward_pass: ReversiblePass = ctx.forward_pass
        first, second, source, *_ = ctx.saved_tensors
        learns = source is not None and source.requires_grad
        read = leaf(source) if learns else source
        release_sometimes(len(forward_pass.halves) // RELEASE_EVERY * RELEASE_EVERY, first)  # memory freed by the forward pass
        back = Back(
            forward_pass, read, dict(zip(forward_pass.names, costs, strict=True)), [*([read] if learns else []), *forward_pass.weights]
        )
        streams, slopes = (first, second), (first_slope, second_slope)
        with replaying(first, forward_pass.castings):
            for i, (half, random) in enumerate(zip(reversed(forward_pass.halves), reversed(forward_pass.random), strict=True)):
                if random is not None:
                    random.restore()
                release_sometimes(i, first)
                streams, slopes = back.undo(half, streams, slopes)
        sums = [back.sums.get(i) for i in range(len(back.leaves))]
        begins = slopes if ctx.two else (slopes[0] + slopes[1], None)
        return None, None, None, None, *begins, *([] if learns else [None]), *sums


@dataclass(eq=False)
class Back:
    """The backward pass: inverts half steps one by one, and accumulates the gradients of shared tensors."""

    forward_pass: ReversiblePass
    source: Tensor | None
    costs: dict[str, Tensor]
    """The gradients of the extra losses."""
    leaves: Sequence[Tensor]
    """The source, if it needs a gradient, and the weights."""
    sums: dict[int, Tensor] = field(default_factory=dict)
    """Their gradients so far, by index of the leaf."""

    def __post_init__(self) -> None:
        # Gradients live until the end. Allocated one by one they would fragment the heap, and the C library would take new memory at every
        # half step, so that memory would grow with depth: so they are allocated at the start, contiguously.
        self.buffers = [torch.empty_like(x) for x in self.leaves]

    def undo(self, half: HalfStep, streams: Pair, slopes: Pair) -> tuple[Pair, Pair]:
        """The halves and their gradients before a half step."""
        (second, made), (second_slope, slope) = streams, slopes
        firsts, seconds = [], []
        for part in half.slices(second.shape[1]):
            y, found = self._again(half, second[:, part], slope[:, part])
            firsts.append(made[:, part] - y)
            seconds.append(second_slope[:, part] if found is None else second_slope[:, part] + found)
        return (_whole(firsts), second), (slope, _whole(seconds))

    def _again(self, half: HalfStep, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor | None]:
        """D(x) and its gradient with respect to x, for the gradient `slope` of D(x); gradients of the leaves are accumulated."""
        x = leaf(x)
        with torch.enable_grad():
            # Modules get views instead of leaves: the hooks of FLOP counters do not run on leaves in autograd.grad.
            source = None if self.source is None else self.source.view_as(self.source)
            context = self.forward_pass.context_with(self.forward_pass.context, source)
            y, _ = half.added(x.view_as(x), context, self.forward_pass.kind)
        ends = [(y, slope.to(y.dtype)), *((loss, self.costs[name]) for name, loss in context.losses.items())]
        ends = [(end, by) for end, by in ends if end.requires_grad]
        found = torch.autograd.grad([end for end, _ in ends], [x, *self.leaves], [by for _, by in ends], allow_unused=True)
        for i, gradient in enumerate(found[1:]):
            if gradient is not None:
                self._add(i, gradient)
        return y.detach(), found[0]

    def _add(self, i: int, gradient: Tensor) -> None:
        if i in self.sums:
            self.sums[i] += gradient
        else:
            self.sums[i] = self.buffers[i].copy_(gradient)


def _norm(ends: Ends, first: Tensor, second: Tensor) -> Tensor:
    """The norms of the combined halves."""
    return norm(ends(first, second).detach())


def release_sometimes(i: int, x: Tensor) -> None:
    """Releases freed memory at every RELEASE_EVERY-th half step i, on a CPU."""
    if i and i % RELEASE_EVERY == 0 and on_host(x):
        release_memory()


def leaf(x: Tensor) -> Tensor:
    """x as a leaf of a new graph."""
    return x.detach().requires_grad_()


def add_losses(losses: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Adds named losses to others."""
    for name, loss in more.items():
        losses[name] = losses[name] + loss if name in losses else loss


def _whole(parts: list[Tensor]) -> Tensor:
    """The concatenation of the chunks of a row."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
