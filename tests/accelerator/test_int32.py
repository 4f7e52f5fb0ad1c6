"""Predicates of patterns give the same sets in int32, the type of a kernel's indices, as in int64; also far from the beginning."""

from __future__ import annotations

import torch
from torch import Tensor

from contracts.specimens import patterns
from formers.attention.executors.flex_masks import position_mask
from formers.attention.shared_qk import without_self
from formers.core import Range
from formers.patterns import BigBird, Causal, Full, Local, Pattern
from formers.patterns.structure import inner_patterns
from helpers import sweep

FAR = 1 << 20
CPU = torch.device("cpu")


def positions() -> tuple[Tensor, Tensor]:
    """Queries (n, 1) and keys (m): near the beginning, near FAR, and -1, an empty slot."""
    i = torch.cat([torch.arange(-1, 40), torch.arange(FAR - 30, FAR)])
    j = torch.cat([torch.arange(-1, 40), torch.randint(FAR, (40,)), torch.arange(FAR - 30, FAR)])
    return i[:, None], j


def hashes(pattern: Pattern) -> bool:
    return isinstance(pattern, BigBird) or any(map(hashes, inner_patterns(pattern)))


SHARED = [without_self(Causal()), without_self(Full()), Local(window=FAR)]


@sweep("pattern", [p.at(0) for p in [*patterns(), *SHARED] if not hashes(p.at(0))])
def test_allows(pattern: Pattern) -> None:
    i, j = positions()
    head = torch.arange(2)[:, None, None]
    wanted = torch.as_tensor(pattern.allows(i, j, head))
    found = torch.as_tensor(pattern.allows(i.int(), j.int(), head.int()))
    assert torch.equal(found, wanted)
    for a, b, h in zip(range(0, len(i), 7), range(0, len(j), 11), (0, 1) * 9, strict=False):
        at = (h if wanted.dim() == 3 and len(wanted) > 1 else 0, a, b)
        assert bool(pattern.allows(int(i[a, 0]), int(j[b]), h)) == bool(wanted.expand(2, len(i), len(j))[at])


@sweep("pattern", [p.at(0) for p in patterns()])
def test_mask_functions(pattern: Pattern) -> None:
    """Also those of BigBird, which looks its sets up: its hash needs int64 and never runs in a kernel."""
    n = 33
    where, bound = Range(0, n), pattern.of(n)
    mask = position_mask(bound, where, where, 2, CPU)
    here = torch.arange(n, dtype=torch.int32)
    head = torch.arange(2, dtype=torch.int32)[:, None, None]
    found = mask(torch.zeros((), dtype=torch.int32), head, here[:, None], here)
    assert torch.equal(found.expand(2, n, n), pattern.mask(n, 2))


def test_a_block_table_is_as_small_as_the_blocks() -> None:
    pattern = BigBird(block=64).of(4096)
    mask = position_mask(pattern, Range(0, 4096), Range(0, 4096), 2, CPU)
    (table,) = (c.cell_contents for c in mask.__closure__ or () if isinstance(c.cell_contents, Tensor))  # type: ignore[attr-defined]
    assert table.shape == (2, 64, 64)
    assert table.dtype == torch.bool
