"""Two streams through a stack by half steps, of which a backward pass needs no activations but those of the sublayer it is at.

(x_1, x_2) <- (x_2, x_1 + D(x_2))          D = Drop(F(LN(.))), a half step                              E95
x_1 = x'_2 - D(x_2)                        undone, from what the half step gave: (x_2, x'_2)
g_1 = g'_2,  g_2 = g'_1 + g'_2 dD/dx_2     gradients of its input, by those of its output

The forward pass keeps the last two streams, and what is needed to run each D once more and get the same: the state of the random
numbers, autocast, and what was decided (`Decisions`). The backward pass goes through the half steps in reverse. It computes D
again from x_2, takes its gradient at once, and subtracts D to find x_1. The gradients of weights are returned as those of inputs, never
written by a backward pass within: so DistributedDataParallel sees them as it does any other's, and weights that several steps
share get their sum.

Streams are at least float32, whatever the weights are: what is added and subtracted again must not drift. A sublayer is given what it
would have been given without that.

A sublayer that treats every place alone may have an attribute `chunk`: its half step is then done for so many places at a time, in
both directions, and the activations of one slice live at once.
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
from formers.core.state import LayerState
from formers.model.replay import Casting, Randomness, replaying
from formers.residual.norm import DropoutResidual

if TYPE_CHECKING:
    from formers.model.block import Block

Ends = Callable[[Tensor, Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
TIDY = 8
"""After so many half steps freed memory is given back: gradients of weights lie scattered among it, and glibc would let it grow."""


class HalfStep(NamedTuple):
    """A half step: sublayer number `which` of a block at a depth step, and what it left behind before."""

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
        """The places that are computed at once."""
        chunk = getattr(self.modules[1], "chunk", None)
        return [slice(start, start + chunk) for start in range(0, length, chunk)] if chunk else [slice(0, length)]

    def added(self, x: Tensor, context: Context, kind: torch.dtype) -> tuple[Tensor, LayerState | None]:
        """D(x), computed in a type, and what the sublayer leaves behind."""
        compute, *_ = self.block.sublayers()[self.which]
        y, entry = compute(x.to(kind), context, self.past, self.step)
        return self.modules[0].dropped(y), entry

    def joined(self, first: Tensor, second: Tensor, context: Context, kind: torch.dtype, free: bool) -> tuple[Tensor, LayerState | None]:
        """x_1 + D(x_2), and what the sublayer leaves behind; free: all else that is computed is let go, slice by slice."""
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
            del y  # and all that it was made of, before the next slice
        if watch is not None:
            watch.done()
        return torch.cat(made, dim=1), None


class _Slices(Watch):
    """Gathers notes of slices, to put them one behind the other."""

    def __init__(self, outer: Watch) -> None:
        super().__init__(outer.only)
        self.outer = outer
        self.parts: dict[tuple[str, int], list[Tensor]] = {}

    def note(self, name: str, step: int, value: Callable[[], Any]) -> None:
        if self.only is None or name.endswith(self.only):
            self.parts.setdefault((name, step), []).append(value().detach())

    def done(self) -> None:
        """Notes them where they belong."""
        for (name, step), parts in self.parts.items():
            self.outer.note(name, step, partial(torch.cat, parts, dim=1))


def run_reversible(
    halves: Sequence[HalfStep], x: Tensor, context: Context, weights: Sequence[Tensor], ends: Ends, other: Tensor | None = None
) -> tuple[Tensor, Tensor, list[LayerState | None]]:
    """The two streams (batch, length, dim) that x becomes, and what each half step leaves behind; extra losses go into stream.losses.

    Where gradients are wanted, only the end of the way is kept for them; under torch.compile, which has a backward pass of its own, all
    that it wants. `weights` are those of the stack, `ends` is how streams end, for whoever looks on. `other` is the second stream at the
    start, where it is not x too.
    """
    kind, x = x.dtype, x.to(torch.promote_types(x.dtype, torch.float32))
    other = None if other is None else other.to(x.dtype)
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        source = None if context.source is None else context.source.hidden
        learnt = [w for w in weights if w.requires_grad]
        if learnt or any(t is not None and t.requires_grad for t in (x, other, source)):
            passage, left = ReversiblePass.of(halves, context, kind, learnt), list[LayerState | None]()
            first, second, *costs = ReversibleFunction.apply(passage, context, ends, left, x, other, source, *learnt)  # type: ignore[no-untyped-call]
            add_up(context.losses, dict(zip(passage.names, costs, strict=True)))
            return first, second, left
    inside = replace(context, losses={})
    first, second, left = through(halves, x, inside, kind, ends, other=other)
    add_up(context.losses, inside.losses)
    return first, second, left


def through(
    halves: Sequence[HalfStep],
    x: Tensor,
    context: Context,
    kind: torch.dtype,
    ends: Ends,
    random: list[Randomness | None] | None = None,
    other: Tensor | None = None,
) -> tuple[Tensor, Tensor, list[LayerState | None]]:
    """Both streams behind the last half step, and what each half step leaves behind; extra losses go into stream.losses.

    random: where the states of random numbers before each half step are gathered, so that it can be run again. What it computes is then
    let go; it is computed with gradients all the same, by the very code that the backward pass will run.
    """
    first, second = x, x if other is None else other
    left: list[LayerState | None] = []
    for i, half in enumerate(halves):
        if context.watch is not None and half.which == 0:
            context.watch.note("stream norm", half.step, partial(_norm, ends, first, second))
        inside = context
        if random is not None:
            random.append(Randomness.now(x) if any(m.training for part in half.modules for m in part.modules()) else None)
            inside = replace(context, losses={})
            tidy(i, x)
        made, entry = half.joined(first, second, inside, kind, free=random is not None)
        first, second = second, made  # E95
        left.append(entry)
        if random is not None:
            add_up(context.losses, {name: loss.detach() for name, loss in inside.losses.items()})
    return first, second, left


@dataclass(eq=False)
class ReversiblePass:
    """What the way back must know of the way through, beside tensors that were given or returned."""

    halves: Sequence[HalfStep]
    context: Context
    """Without anything that hangs on the results: else these would keep themselves alive."""
    valid: Tensor | None
    """Which places of the source are real."""
    kind: torch.dtype
    weights: Sequence[Tensor]
    """All that can learn in the stack: which of them a half step has used is found out by asking for gradients."""
    random: list[Randomness | None] = field(default_factory=list)
    castings: list[Casting] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Those of the extra losses, in the order in which they are returned."""

    @classmethod
    def of(cls, halves: Sequence[HalfStep], context: Context, kind: torch.dtype, weights: Sequence[Tensor]) -> ReversiblePass:
        """The passage that a stream begins."""
        decisions: Decisions | None = context.channels.get(Decisions)
        # `keep` stays: what a sublayer computes may depend on it, as the rotations of LSH do, and the way back computes the same again.
        kept = replace(context, losses={}, watch=None, source=None).with_channels(Decisions() if decisions is None else decisions)
        return cls(halves, kept, None if context.source is None else context.source.valid, kind, weights)

    def reading(self, context: Context, source: Tensor | None) -> Context:
        """A stream over a source, with what has been decided and losses of its own."""
        inside = replace(context, losses={}, source=None if source is None else Source(source, self.valid))
        return inside.with_channels(self.context.channels[Decisions])


