"""The executor `distances` against the equation: values and gradients of everything, for every length and any spans."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from formers.attention.attend import choose, run
from formers.attention.executors import distance_rows, distances
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.patterns import Causal, Full, Local, Pattern
from formers.score import ByDistance
from helpers import close, gradients, sweep

FLOAT = torch.float64
SHUT = float("-inf")


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, far: Tensor, table: Tensor, level: Tensor | None, pattern: Pattern, offset: int, scale: float
) -> Tensor:
    """sum_j a_ij v_j with the scores written out, pair by pair."""
    batch, heads, n, _ = q.shape
    out = torch.zeros(batch, heads, n, v.shape[3], dtype=v.dtype)
    for b in range(batch):
        for h in range(heads):
            t = table[h if len(table) > 1 else 0]
            for i in range(n):
                scores, values = [], []
                for j in range(k.shape[2]):
                    x = offset + i - j
                    if not pattern.allows(offset + i, j, h) or not 0 <= x < len(t):
                        continue
                    score = scale * (q[b, h, i] @ k[b, h, j]) + far[b, h, i] @ t[x]
                    if level is not None:
                        more = level.expand(batch, heads, n, -1)[b, h, i, x]
                        if more == SHUT:
                            continue
                        score = score + more
                    scores.append(score)
                    values.append(v[b, h, j])
                if scores:
                    out[b, h, i] = torch.softmax(torch.stack(scores), 0) @ torch.stack(values)
    return out


def tensors(n: int, m: int, reach: int, level: str, tables: int = 2, batch: int = 2) -> list[Tensor]:
    """Random q, k, v, the queries that meet the table, the table, and perhaps a level, all of them wanting gradients."""
    made = [
        torch.randn(batch, 2, n, 3, dtype=FLOAT), torch.randn(batch, 2, m, 3, dtype=FLOAT), torch.randn(batch, 2, m, 4, dtype=FLOAT),
        torch.randn(batch, 2, n, 5, dtype=FLOAT), torch.randn(tables, reach, 5, dtype=FLOAT),
    ]  # fmt: skip
    if level == "by head":
        made.append(torch.randn(1, 2, 1, reach, dtype=FLOAT))
        made[-1][:, 1, :, reach // 2 + 1 :] = SHUT
    elif level == "by row":
        made.append(torch.randn(batch, 1, 1, reach, dtype=FLOAT))
    elif level == "by query":
        made.append(torch.randn(batch, 2, n, reach, dtype=FLOAT))
        made[-1][:, :, n // 2, 1:] = SHUT
    return [t.requires_grad_() for t in made]


def request(made: list[Tensor], pattern: Pattern, offset: int, reaches: tuple[int, ...] | None = None) -> Request:
    queries, keys = Range(offset + 7, made[0].shape[2]), Range(7, made[1].shape[2])
    term = ByDistance(made[3], made[4], made[5] if len(made) > 5 else None, queries, keys, reaches)
    return Request(pattern, queries, keys, 2, 0.4, bias=term)


@sweep("pattern", [Causal(), Local(window=3), Local(window=4, include_self=False)])
@sweep("level", ["none", "by head", "by row", "by query"])
@sweep(("n", "m", "reach"), [(1, 1, 1), (3, 3, 3), (4, 9, 9), (5, 7, 4), (6, 6, 2)])
def test_every_executor_equals_the_pairs_written_out(n, m, reach, level, pattern):
    made = tensors(n, m, reach, level)
    offset = m - n
    wanted = by_loops(*made[:5], made[5] if len(made) > 5 else None, pattern, offset, 0.4)
    slopes = gradients(wanted, made) if wanted.requires_grad else None
    for how in ("dense", "sdpa", "distances"):
        found = run(*made[:3], request(made, pattern, offset), how)
        close(found, wanted)
        if slopes is not None:
            for one, other in zip(gradients(found, made), slopes, strict=True):
                close(one, other)


@sweep("level", ["none", "by head", "by row", "by query"])
@sweep(("n", "m", "reach"), [(127, 300, 300), (129, 129, 64), (256, 300, 130), (257, 600, 600)])
def test_tiles_equal_the_whole_term(n, m, reach, level, monkeypatch):
    """In tiles of two sizes, whether the backward pass recomputes weights or they are saved, and with two threads."""
    made = tensors(n, m, reach, level, tables=1, batch=3)
    reaches = (reach, reach // 2 + 1) if level == "by head" else None  # the level shuts the rest
    wanted = run(*made[:3], request(made, Causal(), m - n), "dense")
    slopes = gradients(wanted, made)
    before = torch.get_num_threads()
    several = (1, 2) if n == 129 else (1,)  # two threads make tiles twice as large, and wait for each other
    for threads, tile, saved in itertools.product(several, (1 << 13, 1 << 14), (0, 1 << 22)):
        monkeypatch.setattr(distance_rows, "TILE", tile)  # several groups of rows
        monkeypatch.setattr(distances, "MOST_SAVED", saved)
        torch.set_num_threads(threads)
        try:
            found = run(*made[:3], request(made, Causal(), m - n, reaches), "distances")
            close(found, wanted)
            for one, other in zip(gradients(found, made), slopes, strict=True):
                close(one, other)
        finally:
            torch.set_num_threads(before)


def test_a_head_with_a_short_reach_costs_little():
    shapes = ((2, 2, 512, 64), (2, 2, 2560, 64), (2, 2, 2560, 64), (2, 2, 512, 64))
    far, near = (distances.flops(shapes, 2048, 1, reaches, (1, 1, 1)) for reaches in ([2048, 2048], [128, 128]))
    mixed = distances.flops(shapes, 2048, 1, [2048, 128], (1, 1, 1))
    assert far > 8 * near
    assert mixed == (far + near) // 2


def test_half_precision_is_computed_in_single():
    made = [t.detach().bfloat16() for t in tensors(40, 60, 60, "none")]
    wanted = run(*(t.float() for t in made[:3]), request([t.float() for t in made], Causal(), 20), "dense")
    found = run(*made[:3], request(made, Causal(), 20), "distances")
    assert found.dtype == torch.bfloat16
    close(found.float(), wanted, 2e-2)


def test_who_runs_and_why_not():
    made = tensors(40, 60, 60, "none")
    plain = request(made, Causal(), 20)
    assert choose(plain, *made[:3]).name == "distances"
    few = tensors(4, 60, 60, "none")
    assert "fewer than" in choose(request(few, Causal(), 56), *few[:3]).passed_over["distances"]
    for other, why in (
        (plain._replace(bias=None), "no term"),
        (plain._replace(pattern=Full()), "neither causal"),
        (plain._replace(queries=ExplicitPositions(torch.arange(40), 40)), "positions are not contiguous"),
        (plain._replace(dropout=0.1), "dropout"),
    ):
        assert why in str(distances.unsupported(other, *made[:3]))
