"""LSH attention in tiles: cases that only the fast path can get wrong; tests/attention/test_lsh.py compares it with the equation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import formers
from formers.attention import LSH
from formers.attention.executors import dense
from formers.attention.lsh import decoding as bucketed
from formers.attention.lsh import tiles as hashed_tiles
from formers.attention.lsh.hashing import Hashed, hashes, in_order, rotations
from formers.attention.lsh.kernel import RULES, attend
from formers.attention.lsh.reference import Rules, term
from formers.attention.lsh.schedule import WIDEST
from formers.attention.request import Request
from formers.attention.shared_qk import unit_keys
from formers.core import Range, Watch
from formers.patterns import Full
from helpers import close, sweep

HEADS, WIDTH, SCALE = 2, 6, 0.4


def drawn(n: int, buckets: int, rounds: int = 2, size: float = 1.0) -> tuple[Tensor, Tensor, Hashed]:
    """Queries, values and their buckets."""
    torch.manual_seed(n)
    q = (torch.randn(1, HEADS, n, WIDTH, dtype=torch.float64) * size).requires_grad_()
    v = torch.randn(1, HEADS, n, 5, dtype=torch.float64, requires_grad=True)
    return q, v, in_order(hashes(q.detach(), rotations(HEADS, WIDTH, rounds, buckets // 2, 3, 0), (buckets,)))


def by_equation(q: Tensor, v: Tensor, hashed: Hashed, rules: Rules) -> Tensor:
    n = q.shape[2]
    added = term(hashed, rules, None, q.dtype)
    return dense.run(q, unit_keys(q), v, Request(Full(), Range(0, n), Range(0, n), HEADS, SCALE, None, added))


def same(q: Tensor, v: Tensor, hashed: Hashed, rules: Rules) -> None:
    """The output and both gradients are those of the equation."""
    found, wanted = attend(q, v, hashed, RULES.number(rules), SCALE, None, 0.0), by_equation(q, v, hashed, rules)
    close(found, wanted, 1e-10)
    g = torch.randn_like(wanted)
    for slope, other in zip(torch.autograd.grad(found, [q, v], g), torch.autograd.grad(wanted, [q, v], g), strict=True):
        close(slope, other, 1e-10)


@sweep("causal", [True, False])
@sweep("reach", ["chunk", "bucket"])
def test_scores_that_are_too_large_for_their_powers(causal: bool, reach: str) -> None:
    """Then the largest is looked for; it is not where all are known to be small."""
    q, v, hashed = drawn(37, 4, rounds=3, size=300.0)
    assert (q.norm(dim=-1).max() * SCALE).item() > 128, "the power of one is beyond single precision"
    same(q, v, hashed, Rules(causal, 4, reach))


@sweep("size", [1.0, 300.0])
@sweep("causal", [True, False])
def test_buckets_that_are_longer_than_a_tile_is_wide_are_met_in_parts(causal: bool, size: float) -> None:
    chunk = 2
    q, v, hashed = drawn(2 * chunk * WIDEST + 11, 2, size=size)
    same(q, v, hashed, Rules(causal, chunk, "bucket"))


def test_many_small_tiles_are_one_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    q, v, hashed = drawn(90, 8)
    rules = RULES.number(Rules(True, 8, "chunk"))
    whole = attend(q, v, hashed, rules, SCALE, None, 0.0)
    monkeypatch.setattr("formers.attention.lsh.kernel.PAIRS", 1)
    close(attend(q, v, hashed, rules, SCALE, None, 0.0), whole, 1e-12)


def test_dropout_is_the_same_in_both_directions() -> None:
    q, v, hashed = drawn(11, 4)
    rules = RULES.number(Rules(True, 4, "bucket"))

    def dropped(q: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend(q, v, hashed, rules, SCALE, None, 0.4)

    assert not dropped(q, v).equal(attend(q, v, hashed, rules, SCALE, None, 0.0))
    torch.autograd.gradcheck(dropped, (q, v), fast_mode=True)


def test_half_precision_is_computed_in_single() -> None:
    q, v, hashed = drawn(40, 4)
    rules = RULES.number(Rules(True, 8, "chunk"))
    few = [x.detach().bfloat16() for x in (q, v)]
    found = attend(*few, hashed, rules, SCALE, None, 0.0)
    assert found.dtype == torch.bfloat16
    close(found.double(), attend(*(x.double() for x in few), hashed, rules, SCALE, None, 0.0), 1e-2)


def test_what_is_kept_is_linear_in_the_length() -> None:
    """The backward pass has its inputs, the output and a number for each query, and nothing for a pair."""
    q, v, hashed = drawn(64, 4)
    kept: list[int] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        attend(q, v, hashed, RULES.number(Rules(True, 8)), SCALE, None, 0.0)
    assert max(kept) <= q.numel()


def test_pairs_that_count_are_those_that_meet() -> None:
    """Of a tile: numbers of marks tell what comparisons would."""
    marks, first, second = torch.tensor([0.0, 3.0, 5.0, 9.0]), torch.tensor([2.0]), torch.tensor([5.0])
    numbers = [hashed_tiles.Numbers(kind, marks[None, :, None], first[None, None], second[None, None]) for kind in ("between", "outside")]
    room = [torch.empty(1, 4, 1) for _ in range(2)]
    assert hashed_tiles._passes(numbers[0], *room).flatten().tolist() == [0, 1, 0, 0]
    assert hashed_tiles._passes(numbers[1], *room).flatten().tolist() == [1, 0, 0, 1]


def test_a_token_reads_its_own_buckets_and_the_newest_keys() -> None:
    """Not the others: the price of a token does not grow with the length, but with the length over the buckets."""
    torch.manual_seed(0)
    spec = formers.spec("decoder", vocab=97, dim=32, heads=2, layers=1, length=4096)
    model = formers.build(spec.replace(attention=LSH(chunk=16, rounds=2))).eval()
    read = {}
    with torch.no_grad():
        for n in (1024, 4096):
            state, watch = model(torch.randint(97, (1, n))).state, Watch()
            model(torch.randint(97, (1, 1)), state=state, watch=watch)
            read[n] = watch.notes["keys read"][0] - 1  # itself
    assert read[1024] < 256
    assert read[4096] < 1024
    assert bucketed.NEW < 512, "else sorting would never pay"
