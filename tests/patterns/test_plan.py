"""Plans: every allowed pair is in exactly one piece, no other pair is in any, and a round contains a query once."""

from __future__ import annotations

import numpy as np
import torch

from contracts.specimens import patterns
from formers.patterns import BigBird, Fixed, Globals, Local, Pattern, Strided, plan
from formers.patterns.plan import GroupedPositions, Piece, SelectedPositions, Where
from helpers import sweep

LENGTHS = (1, 2, 3, 7, 8, 9, 16, 17, 40)
HEADS = 2


def positions(where: Where) -> np.ndarray:
    """(groups, size) positions."""
    if isinstance(where, GroupedPositions):
        return where.start + where.step * np.arange(where.groups)[:, None] + where.stride * np.arange(where.size)[None]
    return (where.blocks[:, :, None] * where.unit + np.arange(where.unit)).reshape(where.groups, where.size)


def pairs(piece: Piece, among: SelectedPositions | None, n: int) -> np.ndarray:
    """How often a piece holds each pair (queries, keys), padding included."""
    counts = np.zeros((n, n), dtype=int)
    queries, keys = positions(piece.queries), positions(piece.keys)
    if among is not None:
        keys = positions(among)[0][keys]
    seen = np.ones((queries.shape[1], keys.shape[1]), dtype=bool)
    if piece.mask is not None:
        seen[:, -piece.mask.shape[1] :] = piece.mask
    for group in range(len(queries)):
        a, b = np.nonzero(seen)
        np.add.at(counts, (queries[group][a], keys[group][b]), 1)
    return counts


def agrees(pattern: Pattern, n: int) -> None:
    """Fails unless the plan of a pattern holds its pairs once, and no others."""
    bound = pattern.of(n)
    for head in range(HEADS if bound.by_head else 1):
        counts = np.zeros((2 * n + 64, 2 * n + 64), dtype=int)
        for pieces, among, by_keys in bound.pieces(n, head):
            named = np.concatenate([positions(p.queries).flatten() for p in pieces]) if pieces else np.zeros(0, dtype=int)
            assert len(named) == len(set(named.tolist())), "a round names a query twice"
            for piece in pieces:
                assert piece.queries.groups == piece.keys.groups
                counts += pairs(piece, among, len(counts))
            if by_keys is not None:
                seen = [sum(pairs(p, among, 2 * n + 64) for p in those) for those in (pieces, by_keys)]
                assert np.array_equal(*seen), "by keys they are other pairs"
                named = np.concatenate([positions(p.keys).flatten() for p in by_keys])
                assert len(named) == len(set(named.tolist())), "by keys a key is named twice"
        assert np.array_equal(counts[:n, :n], bound.mask(n, HEADS)[head].int().numpy()), (pattern, n, head)
        assert counts[n:].sum() == counts[:, n:].sum() == 0


@sweep("pattern", [p.at(0) for p in patterns()])
def test_a_plan_is_its_pattern(pattern):
    for n in LENGTHS:
        try:
            pattern.of(n)
        except ValueError:
            continue  # a grid smaller than this
        agrees(pattern, n)


@sweep(
    "pattern",
    [
        BigBird(block=16, window=1, random_blocks=2),
        BigBird(block=17, window=3, global_blocks=3, random_blocks=0),
        BigBird(block=16, window=3, global_blocks=0, random_blocks=1).of(50),
        Globals(tokens=5) | BigBird(block=16, window=1, global_blocks=0, random_blocks=1),
        BigBird(block=16, global_blocks=1, random_blocks=0) | Globals(tokens=16),
        Globals(tokens=40) | BigBird(block=16, window=1, global_blocks=0, random_blocks=2).of(70),
        Globals(tokens=3) | Local(window=4),
    ],
)
def test_plans_by_blocks(pattern):
    for n in (1, 5, 16, 17, 39, 41, 64, 129):
        agrees(pattern, n)


@sweep("pattern", [Local(window=5), Strided(stride=4), Strided(stride=13), Fixed(stride=8, summary=3), Fixed(stride=4, summary=4)])
def test_plans_of_groups_and_chunks_of_every_size(pattern, monkeypatch):
    from formers.patterns import factorized, local

    for group, chunk in ((1, 1), (3, 8), (8, 24), (64, 64)):
        monkeypatch.setattr(plan, "GROUP", group)
        monkeypatch.setattr(plan, "CHUNK", chunk)
        for made in (local._bands, factorized._strided, factorized._fixed):
            made.cache_clear()
        for n in (1, 5, 31, 32, 33, 70):
            agrees(pattern, n)
    for made in (local._bands, factorized._strided, factorized._fixed):
        made.cache_clear()


def test_a_long_plan_computes_few_pairs():
    n = 8192
    for pattern, least, most in ((Local(window=256), 256, 330), (Strided(stride=128), 160, 260), (Fixed(stride=128, summary=16), 560, 640)):
        computed = plan.pairs(pattern.pieces(n)) / n
        assert least <= computed <= most, (pattern, computed)


def test_a_scan_asks_with_real_numbers_under_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    pattern = Local(window=3, include_self=False)
    with FakeTensorMode():
        faked = pattern.pieces(33)
    assert all(isinstance(p.mask, np.ndarray | None) for part in faked for p in part.pieces)
    agrees(pattern, 33)
    assert not torch.compiler.is_compiling()
