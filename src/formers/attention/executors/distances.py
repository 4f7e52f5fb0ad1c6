"""Attention with a term by distance, in tiles: relative scores and learned spans without a matrix of all pairs in either pass.

s_ij = scale q_i . k_j + b_ij        b_ij = p_{i, i-j}        p_{i, x} = q'_i . t_x + l_x        E24

For each tile of queries, p is a product with a slice of the table, sorted from the furthest distance to the nearest. Each row of p is
the row before it shifted by one: read with a stride that is one element shorter than its rows, p equals b. So the shift of Transformer-XL
is free, keys beyond a head's span are never computed, and the backward pass recomputes tiles. Under torch.compile long rows are one
operation of the graph; spans are then read inside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.executors.bands import BandTile, cut
from formers.attention.executors.distance_rows import (
    DistanceBuffers,
    DistanceWork,
    HeadRows,
    Heads,
    all_heads,
    distance_work,
    head_reaches,
)
from formers.attention.executors.tiles import EMPTY, LOG2E, wide
from formers.attention.request import Request
from formers.core import Range
from formers.core.devices import on_host
from formers.patterns import Causal, Local, Pattern
from formers.score import ByDistance

CONTIGUOUS = torch.contiguous_format
MOST_SAVED = 1 << 22
"""The largest number of weights that are saved for the backward pass; otherwise they are recomputed."""
FEWEST = 16
"""For fewer queries the whole term is as fast."""
FEWEST_COMPILED = 512
"""For fewer queries torch.compile computes the whole term as fast."""


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why attention cannot be tiled by distance; None if it can."""
    if request.first is not None:
        return "rows contain several episodes"
    if not isinstance(request.bias, ByDistance):
        return "no term by distance is added to the scores"
    if not (isinstance(request.queries, Range) and isinstance(request.keys, Range)):
        return "the positions are not contiguous, or differ between rows"
    if _band(request.pattern) is None:
        return "the pattern is neither causal nor a causal window"
    if request.valid is not None or request.dropout:
        return "there is padding or dropout"
    if not on_host(q):
        return "its tiles are sized for the cache of a CPU"
    return "there are no keys at all" if request.keys.length == 0 or q.numel() == 0 else None


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why tiles are not worthwhile; None if they are."""
    if torch.compiler.is_compiling():  # lengths are symbols, which cannot be formatted
        return "torch.compile computes the whole term of a short row as fast" if request.queries.length < FEWEST_COMPILED else None
    return f"for fewer than {FEWEST} queries the whole term is as fast" if request.queries.length < FEWEST else None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention in tiles."""
    term, band = request.bias, _band(request.pattern)
    assert isinstance(term, ByDistance)
    assert isinstance(request.queries, Range)
    assert isinstance(request.keys, Range)
    assert band is not None
    nearest, furthest = band
    most = term.reach if furthest is None else min(term.reach, furthest)
    reaches = [most] * q.shape[1] if term.reaches is None else [min(most, reach) for reach in term.reaches]
    offset = request.queries.start - request.keys.start
    factors = (q, k, v, term.q, term.table, term.level)
    if torch.compiler.is_compiling():  # how many weights are saved, and the spans of heads, are no constants of a graph
        made: Tensor = operation(*factors, request.scale, offset, nearest, [most], False, 0)[0]
        return made
    learning = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in factors)
    out: Tensor = operation(*factors, request.scale, offset, nearest, reaches, learning, torch.get_num_threads())[0]
    return out


def _band(pattern: Pattern) -> tuple[int, int | None] | None:
    """The nearest visible distance of a pattern, and the first that is not visible any more; None for other patterns."""
    if isinstance(pattern, Causal):
        return 0, None
    if isinstance(pattern, Local) and pattern.causal:
        nearest = 0 if pattern.include_self else 1
        return nearest, nearest + pattern.window
    return None


