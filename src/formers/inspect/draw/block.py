"""One block, drawn in text: its sublayers, and how each joins the stream that runs down the left.

x + F(LN(x))        pre-norm: the norm on the branch
LN(x + F(x))        post-norm: the norm on the stream
F(x)                bare: no branch at all
g(x, ReLU F(LN(x))) gated: the gate where the branch comes back
(b, a + F(LN(b)))   reversible: two streams, which swap after every sublayer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import singledispatch
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import nn

from formers.attention import Attention, ByLayer, DotProduct
from formers.core import Slot
from formers.depth import Shared, Stacked
from formers.feedforward import NoFeedForward
from formers.heads import NoHead
from formers.inspect.draw.terminal import TIMES, sayable
from formers.memory import NoMemory
from formers.model import Spec
from formers.patterns import Intersection, Union
from formers.position import NoPosition
from formers.recurrent import Aligned, Pondering, Recurrent, Window
from formers.residual import Bare, Gated, NormOnly, Plain, PostNorm, PreNorm, Residual, Reversible
from formers.score import NoScore

WIDTH = 30
"""Characters inside the frame of a block."""
STREAM = 3
"""The column in which the stream runs down, from the frame on."""
SILENT = (NoPosition, NoScore, NoMemory, NoHead, NoFeedForward, DotProduct)
"""Parts that a drawing omits, because they add nothing or are the default."""


class Sublayer(NamedTuple):
    """What a block does in one of its steps, and the parts that shape it."""

    title: str
    detail: str


def draw_block(spec: Spec, encoding: str = "utf-8") -> str:
    """One block of a spec with what comes before and after it; encoder and decoder side by side where there are two stacks."""
    if spec.encoder is None:
        return sayable("\n".join(_column(spec, "")), encoding)
    left, right = _column(spec.encoder, "source", last="to the decoder"), _column(spec, "target")
    width = max(map(len, left)) + 2
    lines = [f"{a:{width}}{b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    return sayable("\n".join(lines), encoding)


def sublayers(spec: Spec) -> list[Sublayer]:
    """The sublayers of a block in the order in which the stream meets them."""
    kinds = spec.attention.kinds
    shaped: tuple[Slot, ...] = (kinds[0] if len(kinds) == 1 else spec.attention, spec.pattern, spec.score, spec.memory)
    # The title of a recurrent layer already names it, and its pattern is part of what it is.
    found = [Sublayer(attention_title(spec.attention), _names(*(shaped[2:] if spec.attention.carries else shaped)))]
    if spec.encoder is not None and not spec.attention.reads_source:
        found.append(Sublayer("cross-attention", "over the encoder"))
    if not isinstance(spec.feedforward, NoFeedForward):
        found.append(Sublayer("feed-forward", _names(spec.feedforward)))
    return found


@singledispatch
def attention_title(attention: Attention) -> str:
    """The name of an attention's sublayer in the diagram."""
    return "self-attention"


@attention_title.register
def _(attention: ByLayer) -> str:
    return ", ".join(dict.fromkeys(attention_title(kind) for kind in attention.kinds))


@attention_title.register
def _(attention: Recurrent) -> str:
    return f"{attention.cell} recurrence"


@attention_title.register
def _(attention: Pondering) -> str:
    return f"{attention.cell} recurrence, {'up to ' if attention.ponders else ''}{attention.steps} steps"


@attention_title.register
def _(attention: Window) -> str:
    return f"window of {attention.window}"


@attention_title.register
def _(attention: Aligned) -> str:
    return f"{attention.cell} recurrence" if attention.alignment == "none" else f"{attention.cell}, {attention.alignment} alignment"


def _names(*parts: Slot) -> str:
    """The names of parts, without those that go without saying."""
    return ", ".join(_name(part) for part in parts if not isinstance(part, SILENT))


def _name(part: Slot) -> str:
    if isinstance(part, Union | Intersection):
        return f"{_name(part.first)} {'|' if isinstance(part, Union) else '&'} {_name(part.second)}"
    return type(part).__name__