class ReversibleFunction(torch.autograd.Function):
    """The whole way of both streams, of which the end is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        passage: ReversiblePass,
        context: Context,
        ends: Ends,
        left: list[Any],
        x: Tensor,
        other: Tensor | None,
        source: Tensor | None,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        """Both streams, and the extra losses."""
        read = None if source is None else source.detach().requires_grad_(source.requires_grad)
        passage.castings = Casting.now(x)
        context = passage.reading(context, read)
        with torch.enable_grad():
            start = None if other is None else other.detach()
            first, second, entries = through(passage.halves, x.detach(), context, passage.kind, ends, passage.random, start)
        left.extend(entries)
        passage.names = list(context.losses)
        ctx.passage, ctx.two = passage, other is not None
        # The weights are read where they are. Saved, they are checked for having stayed what they were.
        ctx.save_for_backward(first, second, source, *weights)
        return first, second, *context.losses.values()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, first_slope: Tensor, second_slope: Tensor, *costs: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, of the second stream, of the source and of the weights."""
        passage: ReversiblePass = ctx.passage
        first, second, source, *_ = ctx.saved_tensors
        learns = source is not None and source.requires_grad
        read = leaf(source) if learns else source
        tidy(len(passage.halves) // TIDY * TIDY, first)  # what the way through has freed, if it was long
        back = Back(passage, read, dict(zip(passage.names, costs, strict=True)), [*([read] if learns else []), *passage.weights])
        streams, slopes = (first, second), (first_slope, second_slope)
        with replaying(first, passage.castings):
            for i, (half, random) in enumerate(zip(reversed(passage.halves), reversed(passage.random), strict=True)):
                if random is not None:
                    random.restore()
                tidy(i, first)
                streams, slopes = back.undo(half, streams, slopes)
        sums = [back.sums.get(i) for i in range(len(back.leaves))]
        begins = slopes if ctx.two else (slopes[0] + slopes[1], None)
        return None, None, None, None, *begins, *([] if learns else [None]), *sums


@dataclass(eq=False)
class Back:
    """The way back: half steps are undone one by one, and the gradients of what they all share add up."""

    passage: ReversiblePass
    source: Tensor | None
    costs: dict[str, Tensor]
    """The gradients of the extra losses."""
    leaves: Sequence[Tensor]
    """The source, where it learns, and the weights."""
    sums: dict[int, Tensor] = field(default_factory=dict)
    """Their gradients so far, by their places among the leaves."""

    def __post_init__(self) -> None:
        # Gradients live to the end. Made one by one they would lie scattered among what is freed again, and the C library would take new
        # room at every half step, so that memory would grow with depth after all: theirs is taken before, side by side.
        self.room = [torch.empty_like(x) for x in self.leaves]

    def undo(self, half: HalfStep, streams: Pair, slopes: Pair) -> tuple[Pair, Pair]:
        """What streams and their gradients were before a half step."""
        (second, made), (second_slope, slope) = streams, slopes
        firsts, seconds = [], []
        for part in half.slices(second.shape[1]):
            y, found = self._again(half, second[:, part], slope[:, part])
            firsts.append(made[:, part] - y)
            seconds.append(second_slope[:, part] if found is None else second_slope[:, part] + found)
        return (_whole(firsts), second), (slope, _whole(seconds))

    def _again(self, half: HalfStep, x: Tensor, slope: Tensor) -> tuple[Tensor, Tensor | None]:
        """D(x) and its gradient by x, for the gradient `slope` of D(x); those of the leaves are added to their sums."""
        x = leaf(x)
        with torch.enable_grad():
            # Modules are given tensors that are no leaves: what counts FLOPs has hooks that autograd.grad does not run on leaves.
            source = None if self.source is None else self.source.view_as(self.source)
            context = self.passage.reading(self.passage.context, source)
            y, _ = half.added(x.view_as(x), context, self.passage.kind)
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
            self.sums[i] = self.room[i].copy_(gradient)


def _norm(ends: Ends, first: Tensor, second: Tensor) -> Tensor:
    """How long the vectors of two streams are, if these end here."""
    return norm(ends(first, second).detach())


def tidy(i: int, x: Tensor) -> None:
    """Gives freed memory back to the system now and then: at half step i of streams like x, on a CPU."""
    if i and i % TIDY == 0 and x.device.type == "cpu":
        release_memory()


def leaf(x: Tensor) -> Tensor:
    """x as the beginning of a graph."""
    return x.detach().requires_grad_()


def add_up(losses: dict[str, Tensor], more: dict[str, Tensor]) -> None:
    """Adds named losses to others."""
    for name, loss in more.items():
        losses[name] = losses[name] + loss if name in losses else loss


def _whole(parts: list[Tensor]) -> Tensor:
    """Slices of a row, side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
