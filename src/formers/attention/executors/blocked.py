"""Attention by pieces: a pattern's plan, run as batches of small matrix products and merged; no n x n tensor in either pass.

o = sum_p exp(l_p - l) o_p        l = log sum_p exp(l_p)        over the pieces p with keys of the query       E23

The backward pass recomputes the weights of a piece as exp(score - l) with the merged l. Logarithms and powers are to base 2, which is
faster; the scale includes the factor. Under torch.compile the pass is one operation of the graph, which gets the pattern as a text and
binds it to the length inside, so that one graph serves every length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors import batched
from formers.attention.executors.row_groups import after_end, row_groups
from formers.attention.executors.sparsity import LARGEST_SHARE, SHORTEST, share, sparse_from
from formers.attention.executors.tiles import EMPTY, LOG2E, SHUT, TILE, PieceTile, Place, Shape, Tiles, tiles, units, wide
from formers.attention.request import Request
from formers.core import Range
from formers.core.compiler import concrete
from formers.core.devices import on_host
from formers.core.random import fresh_seeds, generator
from formers.patterns import Pattern
from formers.patterns.plan import pairs
from formers.patterns.text import pattern_of, pattern_text


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why attention cannot be split into pieces; None if it can."""
    if request.first is not None:
        return "rows contain several episodes"
    if not (request.square and isinstance(request.queries, Range) and request.queries.start == 0):
        return "queries and keys are not the same tokens, beginning at position 0"
    if request.bias is not None:
        return "a term is added to the scores"
    if request.uneven and not on_host(q):
        return "rows have different lengths, and the pattern depends on the length"
    if torch.compiler.is_compiling() and not on_host(q):
        return "under torch.compile the plan of an accelerator would be a constant for each length"
    if torch.compiler.is_compiling() and request.text is None:
        return "under torch.compile only patterns of models are split into pieces"
    return None


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why pieces are not worthwhile; None if they are."""
    n = request.queries.length
    if torch.compiler.is_compiling():
        assert request.text is not None
        shortest = sparse_from(request.text, request.heads)
        # One comparison with a constant, so that there are two graphs at most: for shorter rows and for longer ones.
        return "the pattern is not sparse, or the row is short" if shortest is None or n < shortest else None
    if n < SHORTEST:
        return f"below {SHORTEST} tokens all pairs are computed as fast"
    part = share(request.pattern.of(n), n, request.heads if request.pattern.by_head else 1)
    if part > LARGEST_SHARE:
        return f"the pattern's pieces contain {part:.0%} of all pairs"
    return None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by pieces."""
    if not on_host(q):
        return batched.run(q, k, v, request)
    if q.numel() == 0:
        return torch.zeros_like(v) + v[:, :, :0].sum()  # plus an empty sum, so that it has a gradient
    seeds = _seeds(request, len(q)) if request.dropout else None
    text = pattern_text(request.pattern) if request.text is None else request.text
    out: Tensor = operation(q, k, v, request.valid, seeds, text, request.scale, request.dropout)[0]
    return out


def _seeds(request: Request, batch: int) -> Tensor:
    """The seeds of dropout masks, one for each group of rows with the same pattern; for a graph, one for each row."""
    if not request.uneven:
        return fresh_seeds(1)
    assert request.valid is not None
    readable = concrete(request.valid)
    return fresh_seeds(len(row_groups(request.pattern, request.valid)) if readable else batch)


