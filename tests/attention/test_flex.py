"""FlexAttention gets the pattern's blocks and predicate; its forward pass equals dense on a CPU; the rest is unsupported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from contracts.specimens import patterns
from formers.attention.executors import flex, flex_masks
from formers.attention.executors.flex_kernel import CompiledKernel, use_kernel
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.core.devices import Capabilities, assume_capabilities
from formers.patterns import BigBird, Causal, Fixed, Full, Local, Pattern, PerHead, Strided
from helpers import close, refused, sweep

CPU = torch.device("cpu")
LONG = 2 * flex.BLOCK + 37
SWEPT = sweep("pattern", patterns())
compiled = pytest.mark.skipif(flex.compiler() is None, reason="torch makes kernels for a CPU with a C++ compiler")


def fresh() -> None:
    """Numbers that differ between patterns would be left open, and take torch long to reason about."""
    torch._dynamo.reset()


def asked(pattern: Pattern, n: int, valid: Tensor | None = None) -> Request:
    """A request for all of n tokens, with as many heads as the pattern tells apart, two at the least."""
    here = pattern.at(0).of(n)
    return Request(here, Range(0, n), Range(0, n), len(here.patterns) if isinstance(here, PerHead) else 2, 0.5, valid)


def tokens(request: Request, value_dim: int = 3, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k and v of two rows."""
    return [torch.randn(2, request.heads, request.queries.length, width, dtype=dtype) for width in (4, 4, value_dim)]


@sweep("pattern", [Local(window=3, include_self=False), BigBird(block=2, window=1), PerHead(*Fixed(stride=4, summary=1).parts())])
def test_the_predicate_is_the_patterns(pattern: Pattern) -> None:
    equals_dense(pattern)


@pytest.mark.slow
@SWEPT
def test_every_predicate_is_its_patterns(pattern: Pattern) -> None:
    equals_dense(pattern)


def equals_dense(pattern: Pattern) -> None:
    """torch's own graph of FlexAttention, without a kernel, in float64: over the full matrix."""
    fresh()
    request = asked(pattern, 17)
    q, k, v = tokens(request)
    with use_kernel("cpu", CompiledKernel("eager")):
        found = flex.run(q, k, v, request)
    close(found, formers.attend(q, k, v, request.pattern, "dense", scale=request.scale))


def test_lists_are_made_once_and_kept_by_value() -> None:
    first = flex.block_mask(asked(Strided(stride=8), 40), CPU)
    assert flex.block_mask(asked(Strided(stride=8), 40), CPU).kv_indices is first.kv_indices
    assert flex.block_mask(asked(Strided(stride=9), 40), CPU).kv_indices is not first.kv_indices


def test_what_torch_cannot_follow_is_looked_up() -> None:
    class Branching:
        """A predicate that decides by looking at a number, which no graph can."""

        by_head = False
        max_length = None

        def allows(self, i: Any, j: Any, head: Any = 0) -> Any:
            if isinstance(i, Tensor) and i.dim() == 0:
                return torch.tensor(True) if j <= i else torch.tensor(False)
            return j <= i

    class Double(Branching):
        """A predicate that says something else of single numbers than of many."""

        def allows(self, i: Any, j: Any, head: Any = 0) -> Any:
            return j > i if isinstance(i, Tensor) and i.dim() == 0 else j <= i

    where = Range(3, 9)
    for pattern in (Branching(), Double()):
        assert not flex_masks.followed(pattern, 2)
        found = flex_masks.position_mask(pattern, where, where, 2, CPU)
        here, zero = torch.arange(3, 12), torch.tensor(0)
        seen = torch.stack([torch.stack([found(zero, zero, i, j) for j in here]) for i in here])
        assert torch.equal(seen, Causal().mask(9)[0])
    assert flex_masks.followed(Strided(stride=8), 2)
    assert flex_masks.followed(PerHead(*Fixed(stride=8, summary=2).parts()), 2)


