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
from formers.attention.executors import dense
from formers.attention.executors.flex_kernel import use_kernel
from formers.attention.executors.keyed_dropout import keep_mask
from formers.attention.lsh import batched, chunked, kernel
from formers.attention.lsh.hashing import Hashed, hashes, in_order, rotations
from formers.attention.lsh.paths import choose
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