class BlockedWork(NamedTuple):
    """What both passes share."""

    rounds: list[tuple[Tiles, ...]]
    """Per head."""
    dtype: torch.dtype
    """The dtype of the computation; half precision is converted one row at a time."""
    more: int
    """The number of positions that a row is padded by."""
    scale: float
    dropout: float
    seed: int

    def row(self, x: Tensor) -> Tensor:
        """A row x (n, width), contiguous, padded, in the dtype of the computation; x itself if it already is."""
        return (F.pad(x, (0, 0, 0, self.more)) if self.more else x).to(self.dtype).contiguous()

    def new_rows(self, like: Tensor, clear: bool = True) -> Tensor:
        """A tensor for rows of the shape of `like` (batch, heads, n, width), padded; zeros if `clear`."""
        batch, heads, n, width = like.shape
        make = like.new_zeros if clear else like.new_empty
        return make((batch, heads, n + self.more, width), dtype=self.dtype)

    def buffer(self, like: Tensor) -> dict[Shape, Tensor]:
        """A buffer for the scores of a tile, as a view for each shape."""
        shapes = {tile.shape for rounds in self.rounds for part in rounds for tile in (*part.tiles, *part.back)}
        scores = like.new_empty(max(map(math.prod, shapes), default=0), dtype=self.dtype)
        return {shape: scores[: math.prod(shape)].view(shape) for shape in shapes}

    def dropout_mask(self, s: Tensor, *tile: int) -> Tensor:
        """The dropout mask of the weights s of a tile, 1/(1 - dropout) or 0; the same in both passes."""
        keyed = generator(self.seed, *tile, device=s.device)
        return torch.empty_like(s).bernoulli_(1.0 - self.dropout, generator=keyed).mul_(1.0 / (1.0 - self.dropout))


def _work(q: Tensor, pattern: Pattern, scale: float, dropout: float, seed: int) -> BlockedWork:
    heads, n = q.shape[1:3]
    dtype = wide(q.dtype)
    # Dropout masks are drawn per tile: tiles must not depend on the number of threads, which may change between the two passes.
    limit = TILE if dropout else TILE * torch.get_num_threads()
    rounds = [tiles(pattern, n, head if pattern.by_head else 0, limit, dtype, q.device, not dropout) for head in range(heads)]
    more = max(-n % unit for each in rounds for unit in units(each))
    return BlockedWork(rounds, dtype, more, scale, dropout, seed)