def _column(spec: Spec, side: str, last: str = "") -> list[str]:
    """The lines of one stack, from its input to its head."""
    lines = _before(spec, side)
    lines.append("╭" + _at_stream("┼", "─") + "╮")
    join = JOINS.get(type(spec.residual), _other)
    for sublayer in sublayers(spec):
        lines += [f"│{line[:WIDTH]:{WIDTH}}│" for line in join(sublayer, spec.residual)]
    lines.append("╰" + _at_stream("┼", "─") + f"╯ {_times(spec)}")
    with torch.device("meta"):
        final = spec.residual.build_final(spec.dim)
    if not isinstance(final, nn.Identity):
        lines += [_under("│"), f"  {type(final).__name__}"]
    return [*lines, _under("▼"), f"  {last or _names(spec.head) or 'hidden states'}"]


def _before(spec: Spec, side: str) -> list[str]:
    """From the input to the first block."""
    into, source = ("linear", "features") if spec.features is not None else ("embedding", "tokens")
    if spec.fact is not None:
        into, source = "sum of masked embeddings", f"facts of {spec.fact} words"
    position = _names(spec.position)
    added = [_under(f"+── {position}")] if position else []
    if spec.extra:
        added.append(_under(f"+── {spec.extra} extra before"))
    return [f"  {side} {source}" if side else f"  {source}", _under("│"), f"  {into}", _under("│"), *added]


def _times(spec: Spec) -> str:
    """How often the block is applied, and what is unusual about it."""
    if spec.depth.ponders is not None:
        return f"{TIMES} at most {spec.depth.ponders}"
    times = f"{TIMES} {spec.depth.steps}"
    if isinstance(spec.depth, Stacked):
        return times
    return f"{times}, {'the same weights' if isinstance(spec.depth, Shared) else type(spec.depth).__name__}"


def _under(mark: str) -> str:
    return " " * (STREAM + 1) + mark


def _at_stream(mark: str, fill: str) -> str:
    return fill * STREAM + mark + fill * (WIDTH - STREAM - 1)


def _branch(middle: Iterator[str] | list[str]) -> Iterator[str]:
    """Lines beside the stream, between where the branch leaves it and where it comes back."""
    turn = 12
    yield " " * STREAM + "├" + "─" * turn + "╮"
    for line in middle:
        yield " " * STREAM + "│" + f"{line:^{2 * turn + 1}}"
    yield " " * STREAM + "+" + "─" * turn + "╯"


def _said(sublayer: Sublayer) -> list[str]:
    return [line for line in sublayer if line]


def _pre_norm(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    yield from _branch(["LayerNorm", *_said(sublayer)])


def _post_norm(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    yield from _branch(_said(sublayer))
    yield " LayerNorm"


def _bare(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    yield " " + sublayer.title + (f" ({sublayer.detail})" if sublayer.detail else "")
    yield " " * STREAM + "│"


def _plain(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    yield from _branch(_said(sublayer))


def _norm_only(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    first = isinstance(residual, NormOnly) and residual.of == "pre"
    if first:
        yield " LayerNorm"
    yield from _bare(sublayer, residual)
    if not first:
        yield " LayerNorm"


def _reversible(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    """Of the pair that runs down, the first is given what the sublayer makes of the second."""
    *before, back = _branch(["second of two", "LayerNorm", *_said(sublayer)])
    yield from before
    yield f"{back} to the first"
    yield " the two trade places"


def _gated(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    assert isinstance(residual, Gated)
    *before, back = _branch(["LayerNorm", *_said(sublayer), "ReLU"])
    yield from before
    yield back if residual.kind == "sum" else f"{back} {residual.kind} gate".replace("+", "g", 1)


def _other(sublayer: Sublayer, residual: Residual) -> Iterator[str]:
    """A residual without its own drawing: its name is where the branch comes back."""
    *before, back = _branch(_said(sublayer))
    yield from before
    yield f"{back} {type(residual).__name__}"


JOINS: dict[type[Residual], Callable[[Sublayer, Residual], Iterator[str]]] = {
    PreNorm: _pre_norm,
    PostNorm: _post_norm,
    Bare: _bare,
    Plain: _plain,
    NormOnly: _norm_only,
    Gated: _gated,
    Reversible: _reversible,
}
