"""LSH attention on accelerators: the batched paths compute the equation for all rules, values and gradients.

The CPU is given the capabilities of an accelerator, and FlexAttention the kernel that computes the equation in int32 indices.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from accelerator.flex_equation import equation, visible
from formers.attention.executors import dense, flex_dropout
from formers.attention.executors.flex_kernel import use_kernel
from formers.attention.lsh import batched, chunked
from formers.attention.lsh.hashing import Hashed, hashes, in_order, rotations
from formers.attention.lsh.paths import choose, explained, verdicts
from formers.attention.lsh.ranks import ranked
from formers.attention.lsh.reference import Rules, term
from formers.attention.request import Request
from formers.attention.shared_qk import unit_keys
from formers.core import Range
from formers.core.devices import Capabilities, assume_capabilities
from formers.patterns import Full
from helpers import close, sweep

SCALE = 0.7
GPU = Capabilities(flex=True)
PLAIN = Capabilities(float64=False)
Attend = Callable[[Tensor, Tensor, Hashed, Rules, float, Tensor | None, float], Tensor]


def drawn_rules(numbers: random.Random, joined: bool = False) -> Rules:
    """Random rules; joined: those whose chunks continue in other rounds."""
    across = joined or numbers.random() < 0.4
    return Rules(
        causal=numbers.random() < 0.5,
        chunk=numbers.choice([1, 3, 8, 16, 50]),
        reach="chunk" if across else numbers.choice(["chunk", "bucket"]),
        duplicates=joined or numbers.random() < 0.3,
        across_buckets=across,
        itself=numbers.choice(["alone", "always"]),
        look_back=numbers.randrange(3),
        look_ahead=numbers.randrange(3),
        wrap="rounds" if joined else "round",
        key_epsilon=numbers.choice([0.0, 0.1]),
    )


def drawn_tokens(numbers: random.Random, n: int) -> tuple[Tensor, Tensor, Hashed, Tensor | None]:
    """Queries and values of random sizes, their buckets, and which tokens are real."""
    batch, heads, rounds, buckets = numbers.randint(1, 3), numbers.randint(1, 2), numbers.randint(1, 4), numbers.choice([2, 4, 8])
    width, value = numbers.choice([(6, 5), (16, 16), (20, 18)])
    q = (torch.randn(batch, heads, n, width, dtype=torch.float64) * 2).requires_grad_()
    v = torch.randn(batch, heads, n, value, dtype=torch.float64, requires_grad=True)
    found = hashes(q.detach(), rotations(heads, width, rounds, buckets // 2, n, 0), (buckets,))
    real = None
    if numbers.random() < 0.5:
        lengths = torch.tensor([numbers.randint(1, n) for _ in range(batch)])
        real = torch.arange(n) < lengths[:, None]
        found.masked_fill_(~real[:, None, None, :], buckets)
    return q, v, in_order(found), real


def by_equation(q: Tensor, v: Tensor, hashed: Hashed, rules: Rules, real: Tensor | None) -> Tensor:
    n, keys = q.shape[2], unit_keys(q, rules.key_epsilon)
    request = Request(Full(), Range(0, n), Range(0, n), q.shape[1], SCALE, None, term(hashed, rules, real, q.dtype))
    return dense.run(q, keys, v, request)


def check(attend: Attend, numbers: random.Random, n: int, rules: Rules) -> None:
    """The output of real tokens, and both gradients, are those of the equation."""
    q, v, hashed, real = drawn_tokens(numbers, n)
    found, wanted = attend(q, v, hashed, rules, SCALE, real, 0.0), by_equation(q, v, hashed, rules, real)
    mask = torch.ones(q.shape[0], n, dtype=torch.bool) if real is None else real
    g = torch.randn_like(wanted) * mask[:, None, :, None]
    close(found * mask[:, None, :, None], wanted * mask[:, None, :, None], 1e-10)
    for slope, other in zip(torch.autograd.grad(found, [q, v], g), torch.autograd.grad(wanted, [q, v], g), strict=True):
        close(slope, other, 1e-10)


@pytest.mark.parametrize("attend", [batched.attend, chunked.attend], ids=["flex", "chunked"])
def test_batched_paths_compute_the_equation(attend: Attend) -> None:
    numbers = random.Random(0)
    torch.manual_seed(0)
    with assume_capabilities("cpu", GPU), use_kernel("cpu", equation):
        for number in range(60):
            rules = drawn_rules(numbers)
            if attend is chunked.attend:
                rules = rules._replace(reach="chunk")
            n = numbers.choice([1, 2, 5, 17, 64, 127, 128, 129, 300])
            try:
                check(attend, numbers, n, rules)
            except Exception as e:
                raise AssertionError(f"case {number}: {n} tokens, {rules}") from e


@pytest.mark.parametrize("attend", [batched.attend, chunked.attend], ids=["flex", "chunked"])
def test_chunks_that_continue_in_other_rounds(attend: Attend) -> None:
    numbers = random.Random(1)
    torch.manual_seed(0)
    with assume_capabilities("cpu", GPU), use_kernel("cpu", equation):
        tried = 0
        while tried < 20:
            rules, n = drawn_rules(numbers, joined=True), numbers.choice([1, 5, 64, 129, 200])
            state = numbers.getstate()
            q, _, hashed, _ = drawn_tokens(numbers, n)
            numbers.setstate(state)
            if attend is batched.attend and choose(q, rules, hashed.order.shape[2]).name != "flex":
                continue
            check(attend, numbers, n, rules)
            tried += 1


@sweep("itself", ["alone", "always"])
@sweep("reach", ["bucket", "chunk"])
@sweep("duplicates", [False, True])
def test_dropout_is_exact(itself: str, reach: str, duplicates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight of the softmax over all rounds is divided by 1 - rate or dropped, by its hash."""
    rate, seeds = 0.4, flex_dropout.draw_seeds(2, 6, 256, torch.device("cpu"))
    monkeypatch.setattr(flex_dropout, "draw_seeds", lambda *sizes: seeds)
    rules = Rules(causal=False, chunk=8, reach=reach, itself=itself, duplicates=duplicates, look_ahead=1)  # type: ignore[arg-type]
    torch.manual_seed(3)
    q, v = (torch.randn(2, 2, 150, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    hashed = in_order(hashes(q.detach(), rotations(2, 16, 3, 2, 0, 0), (4,)))
    with assume_capabilities("cpu", GPU), use_kernel("cpu", equation):
        found = batched.attend(q, v, hashed, rules, SCALE, None, rate)
    tokens = ranked(hashed, rules, None, batched.BLOCK)
    queries, values = tokens.by_rank(q), tokens.by_rank(v)
    row, head, rank = (torch.arange(n, dtype=torch.int32) for n in queries.shape[:3])
    indices = row[:, None, None, None], head[:, None, None], rank[:, None], rank
    powers = torch.exp(SCALE * queries @ unit_keys(queries).mT) * tokens.seen(*indices)
    kept = powers * (flex_dropout.hash31(seeds[..., None], rank) >= flex_dropout.threshold(rate)) / (1 - rate)
    sums = tokens.by_token(powers.sum(dim=-1, keepdim=True)).sum(dim=2)
    assert (sums > 0).all(), "every token sees another"
    wanted = tokens.by_token(kept @ values).sum(dim=2) / sums
    close(found, wanted, 1e-10)
    g = torch.randn_like(wanted)
    for slope, other in zip(torch.autograd.grad(found, [q, v], g), torch.autograd.grad(wanted, [q, v], g), strict=True):
        close(slope, other, 1e-10)


def test_the_weight_of_a_token_that_is_alone_is_dropped_too() -> None:
    q, v = torch.randn(1, 1, 600, 16), torch.ones(1, 1, 600, 16)
    hashed = in_order(torch.arange(600, dtype=torch.int32).view(1, 1, 1, 600))
    with assume_capabilities("cpu", GPU), use_kernel("cpu", equation):
        for attend in (batched.attend, chunked.attend):
            y = attend(q, v, hashed, Rules(True, 8, "chunk"), SCALE, None, 0.25)[0, 0]
            close(y.unique(), torch.tensor([0.0, 1 / 0.75]), 1e-6)
            assert 0.17 < (y[:, 0] == 0).float().mean() < 0.33
            assert (y == y[:, :1]).all()


@sweep("causal", [True, False])
@sweep("reach", ["bucket", "chunk"])
def test_the_lists_of_both_passes_are_the_same_blocks(causal: bool, reach: str) -> None:
    """The blocks that the backward pass reads by keys are those that the forward pass reads by queries, each once, and none is missing."""
    numbers = random.Random(2)
    torch.manual_seed(1)
    for across, wrap in ((False, "round"), (True, "round"), (True, "rounds")):
        if across and reach == "bucket":
            continue
        rules = Rules(causal, 50, reach, True, across, "alone", 2, 1, wrap)  # type: ignore[arg-type]
        q, _, hashed, real = drawn_tokens(numbers, 1000)
        tokens = ranked(hashed, rules, real, batched.BLOCK)
        lists, queries = batched.block_lists(tokens, rules), tokens.by_rank(q)
        blocks = queries.shape[2] // batched.BLOCK
        assert all(each.is_contiguous() and each.dtype == torch.int32 for each in lists)
        assert lists.keys.shape[2:] == lists.queries.shape[2:] == (blocks, blocks)
        marked = [_marked(*pair, blocks) for pair in (lists[:2], lists[2:])]
        assert marked[0].equal(marked[1].mT)
        assert marked[0].max() == 1
        row, head, rank = (torch.arange(n, dtype=torch.int32) for n in queries.shape[:3])
        seen = tokens.seen(row[:, None, None, None], head[:, None, None], rank[:, None], rank)
        assert visible(batched.block_mask(lists, tokens.seen, queries.shape[2]), queries, queries).equal(seen)


def _marked(counts: Tensor, which: Tensor, blocks: int) -> Tensor:
    """How often each block is listed."""
    there = torch.arange(which.shape[3]) < counts[..., None]
    return torch.zeros(*which.shape[:3], blocks, dtype=torch.int64).scatter_add(3, which.long(), there.long())


def test_long_rows_do_not_overflow() -> None:
    """At 65,536 tokens predicates are right in int32, for the last row and head."""
    n, rounds = 65_536, 2
    torch.manual_seed(0)
    buckets = torch.randint(1000, (2, 2, rounds, n), dtype=torch.int32)
    hashed = in_order(buckets)
    for rules in (
        Rules(True, 64),
        Rules(True, 64, "chunk"),
        Rules(False, 64, "chunk", across_buckets=True),
        Rules(True, 64, "chunk", across_buckets=True, duplicates=True, wrap="rounds"),
    ):
        tokens = ranked(hashed, rules, None, batched.BLOCK)
        order = tokens.arranged(tokens.order)
        row, head, ranks = (size - 1 for size in order.shape)
        rank = torch.arange(ranks - 400, ranks + 1, dtype=torch.int32)
        seen = tokens.seen(torch.tensor(row).int(), torch.tensor(head).int(), rank[:, None], rank)
        assert seen.dtype == torch.bool
        token = order[row, head, rank.long()]
        same = buckets[row, -1, -1, token]
        near = (rank[:, None] // 64 - rank // 64).abs() <= 1 if rules.reach == "chunk" else torch.ones(401, 401, dtype=torch.bool)
        wanted = near & (rank // 64 <= rank[:, None] // 64)
        if not rules.across_buckets:
            wanted = near & (same[:, None] == same)
        wanted = wanted & (token < token[:, None] if rules.causal else token != token[:, None])
        if not rules.duplicates:
            earlier = buckets[row, -1, 0, token]
            known = earlier[:, None] == earlier
            if rules.reach == "chunk":
                place = hashed.order[row, -1, 0].argsort()[token] // 64
                apart = (place[:, None] - place) % (n // 64)
                known = (apart <= 1) & (known if not rules.across_buckets else True)
            wanted = wanted & ~known
        assert wanted.any()
        assert seen.equal(wanted), rules


@sweep("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_statistics_in_float32(dtype: torch.dtype) -> None:
    """The error is that of rounding inputs, weights and outputs, also where many keys are summed."""
    torch.manual_seed(0)
    q, v = (torch.randn(2, 2, 700, 16).to(dtype) for _ in range(2))
    hashed = in_order(hashes(q, rotations(2, 16, 2, 1, 0, 0), (2,)))
    for rules in (Rules(True, 256, "chunk"), Rules(False, 256, "chunk", duplicates=True)):
        wanted = by_equation(q.double(), v.double(), hashed, rules, None)
        with assume_capabilities("cpu", GPU), use_kernel("cpu", equation):
            for attend in (batched.attend, chunked.attend):
                found = attend(q, v, hashed, rules, SCALE, None, 0.0)
                assert found.dtype == dtype
                assert (found - wanted).abs().max() < (0.02 if dtype == torch.bfloat16 else 0.003)


@sweep(
    ("capabilities", "dtype", "rules", "name", "why"),
    [
        (Capabilities(host=True), torch.float32, Rules(True, 8), "hashed", "above 384 tokens"),
        (GPU, torch.float32, Rules(True, 8), "flex", "wait for the device"),
        (GPU, torch.float64, Rules(True, 8, "chunk"), "chunked", "no kernel for float64"),
        (PLAIN, torch.float32, Rules(True, 8, "chunk"), "chunked", "no kernels on cpu"),
        (PLAIN, torch.float32, Rules(True, 8), "sdpa", ""),
        (GPU, torch.float32, Rules(True, 8, "chunk", across_buckets=True, wrap="rounds"), "dense", "a key counts once"),
    ],
)
def test_the_path_is_chosen_by_capability(capabilities: Capabilities, dtype: torch.dtype, rules: Rules, name: str, why: str) -> None:
    with assume_capabilities("cpu", capabilities):
        choice = choose(torch.empty(1, 1, 400, 16, dtype=dtype), rules, 2)
        assert choice.name == name
        assert why in explained(choice)
        short = choose(torch.empty(1, 1, 40, 16, dtype=dtype), rules, 2)
        assert short.name == ("sdpa" if rules.reach == "bucket" else name)
        assert [verdict.name for verdict in verdicts(choice) if verdict.runs] == [name]
