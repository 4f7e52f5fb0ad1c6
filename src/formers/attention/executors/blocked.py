"""Attention by pieces: a pattern's plan, run as batches of small matrix products and merged; no n x n tensor in either direction.

o = sum_p exp(l_p - l) o_p        l = log sum_p exp(l_p)        over the pieces p that hold a query's keys       E23

The backward pass computes the weights of a piece again, as exp(score - l) with the merged l: they are what they are, whoever else is
in the sum. Logarithms and powers are those of 2, which processors are good at: the scale takes the factor in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.handles import HandleTable
from formers.attention.executors.tiles import EMPTY, LOG2E, SHUT, TILE, PieceTile, Place, Shape, Tiles, tiles, units, wide
from formers.attention.request import Request
from formers.core import Range
from formers.core.random import fresh_seed, generator
from formers.patterns import Pattern
from formers.patterns.plan import pairs

SHORTEST = 512
"""Below this length the fused kernel over all pairs is as fast."""
LARGEST_SHARE = 0.4
"""Above this share of all pairs the fused kernel, which computes all of them, is as fast."""
LARGE_TILE = 1 << 24
"""Pairs of a tile on other devices, which have a launch to pay for each step."""


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why attention cannot be cut into pieces; None if it can."""
    if request.first is not None:
        return "rows hold several episodes, of which a query sees its own"
    if not (request.square and isinstance(request.queries, Range) and request.queries.start == 0):
        return "queries and keys are not the same tokens from the first on"
    if request.bias is not None:
        return "a term is added to the scores"
    if torch.compiler.is_compiling():
        return "torch.compile sees whole tensors better than pieces"
    return None


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why pieces are not worthwhile; None if they are."""
    n = request.queries.length
    if n < SHORTEST:
        return f"below {SHORTEST} tokens all pairs are computed as fast"
    share = _share(request.pattern.of(n), n, request.heads if request.pattern.by_head else 1)
    if share > LARGEST_SHARE:
        return f"the pattern's pieces hold {share:.0%} of all pairs"
    return None


@lru_cache(maxsize=512)
def _share(pattern: Pattern, n: int, heads: int) -> float:
    """The share of all pairs that the pieces of a pattern hold."""
    return sum(pairs(pattern.pieces(n, head)) for head in range(heads)) / (n * n * heads)


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention by pieces."""
    if request.uneven:
        return _rows(q, k, v, request)
    if q.numel() == 0:
        return torch.zeros_like(v)
    seed = fresh_seed() if request.dropout else 0
    pattern = PATTERNS.number(request.pattern.of(q.shape[2]))
    out: Tensor = operation(q, k, v, request.valid, pattern, request.scale, request.dropout, seed)[0]
    return out