def forward(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None,
    scale: float, offset: int, nearest: int, reaches: list[int], learning: bool, threads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Attention (batch, heads, n, value_dim), its log-sums (batch, heads, n, 1), and its weights unless they are too many."""
    work = distance_work(q, k, scale, offset, nearest, head_reaches(reaches, level, q.shape[1]), threads)
    out = (v.new_empty if work.whole else v.new_zeros)((*q.shape[:3], v.shape[3]))
    lse = q.new_full((*q.shape[:3], 1), EMPTY, dtype=work.dtype)
    weights = TileWeights(q.new_empty(_saved_weights(work, len(q), learning), dtype=work.dtype))
    with torch.autocast(q.device.type, enabled=False):
        buffers, heads = work.buffers(q), all_heads(q, k, v, far, table, level, work)
        for rows, head, tiles in work.pieces(len(q)):
            each = heads.some(rows, head)
            for tile in tiles:
                s = each.scores(tile, buffers, weights.next(buffers.by_key(tile, len(each.q))))
                top = s.amax(dim=2, keepdim=True).clamp_(min=EMPTY)
                s.sub_(top).exp2_()
                total = s.sum(dim=2, keepdim=True).clamp_(min=1e-30)
                tile.queries(out[rows, head]).copy_(torch.bmm(s.div_(total), tile.seen(each.v)))
                tile.queries(lse[rows, head]).copy_(total.log2_().add_(top))
    return out, lse, weights.all


def _saved_weights(work: DistanceWork, batch: int, learning: bool) -> int:
    """The number of weights saved for the backward pass."""
    pairs = work.pairs(batch)
    return pairs if learning and pairs <= MOST_SAVED else 0


class TileWeights:
    """The weights of all tiles, concatenated, if they are saved."""

    def __init__(self, all_: Tensor) -> None:
        self.all, self.place = all_, 0

    def next(self, buffers: Tensor) -> Tensor:
        """The memory for the weights of the next tile; `buffers` itself if they are not saved."""
        if not len(self.all):
            return buffers
        self.place += buffers.numel()
        return self.all[self.place - buffers.numel() : self.place].view_as(buffers)


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, out: Tensor, lse: Tensor, saved: Tensor,
    scale: float, offset: int, nearest: int, reaches: list[int], learning: bool, threads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, the queries of the term, the table, and the level (an empty tensor if there is none)."""
    work, weights = distance_work(q, k, scale, offset, nearest, head_reaches(reaches, level, q.shape[1]), threads), TileWeights(saved)
    with torch.autocast(q.device.type, enabled=False):
        buffers, other, heads = work.buffers(q), work.buffers(q), all_heads(q, k, v, far, table, level, work)
        slopes = g.to(work.dtype).contiguous()
        d = (slopes * out).sum(dim=-1, keepdim=True)
        new = torch.empty_like if work.whole else torch.zeros_like
        made = Heads(
            new(heads.q), torch.zeros_like(heads.k), torch.zeros_like(heads.v), new(far, dtype=work.dtype, memory_format=CONTIGUOUS),
            torch.zeros_like(heads.table), None if heads.level is None else torch.zeros_like(heads.level),
        )  # fmt: skip
        for rows, head, tiles in work.pieces(len(q)):
            each, back = heads.some(rows, head), DistanceGradients(slopes[rows, head], d[rows, head], made.some(rows, head))
            for tile in tiles:
                p = weights.next(buffers.by_key(tile, len(each.q)))
                if not len(saved):
                    p = each.scores(tile, buffers, p).sub_(tile.queries(lse[rows, head])).exp2_()
                _backward(each, back, tile, p, other, scale)
    dtable, dlevel = made.table[..., : far.shape[3]].flip(1).sum_to_size(table.shape), q.new_zeros(())
    if level is not None:
        by_head = made.table[None, :, :, -1:].mT if made.level is None else made.level
        dlevel = by_head.flip(-1).sum_to_size(level.shape)
    return made.q.to(q.dtype), made.k.to(k.dtype), made.v.to(v.dtype), made.far.to(far.dtype), dtable.to(table.dtype), dlevel.to(q.dtype)


class DistanceGradients(NamedTuple):
    """The inputs of the backward pass of a head, and the tensors that its gradients are added to."""

    g: Tensor
    """The gradient (rows, n, value_dim) of the output."""
    d: Tensor
    """(rows, n, 1), the dot products of g and the output."""
    to: HeadRows


def _backward(each: HeadRows, back: DistanceGradients, tile: BandTile, p: Tensor, buffers: DistanceBuffers, scale: float) -> None:
    """Adds the gradients of a tile, whose weights are p."""
    to, g, s = back.to, tile.queries(back.g), buffers.by_key(tile, len(each.q))
    torch.bmm(g, tile.seen(each.v).mT, out=s)
    tile.add(to.v, torch.bmm(p.mT, g))
    s.sub_(tile.queries(back.d)).mul_(p)
    tile.queries(to.q).copy_(torch.bmm(s, tile.seen(each.k)).mul_(scale))
    tile.add(to.k, torch.bmm(s.mT, tile.queries(each.q)).mul_(1.0 / LOG2E))  # the queries include the scale and log2(e)
    by_distance = buffers.by_distance(tile, len(each.q))
    by_distance[..., tile.open.start : tile.rows - 1].zero_()  # distances at which some of the queries have no key
    by_distance[..., tile.keys : tile.open.stop].zero_()
    tile.shifted(by_distance).copy_(s)
    there = tile.distances(len(each.table))
    flat = by_distance.view(-1, tile.width)[:, tile.open]
    far = tile.queries(to.far)
    far.copy_((flat @ each.table[there, : far.shape[2]]).view_as(far))
    to.table[there].addmm_(flat.T, tile.queries(each.far).reshape(len(flat), -1), alpha=1.0 / LOG2E)
    if to.level is not None:
        tile.queries(to.level)[..., there].add_(by_distance[..., tile.open])


# A custom operator, so that tools that count costs or profile see one operation, as for `blocked`.
NAMES = "float scale, SymInt offset, int nearest, SymInt[] reaches, bool learning, int threads"
operation = torch.library.custom_op(
    "formers::distances", forward, mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor far, Tensor table, Tensor? level, {NAMES}) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
operation_backward = torch.library.custom_op(
    "formers::distances_backward", backward, mutates_args=(),
    schema="(Tensor g, Tensor q, Tensor k, Tensor v, Tensor far, Tensor table, Tensor? level, Tensor out, Tensor lse, Tensor saved, "
    f"{NAMES}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip


@operation.register_fake
def _shapes(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, scale: float, offset: int, nearest: int,
    reaches: list[int], learning: bool, threads: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    count = _saved_weights(distance_work(q, k, scale, offset, nearest, reaches, threads), len(q), True) if learning else 0
    lse, saved = q.new_empty((*q.shape[:3], 1), dtype=wide(q.dtype)), q.new_empty(count, dtype=wide(q.dtype))
    return v.new_empty((*q.shape[:3], v.shape[3])), lse, saved


@operation_backward.register_fake
def _shapes_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return *(x.new_empty(x.shape) for x in (q, k, v, far, table)), q.new_empty(() if level is None else level.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.rest = inputs[6:]


def _autograd_backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # accessed once: under checkpointing each access recomputes them
    *slopes, level = operation_backward(g, *saved, *ctx.rest)
    return *slopes, None if saved[5] is None else level, *(None,) * 6


operation.register_autograd(_autograd_backward, setup_context=_setup_context)


def flops(shapes: tuple[tuple[int, ...], ...], offset: int, nearest: int, reaches: list[int], products: tuple[int, int, int]) -> int:
    """FLOPs of the tiles, for a number of products of the width of q, of v, and, over distances, of the table."""
    (batch, _, n, width), m, value, other = shapes[0], shapes[1][2], shapes[2][3], shapes[3][3]
    total = 0
    for reach in reaches:
        for tile in cut(n, m, offset, nearest, reach):
            pairs, far = tile.rows * tile.keys, tile.rows * (tile.open.stop - tile.open.start)
            total += pairs * (products[0] * width + products[1] * value) + far * products[2] * other
    return 2 * batch * total