KERNELS: list[tuple[Pattern, int, bool, int]] = [
    (Strided(stride=16), LONG, False, 4),
    (PerHead(Local(window=5, include_self=False), Fixed(stride=64, summary=8)), LONG, True, 3),
]


@pytest.mark.slow
@compiled
@pytest.mark.parametrize(("pattern", "n", "padded", "value_dim"), KERNELS, ids=repr)
def test_the_kernel_equals_dense(pattern: Pattern, n: int, padded: bool, value_dim: int) -> None:
    """Whole and partial blocks, heads that differ, padding, queries without keys, values of another width."""
    fresh()
    request = asked(pattern, n)
    q, k, v = tokens(request, value_dim, torch.float32)
    mask = None
    if padded:
        mask = torch.rand(2, n) < 0.6
        mask[1] = False
    found = formers.attend(q, k, v, pattern, "flex", mask=mask)
    wanted = formers.attend(q.double(), k.double(), v.double(), pattern, "dense", mask=mask)
    close(found.double(), wanted, 2e-6)
    empty = ~pattern.mask(n, request.heads).any(dim=-1)
    assert (found[:, empty] == 0).all()
    assert not padded or (found[1] == 0).all()


def test_what_it_cannot_do_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 2, 5, 4)
    with refused("how='flex'", "FlexAttention has no backward on a CPU"):
        formers.attend(q.requires_grad_(), q, q, Causal(), "flex")
    q = q.detach()
    with refused("how='flex'", "FlexAttention does not support dropout"):
        formers.attend(q, q, q, Causal(), "flex", dropout=0.1)
    with refused("how='flex'", "a term is added to the scores"):
        formers.attend(q, q, q, Causal(), "flex", bias=torch.zeros(5, 5))
    with refused("how='flex'", "no kernel for float64"):
        formers.attend(q.double(), q.double(), q.double(), Causal(), "flex")
    with refused("how='flex'", "float32 only"):
        formers.attend(q.bfloat16(), q.bfloat16(), q.bfloat16(), Causal(), "flex")
    with refused("how='flex'", "positions are not contiguous"):
        formers.attend(q, q, q, Causal(), "flex", keys=ExplicitPositions(torch.arange(5), 5))
    with refused("how='flex'", "no keys at all"):
        formers.attend(q, q[:, :, :0], q[:, :, :0], Full(), "flex")
    monkeypatch.setattr(flex, "compiler", lambda: None)
    with refused("how='flex'", "no C++ compiler"):
        formers.attend(q, q, q, Causal(), "flex")


def choice(pattern: Pattern, n: int, **options: Any) -> str | None:
    """Why FlexAttention is passed over on an accelerator; None where it runs."""
    q = torch.empty(1, 2, n, 16, dtype=torch.bfloat16)
    request = Request(pattern.of(n), Range(0, n), Range(0, n), 2, 1.0, **options)
    with assume_capabilities("cpu", Capabilities(flex=True)):
        return formers.attention.EXECUTORS["flex"].declines(request, q, q, q)


def test_auto_takes_it_on_accelerators_where_a_pattern_is_sparse() -> None:
    valid = torch.ones(1, 1024, dtype=torch.bool)
    for pattern in (Strided(stride=64), Local(window=64), BigBird(block=64)):
        assert choice(pattern, 1024) is None
        assert choice(pattern, 1024, valid=valid, dropout=0.1) is None
    assert choice(Causal(), 1024, valid=valid) is None
    for pattern, given in ((Causal(), None), (Full(), None), (Full(), valid)):
        assert "the fused kernel needs no mask" in str(choice(pattern, 1024, valid=given))
    assert "below 512 tokens" in str(choice(Strided(stride=64), 100))
    names = list(formers.attention.EXECUTORS)
    assert names.index("flex") < names.index("blocked")


def test_auto_never_takes_it_on_a_cpu() -> None:
    q = torch.randn(1, 2, 600, 4)
    assert "not flex, because FlexAttention is for GPUs" in formers.explain(q, q, q, Strided(stride=16))
