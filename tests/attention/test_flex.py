"""FlexAttention gets the pattern's blocks and predicate; its forward pass equals dense on a CPU; the rest is unsupported."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from contracts.specimens import patterns
from formers import FormersError
from formers.attention.executors import flex
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.patterns import BigBird, Causal, Fixed, Full, Local, LocalGrid, OrderedGrid, Pattern, PerHead, Strided
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
    """FlexAttention's own words for it, without a kernel, in float64: the same graph, over the full matrix."""
    from torch.nn.attention.flex_attention import flex_attention

    fresh()
    request = asked(pattern, 17)
    q, k, v = tokens(request)
    with flex._writing():
        found = flex_attention(q, k, v, block_mask=flex.block_mask(request, CPU), scale=request.scale)
    close(found, formers.attend(q, k, v, request.pattern, "dense", scale=request.scale))


def blocks_by_hand(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks of a mask (heads, queries, keys) hold an allowed pair, and which of them nothing but."""
    heads, n, m = mask.shape
    rows, columns = math.ceil(n / flex.BLOCK), math.ceil(m / flex.BLOCK)
    padded = torch.zeros(heads, rows * flex.BLOCK, columns * flex.BLOCK, dtype=torch.bool)
    padded[:, :n, :m] = mask
    parts = padded.view(heads, rows, flex.BLOCK, columns, flex.BLOCK)
    return parts.any(dim=4).any(dim=2), parts.all(dim=4).all(dim=2)


def marked(count: Tensor, which: Tensor) -> Tensor:
    """Listed blocks as a table (heads, rows, columns) of marks."""
    table = torch.zeros_like(which, dtype=torch.bool)
    first = torch.arange(which.shape[-1]) < count[..., None]
    return table.scatter(-1, which.long(), first)[0]


@SWEPT
@sweep("n", [1, 17, flex.BLOCK, LONG])
def test_blocks_are_those_that_hold_a_pair(pattern: Pattern, n: int) -> None:
    try:
        request = asked(pattern, n)
    except FormersError:
        assert isinstance(pattern, LocalGrid | OrderedGrid), "only an image has so many pixels and no more"
        return
    some, every = blocks_by_hand(request.pattern.mask(n, request.heads))
    for padded in (False, True):
        part, which_part, whole, which_whole = flex._blocks(request.pattern, request.queries, request.keys, request.heads, CPU, padded)
        whole, part = marked(whole, which_whole), marked(part, which_part)
        assert not (whole & part).any()
        assert torch.equal((whole | part).expand_as(some), some)
        assert torch.equal(whole.expand_as(every), torch.zeros_like(every) if padded else every)


def test_a_mask_is_made_once_and_kept_by_value() -> None:
    first = flex.block_mask(asked(Strided(stride=8), 40), CPU)
    assert flex.block_mask(asked(Strided(stride=8), 40), CPU) is first
    assert flex.block_mask(asked(Strided(stride=9), 40), CPU) is not first


def test_what_torch_cannot_follow_is_looked_up() -> None:
    class Branching:
        """A predicate that decides by looking at a number, which no graph can."""

        by_head = False

        def allows(self, i: Any, j: Any, head: Any = 0) -> Any:
            if isinstance(i, Tensor) and i.dim() == 0:
                return torch.tensor(True) if j <= i else torch.tensor(False)
            return j <= i

    class Double(Branching):
        """A predicate that says something else of single numbers than of many."""

        def allows(self, i: Any, j: Any, head: Any = 0) -> Any:
            return j > i if isinstance(i, Tensor) and i.dim() == 0 else j <= i

    where = Range(0, 9)
    for pattern in (Branching(), Double()):
        assert not flex._followed(pattern, 9, 2)
        found = flex.predicate(pattern, where, where, 2, CPU)
        here, zero = torch.arange(9), torch.tensor(0)
        seen = torch.stack([torch.stack([found(zero, zero, i, j) for j in here]) for i in here])
        assert torch.equal(seen, Causal().mask(9)[0])
    assert flex._followed(Strided(stride=8), 40, 2)
    assert flex._followed(PerHead(*Fixed(stride=8, summary=2).parts()), 40, 2)


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


class OnGPU:
    """As much of a tensor on a GPU as a choice looks at."""

    device, dtype, requires_grad = torch.device("cuda"), torch.bfloat16, True

    def __len__(self) -> int:
        return 1


def choice(pattern: Pattern, n: int, **options: Any) -> str | None:
    """Why FlexAttention is passed over on a GPU; None where it runs."""
    q: Any = OnGPU()
    request = Request(pattern.of(n), Range(0, n), Range(0, n), 2, 1.0, **options)
    return formers.attention.EXECUTORS["flex"].declines(request, q, q, q)


def test_auto_takes_it_on_gpus_where_a_pattern_is_sparse() -> None:
    for pattern in (Strided(stride=64), Local(window=64), BigBird(block=64)):
        assert choice(pattern, 1024) is None
    assert choice(Causal(), 1024, valid=torch.ones(1, 1024, dtype=torch.bool)) is None
    for pattern in (Causal(), Full()):
        assert "the fused kernel needs no mask" in choice(pattern, 1024)
    assert "below 512 tokens" in choice(Strided(stride=64), 100)
    names = list(formers.attention.EXECUTORS)
    assert names.index("flex") < names.index("blocked")


def test_auto_never_takes_it_on_a_cpu() -> None:
    q = torch.randn(1, 2, 600, 4)
    assert "not flex, because FlexAttention is for GPUs" in formers.explain(q, q, q, Strided(stride=16))