def forward(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, seeds: Tensor | None, text: str, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention of q, k, v (batch, heads, n, width), v of any width, and its log-sums (batch, heads, n).

    text: the pattern; seeds: see `_seeds`, None without dropout.
    """
    pattern = pattern_of(text)
    if valid is None or not pattern.by_length:
        return _forward_batch(q, k, v, valid, _work(q, pattern.of(q.shape[2]), scale, dropout, _seed(seeds)))
    out, lse = torch.zeros_like(v, memory_format=torch.contiguous_format), q.new_zeros(q.shape[:3], dtype=wide(q.dtype))
    for index, group in enumerate(row_groups(pattern, valid)):
        qs, ks, vs = (group.take(x) for x in (q, k, v))
        found = _forward_batch(qs, ks, vs, group.valid, _work(qs, group.pattern.of(group.length), scale, dropout, _seed(seeds, index)))
        for whole, part in zip((out, lse), found, strict=True):
            group.put(whole, part)
    return out.masked_fill_(after_end(valid), 0.0), lse


def _seed(seeds: Tensor | None, index: int = 0) -> int:
    return 0 if seeds is None else int(seeds[index])


def _forward_batch(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, work: BlockedWork) -> tuple[Tensor, Tensor]:
    """The same for rows with one pattern."""
    batch, heads, n, width = q.shape
    out, lse = work.new_rows(v, not all(rounds and rounds[0].whole for rounds in work.rounds)), work.new_rows(q[..., :1])
    with torch.autocast(q.device.type, enabled=False):
        buffer, scaled = work.buffer(q), q.new_empty(n + work.more, width, dtype=work.dtype)
        for row in range(batch):
            shut = _shut(valid, row, work)
            for head in range(heads):
                torch.mul(work.row(q[row, head]), work.scale * LOG2E, out=scaled)
                each = HeadRow(scaled, work.row(k[row, head]), work.row(v[row, head]), shut, lse[row, head], row * heads + head)
                _forward(each, out[row, head], work, work.rounds[head], buffer)
    return out[:, :, :n].to(v.dtype), lse[:, :, :n, 0]


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, seeds: Tensor | None, out: Tensor, lse: Tensor,
    text: str, scale: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, from the gradient g of the output."""
    pattern = pattern_of(text)
    if valid is None or not pattern.by_length:
        return _backward_batch(g, q, k, v, valid, out, lse, _work(q, pattern.of(q.shape[2]), scale, dropout, _seed(seeds)))
    g = g.masked_fill(after_end(valid), 0.0)
    slopes = tuple(torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for index, group in enumerate(row_groups(pattern, valid)):
        gs, qs, ks, vs, outs, sums = (group.take(x) for x in (g, q, k, v, out, lse))
        work = _work(qs, group.pattern.of(group.length), scale, dropout, _seed(seeds, index))
        for whole, part in zip(slopes, _backward_batch(gs, qs, ks, vs, group.valid, outs, sums, work), strict=True):
            group.put(whole, part)
    dq, dk, dv = slopes
    return dq, dk, dv


def _backward_batch(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, out: Tensor, lse: Tensor, work: BlockedWork
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for rows with one pattern."""
    batch, heads, n, width = q.shape
    once = [rounds[0].once if rounds else (False, False) for rounds in work.rounds]
    dq = work.new_rows(q, not all(queries for queries, _ in once))
    dk, dv = (work.new_rows(x, not all(keys for _, keys in once)) for x in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        buffers, scaled = (work.buffer(q), work.buffer(q)), q.new_empty(n + work.more, width, dtype=work.dtype)
        product = v.new_empty(n + work.more, v.shape[3], dtype=work.dtype)
        for row in range(batch):
            shut = _shut(valid, row, work)
            for head in range(heads):
                rows = [work.row(x[row, head]) for x in (q, k, v, g, out, lse[..., None])]
                torch.mul(rows[0], work.scale * LOG2E, out=scaled)
                d = torch.mul(rows[3], rows[4], out=product).sum(dim=-1, keepdim=True)
                each = HeadRow(scaled, rows[1], rows[2], shut, rows[5], row * heads + head)
                _backward(each, BlockedGradients(rows[3], d, dq[row, head], dk[row, head], dv[row, head]), work, work.rounds[head], buffers)
    dq, dk, dv = (x[:, :, :n].to(y.dtype) for x, y in ((dq, q), (dk, k), (dv, v)))
    return dq, dk, dv


# Custom operators, so that a graph, and tools that count costs with fake tensors or profile, contain one operation.
GIVEN, NAMES = "Tensor q, Tensor k, Tensor v, Tensor? valid, Tensor? seeds", "str text, float scale, float dropout"
operation = torch.library.custom_op("formers::blocked", forward, mutates_args=(), schema=f"({GIVEN}, {NAMES}) -> (Tensor, Tensor)")
operation_backward = torch.library.custom_op(
    "formers::blocked_backward", backward, mutates_args=(),
    schema=f"(Tensor g, {GIVEN}, Tensor out, Tensor lse, {NAMES}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=wide(q.dtype))


@operation_backward.register_fake
def _shapes_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.rest = inputs[5:]


def _autograd_backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *operation_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 5


operation.register_autograd(_autograd_backward, setup_context=_setup_context)


def flops(shapes: tuple[tuple[int, ...], ...], text: str, products: tuple[int, int]) -> int:
    """FLOPs over the pairs of a pattern's plan, for a number of products of the width of q, and of v."""
    (batch, heads, n, width), value = shapes[0], shapes[1][3]
    bound = pattern_of(text).of(n)
    each = [pairs(bound.pieces(n, head)) for head in range(heads if bound.by_head else 1)]
    return 2 * batch * sum(each) * (heads // len(each)) * (products[0] * width + products[1] * value)


class HeadRow(NamedTuple):
    """One head of one row of a batch."""

    q: Tensor
    """(n, head_dim), times the scale; scores are logarithms to base 2."""
    k: Tensor
    v: Tensor
    shut: Tensor | None
    """(n, 1), added to the scores of keys: SHUT at padding."""
    lse: Tensor
    """(n, 1), the log-sums."""
    number: int


class BlockedGradients(NamedTuple):
    """The inputs of the backward pass of a row, and the tensors that its gradients are added to."""

    g: Tensor
    """The gradient (n, value_dim) of the output."""
    d: Tensor
    """(n, 1), the dot products of g and the output."""
    dq: Tensor
    dk: Tensor
    dv: Tensor


def _shut(valid: Tensor | None, row: int, work: BlockedWork) -> Tensor | None:
    """Added to the scores of a row's keys, (n, 1): SHUT at padding; None without padding."""
    if valid is None:
        return None
    return work.row(valid[row].to(work.dtype)[:, None].sub_(1.0).mul_(-SHUT))


def _scores(q: Tensor, k: Tensor, tile: PieceTile, shut: Tensor | None, buffer: dict[Shape, Tensor]) -> Tensor:
    """The scores of a tile (groups, keys, queries), SHUT at masked pairs."""
    s = buffer[tile.shape]
    torch.bmm(k, q.mT, out=s)  # keys first: products of long thin matrices are faster in this order
    if tile.term is not None:
        s[:, -len(tile.term) :].add_(tile.term)
    if shut is not None:
        s.add_(tile.keys.take(shut))
    return s


def _forward(row: HeadRow, out: Tensor, work: BlockedWork, rounds: tuple[Tiles, ...], buffer: dict[Shape, Tensor]) -> None:
    """Writes the output (n, value_dim) of a row, and its log-sums."""
    lse = row.lse
    if not (rounds and rounds[0].whole):
        lse.fill_(EMPTY)
    for order, part in enumerate(rounds):
        k, v, shut = _among(part.among, row)
        for index, tile in enumerate(part.tiles):
            a, b = tile.queries, tile.keys
            s = _scores(a.take(row.q), b.take(k), tile, shut, buffer)
            top = s.amax(dim=1, keepdim=True).clamp_(min=EMPTY)
            s.sub_(top).exp2_()
            total = s.sum(dim=1, keepdim=True).clamp_(min=1e-30)
            if work.dropout:
                s.mul_(work.dropout_mask(s, row.number, order, index))
            y, top, total = torch.bmm(s.mT, b.take(v)), top.mT, total.mT
            if order == 0:
                a.put(out, y.div_(total))
                a.put(lse, total.log2_().add_(top))
            else:
                y, sums = merge(a.take(out), a.take(lse), y, top, total)
                a.put(out, y)
                a.put(lse, sums)


def merge(first: Tensor, l1: Tensor, second: Tensor, top2: Tensor, total2: Tensor) -> tuple[Tensor, Tensor]:
    """Merges two partial attentions, a normalised one and an unnormalised sum of values; returns the result and its log-sum."""
    top = torch.maximum(l1, top2)
    one, two = (l1 - top).exp2_(), (top2 - top).exp2_()
    total = torch.addcmul(one, two, total2)
    return second.mul_(two.div_(total)).addcmul_(first, one.div_(total)), total.log2_().add_(top)  # E23


def _backward(
    row: HeadRow, back: BlockedGradients, work: BlockedWork, rounds: tuple[Tiles, ...], buffers: Sequence[dict[Shape, Tensor]]
) -> None:
    """Adds the gradients of a row."""
    for order, part in enumerate(rounds):
        k, v, shut = _among(part.among, row)
        dk, dv = (back.dk, back.dv) if part.among is None else (torch.zeros_like(k), torch.zeros_like(v))
        new_queries, new_keys = (order == 0 and once for once in part.once)
        for index, tile in enumerate(part.back):
            a, b = tile.queries, tile.keys
            qt, kt, gt = a.take(row.q), b.take(k), a.take(back.g)
            p = _scores(qt, kt, tile, shut, buffers[0]).sub_(a.take(row.lse).mT).exp2_()
            s = buffers[1][tile.shape]
            torch.bmm(b.take(v), gt.mT, out=s)
            if work.dropout:
                keep = work.dropout_mask(s, row.number, order, index)
                s.mul_(keep)
                b.write(dv, keep.mul_(p), gt, new_keys)
            else:
                b.write(dv, p, gt, new_keys)
            s.sub_(a.take(back.d).mT).mul_(p)
            b.write(dk, s, qt, new_keys, 1.0 / LOG2E)  # the queries include the scale and log2(e)
            a.write(back.dq, s.mT, kt, new_queries, work.scale)
        if part.among is not None:
            part.among.add(back.dk, dk[None])
            part.among.add(back.dv, dv[None])


def _among(where: Place | None, row: HeadRow) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and the mask term of keys, in the order in which the tiles of a round index them."""
    if where is None:
        return row.k, row.v, row.shut
    return where.take(row.k)[0], where.take(row.v)[0], None if row.shut is None else where.take(row.shut)[0]