def _rows(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention of padded rows whose pattern depends on where they end: rows of one pattern together, cut off behind the longest."""
    assert request.valid is not None
    # What is read from the device here chooses a plan, not an executor: plans are made of numbers.
    stop = request.ends()
    ends, counts = stop.tolist(), request.valid.sum(dim=1).tolist()
    alike: dict[Pattern, list[int]] = {}
    for row, end in enumerate(ends):
        if end:
            alike.setdefault(request.pattern.of(end), []).append(row)
    out = torch.zeros_like(v) + v[:, :, :0].sum()  # a sum of nothing: a batch of padding has a gradient, too
    for pattern, rows in alike.items():
        n = max(ends[row] for row in rows)
        valid = None if all(counts[row] == n for row in rows) else request.valid[rows, :n]
        here = request._replace(pattern=pattern, queries=Range(0, n), keys=Range(0, n), valid=valid)
        out[rows, :, :n] = run(q[rows, :, :n], k[rows, :, :n], v[rows, :, :n], here)
    behind = torch.arange(q.shape[2], device=q.device) >= stop[:, None]
    return out.masked_fill(behind[:, None, :, None], 0.0)


class BlockedWork(NamedTuple):
    """What both directions share."""

    rounds: list[tuple[Tiles, ...]]
    """By head."""
    dtype: torch.dtype
    """What is computed in: half precision is widened a row at a time."""
    more: int
    """Places that a row is padded with."""
    scale: float
    dropout: float
    seed: int

    def row(self, x: Tensor) -> Tensor:
        """A row x (n, width), contiguous, padded, in the type that is computed in: x itself where it is all that."""
        return (F.pad(x, (0, 0, 0, self.more)) if self.more else x).to(self.dtype).contiguous()

    def room(self, like: Tensor, clear: bool = True) -> Tensor:
        """As many rows as those of (batch, heads, n, width), padded, all 0 if `clear`."""
        batch, heads, n, width = like.shape
        make = like.new_zeros if clear else like.new_empty
        return make((batch, heads, n + self.more, width), dtype=self.dtype)

    def buffer(self, like: Tensor) -> dict[Shape, Tensor]:
        """Room for the scores of a tile, by its shape: all in one place."""
        shapes = {tile.shape for rounds in self.rounds for part in rounds for tile in (*part.tiles, *part.back)}
        room = like.new_empty(max(map(math.prod, shapes), default=0), dtype=self.dtype)
        return {shape: room[: math.prod(shape)].view(shape) for shape in shapes}

    def kept(self, s: Tensor, *tile: int) -> Tensor:
        """1/(1 - dropout) for the weights s of a tile that are kept, 0 for the others: the same in both directions."""
        keyed = generator(self.seed, *tile, device=s.device)
        return torch.empty_like(s).bernoulli_(1.0 - self.dropout, generator=keyed).mul_(1.0 / (1.0 - self.dropout))


def _work(q: Tensor, pattern: Pattern, scale: float, dropout: float, seed: int) -> BlockedWork:
    heads, n = q.shape[1:3]
    dtype = wide(q.dtype)
    # What is dropped is drawn tile by tile: it must not depend on the threads, which may change between the two directions.
    limit = (TILE if dropout else TILE * torch.get_num_threads()) if q.device.type == "cpu" else LARGE_TILE
    rounds = [tiles(pattern, n, head if pattern.by_head else 0, limit, dtype, q.device, not dropout) for head in range(heads)]
    more = max(-n % unit for each in rounds for unit in units(each))
    return BlockedWork(rounds, dtype, more, scale, dropout, seed)


def forward(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, pattern: int, scale: float, dropout: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Attention of q, k, v (batch, heads, n, width), v with a width of its own, and the logarithms of its sums (batch, heads, n)."""
    (batch, heads, n, width), work = q.shape, _work(q, PATTERNS[pattern], scale, dropout, seed)
    out, lse = work.room(v, not all(rounds and rounds[0].whole for rounds in work.rounds)), work.room(q[..., :1])
    with torch.autocast(q.device.type, enabled=False):
        buffer, scaled = work.buffer(q), q.new_empty(n + work.more, width, dtype=work.dtype)
        for row in range(batch):
            shut = _shut(valid, row, work)
            for head in range(heads):
                torch.mul(work.row(q[row, head]), scale * LOG2E, out=scaled)
                each = HeadRow(scaled, work.row(k[row, head]), work.row(v[row, head]), shut, lse[row, head], row * heads + head)
                _forward(each, out[row, head], work, work.rounds[head], buffer)
    return out[:, :, :n].to(v.dtype), lse[:, :, :n, 0]


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, out: Tensor, lse: Tensor,
    pattern: int, scale: float, dropout: float, seed: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v, for g of the output."""
    (batch, heads, n, width), work = q.shape, _work(q, PATTERNS[pattern], scale, dropout, seed)
    once = [rounds[0].once if rounds else (False, False) for rounds in work.rounds]
    dq = work.room(q, not all(queries for queries, _ in once))
    dk, dv = (work.room(x, not all(keys for _, keys in once)) for x in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        buffers, scaled = (work.buffer(q), work.buffer(q)), q.new_empty(n + work.more, width, dtype=work.dtype)
        product = v.new_empty(n + work.more, v.shape[3], dtype=work.dtype)
        for row in range(batch):
            shut = _shut(valid, row, work)
            for head in range(heads):
                rows = [work.row(x[row, head]) for x in (q, k, v, g, out, lse[..., None])]
                torch.mul(rows[0], scale * LOG2E, out=scaled)
                d = torch.mul(rows[3], rows[4], out=product).sum(dim=-1, keepdim=True)
                each = HeadRow(scaled, rows[1], rows[2], shut, rows[5], row * heads + head)
                _backward(each, BlockedGradients(rows[3], d, dq[row, head], dk[row, head], dv[row, head]), work, work.rounds[head], buffers)
    dq, dk, dv = (x[:, :, :n].to(y.dtype) for x, y in ((dq, q), (dk, k), (dv, v)))
    return dq, dk, dv


PATTERNS: HandleTable[Pattern] = HandleTable()

# As operations of torch they are one thing to whoever looks on from outside: those who count costs on tensors without numbers, or profile.
NAMES = "int pattern, float scale, float dropout, int seed"
operation = torch.library.custom_op(
    "formers::blocked", forward, mutates_args=(), schema=f"(Tensor q, Tensor k, Tensor v, Tensor? valid, {NAMES}) -> (Tensor, Tensor)"
)
operation_backward = torch.library.custom_op(
    "formers::blocked_backward", backward, mutates_args=(),
    schema=f"(Tensor g, Tensor q, Tensor k, Tensor v, Tensor? valid, Tensor out, Tensor lse, {NAMES}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v, memory_format=torch.contiguous_format), q.new_empty(q.shape[:3], dtype=wide(q.dtype))


@operation_backward.register_fake
def _shapes_backward(g: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.rest = inputs[4:]


def _go_back(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *operation_backward(g, *ctx.saved_tensors, *ctx.rest), *(None,) * 5


operation.register_autograd(_go_back, setup_context=_keep)


def flops(shapes: tuple[tuple[int, ...], ...], pattern: int, products: tuple[int, int]) -> int:
    """FLOPs over the pairs of a pattern's plan: so many products as wide as q, and as wide as v."""
    (batch, heads, n, width), value = shapes[0], shapes[1][3]
    bound = PATTERNS[pattern]
    each = [pairs(bound.pieces(n, head)) for head in range(heads if bound.by_head else 1)]
    return 2 * batch * sum(each) * (heads // len(each)) * (products[0] * width + products[1] * value)


class HeadRow(NamedTuple):
    """One head of one row of a batch."""

    q: Tensor
    """(n, head_dim), times the scale: scores are logarithms to base 2."""
    k: Tensor
    v: Tensor
    shut: Tensor | None
    """(n, 1), added to the scores of keys: SHUT where no token stands."""
    lse: Tensor
    """(n, 1), the logarithms of the sums."""
    number: int


class BlockedGradients(NamedTuple):
    """What the backward pass of a row is given, and where its gradients go."""

    g: Tensor
    """The gradient (n, value_dim) of the output."""
    d: Tensor
    """(n, 1), the products of g and the output."""
    dq: Tensor
    dk: Tensor
    dv: Tensor


def _shut(valid: Tensor | None, row: int, work: BlockedWork) -> Tensor | None:
    """What is added to the scores of a row's keys, (n, 1): SHUT where no token stands; None where all do."""
    if valid is None:
        return None
    return work.row(valid[row].to(work.dtype)[:, None].sub_(1.0).mul_(-SHUT))


def _scores(q: Tensor, k: Tensor, tile: PieceTile, shut: Tensor | None, buffer: dict[Shape, Tensor]) -> Tensor:
    """The scores of a tile (groups, keys, queries), SHUT where a query may not look."""
    s = buffer[tile.shape]
    torch.bmm(k, q.mT, out=s)  # keys first: products of long thin matrices are faster this way round
    if tile.term is not None:
        s[:, -len(tile.term) :].add_(tile.term)
    if shut is not None:
        s.add_(tile.keys.take(shut))
    return s


def _forward(row: HeadRow, out: Tensor, work: BlockedWork, rounds: tuple[Tiles, ...], buffer: dict[Shape, Tensor]) -> None:
    """Writes the output (n, value_dim) of a row, and the logarithms of its sums."""
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
                s.mul_(work.kept(s, row.number, order, index))
            y, top, total = torch.bmm(s.mT, b.take(v)), top.mT, total.mT
            if order == 0:
                a.put(out, y.div_(total))
                a.put(lse, total.log2_().add_(top))
            else:
                y, sums = merge(a.take(out), a.take(lse), y, top, total)
                a.put(out, y)
                a.put(lse, sums)


def merge(first: Tensor, l1: Tensor, second: Tensor, top2: Tensor, total2: Tensor) -> tuple[Tensor, Tensor]:
    """Two partial attentions as one, with the logarithm of its sum: a finished one, and a sum of values that is not divided yet."""
    top = torch.maximum(l1, top2)
    one, two = (l1 - top).exp2_(), (top2 - top).exp2_()
    total = torch.addcmul(one, two, total2)
    return second.mul_(two.div_(total)).addcmul_(first, one.div_(total)), total.log2_().add_(top)  # E23


def _backward(
    row: HeadRow, back: BlockedGradients, work: BlockedWork, rounds: tuple[Tiles, ...], buffers: Sequence[dict[Shape, Tensor]]
) -> None:
    """Adds up the gradients of a row."""
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
                keep = work.kept(s, row.number, order, index)
                s.mul_(keep)
                b.write(dv, keep.mul_(p), gt, new_keys)
            else:
                b.write(dv, p, gt, new_keys)
            s.sub_(a.take(back.d).mT).mul_(p)
            b.write(dk, s, qt, new_keys, 1.0 / LOG2E)  # the queries have the scale and the logarithm in them
            a.write(back.dq, s.mT, kt, new_queries, work.scale)
        if part.among is not None:
            part.among.add(back.dk, dk[None])
            part.among.add(back.dv, dv[None])


def _among(where: Place | None, row: HeadRow) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and what shuts keys, as the tiles of a round number them."""
    if where is None:
        return row.k, row.v, row.shut
    return where.take(row.k)[0], where.take(row.v)[0], None if row.shut is None else where.take(row.shut)[0]
