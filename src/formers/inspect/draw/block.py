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
from typing import Literal, NamedTuple

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


def position_names(spec: Spec) -> str:
    """The positions that are added to the stream, in a word; nothing where there are none."""
    return _names(spec.position)


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
    join = join_of(spec.residual)
    for sublayer in sublayers(spec):
        lines += [f"│{line[:WIDTH]:{WIDTH}}│" for line in _joined(sublayer, join)]
    lines.append("╰" + _at_stream("┼", "─") + f"╯ {times_words(spec)}")
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


def times_words(spec: Spec) -> str:
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


class Join(NamedTuple):
    """How a sublayer joins the stream: what stands on its branch, and what becomes of the branch and the stream."""

    before: tuple[str, ...] = ()
    """What the branch passes before the sublayer; the stream itself where there is no branch."""
    after: tuple[str, ...] = ()
    """What the branch passes behind it."""
    sign: Literal["+", "g", ""] = "+"
    """A sum, a gate, or nothing where there is no branch."""
    label: str = ""
    """What stands beside the sign."""
    behind: tuple[str, ...] = ()
    """What the stream passes behind the sign."""


def join_of(residual: Residual) -> Join:
    """How the sublayers of a residual join the stream; one without a drawing of its own is a sum with its name."""
    return JOINS.get(type(residual), _other)(residual)


def _joined(sublayer: Sublayer, join: Join) -> Iterator[str]:
    """The lines of a sublayer and its residual connection."""
    if join.sign:
        *lines, back = _branch([*join.before, *_said(sublayer), *join.after])
        yield from lines
        yield f"{back.replace('+', join.sign, 1)} {join.label}".rstrip()
    else:
        yield from (f" {word}" for word in join.before)
        yield " " + sublayer.title + (f" ({sublayer.detail})" if sublayer.detail else "")
        yield " " * STREAM + "│"
    yield from (f" {word}" for word in join.behind)


def _gated(residual: Residual) -> Join:
    assert isinstance(residual, Gated)
    gate = residual.kind != "sum"
    return Join((NORM,), ("ReLU",), "g" if gate else "+", f"{residual.kind} gate" if gate else "")


def _norm_only(residual: Residual) -> Join:
    first = isinstance(residual, NormOnly) and residual.of == "pre"
    return Join((NORM,), sign="") if first else Join(sign="", behind=(NORM,))


def _other(residual: Residual) -> Join:
    return Join(label=type(residual).__name__)


NORM = "LayerNorm"
JOINS: dict[type[Residual], Callable[[Residual], Join]] = {
    PreNorm: lambda _: Join((NORM,)),
    PostNorm: lambda _: Join(behind=(NORM,)),
    Bare: lambda _: Join(sign=""),
    Plain: lambda _: Join(),
    NormOnly: _norm_only,
    Gated: _gated,
    # Of the pair that runs down, the first is given what the sublayer makes of the second.
    Reversible: lambda _: Join(("second of two", NORM), label="to the first", behind=("the two trade places",)),
}
"""By residual, how its sublayers join the stream."""
