"""Invalid arguments of attend are one-sentence errors, raised before torch broadcasts them."""

from __future__ import annotations

import torch

import formers
from contracts.attention_cases import inputs
from formers.core import ExplicitPositions, Range
from formers.patterns import Causal, Full, LocalGrid, PerHead
from helpers import refused, sweep

q, k, v = inputs(3, 4)


@sweep(
    ("qkv", "word"),
    [
        ((q[0], k, v), "(2, 3, 4)"),
        ((q, k[0], v), "(batch, heads, length, head_dim)"),
        ((q[:1], k, v), "batch"),
        ((q, k[:, :1], v[:, :1]), "heads"),
        ((q, k[..., :2], v), "head_dim"),
        ((q, k, v[:, :, :3]), "length"),
        ((q.float(), k, v), "torch.float32"),
        ((q.long(), k.long(), v.long()), "floating-point"),
    ],
)
def test_shapes_and_types(qkv: tuple[torch.Tensor, ...], word: str) -> None:
    with refused("attend got", word):
        formers.attend(*qkv, Causal())


@sweep("mask", [torch.ones(2, 3, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool), torch.ones(2, 4), torch.ones(2, 3, 4).bool()])
def test_masks(mask: torch.Tensor) -> None:
    with refused("mask is", "(2, 4)", "True = a real key"):
        formers.attend(q, k, v, Full(), mask=mask)


@sweep(("side", "length"), [("queries", 1), ("queries", 4), ("keys", 1), ("keys", 5)])
def test_positions_of_another_number_of_tokens(side: str, length: int) -> None:
    with refused(side, f"({length},)"):
        formers.attend(q, k, v, Causal(), **{side: Range(0, length)})


def test_positions_of_another_batch() -> None:
    with refused("keys"):
        formers.attend(q, k, v, Causal(), keys=ExplicitPositions(torch.zeros(3, 4, dtype=torch.int64), 4))
    with refused("queries"):
        formers.attend(q, k, v, Causal(), queries=ExplicitPositions(torch.zeros(5, 3, dtype=torch.int64), 4))


@sweep("shape", [(2, 2, 3, 5), (3, 2, 3, 4), (2, 2, 4, 3), (1, 2, 2, 3, 4)])
def test_a_bias_that_does_not_fit(shape: tuple[int, ...]) -> None:
    with refused("bias"):
        formers.attend(q, k, v, Causal(), bias=torch.zeros(shape, dtype=torch.float64))


def test_patterns_of_another_number_of_heads() -> None:
    for pattern in (PerHead(Full()), PerHead(Full(), Full(), Causal()), Causal() & PerHead(Full())):
        with refused("heads", "one pattern per head"):
            formers.attend(q, k, v, pattern)


def test_rows_beyond_a_grid_also_where_they_are_padded() -> None:
    grid = LocalGrid(height=1, width=3, query=(1, 2), memory=(0, 1))
    for mask in (None, torch.ones(2, 4, dtype=torch.bool)):
        with refused("4 positions", "at most 3"):
            formers.attend(k, k, v, grid, mask=mask)
