"""Every executor equals dense, for every pattern and every length, values and gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import formers
from contracts.attention_cases import EVERY, SWEPT, SWEPT_EXECUTORS, attempt, gaps, inputs
from contracts.specimens import BLOCK, LENGTHS, patterns
from formers.core import Range
from formers.patterns import Causal, Full, Local, Pattern
from helpers import close, gradients, sweep

FAST = [name for name in SWEPT_EXECUTORS if name != "dense"]


def equals_dense(qkv: list[Tensor], pattern: Pattern, extra: tuple[Tensor, ...] = (), **options: Any) -> set[str]:
    """Fails where an executor and dense differ; the executors that do not say that they cannot."""
    wanted = formers.attend(*qkv, pattern, "dense", **options)
    slopes, ran = gradients(wanted, [*qkv, *extra]), set()
    for how in FAST:
        found = attempt(how, *qkv, pattern, **options)
        if found is not None:
            ran.add(how)
            close(found, wanted)
            for one, other in zip(gradients(found, [*qkv, *extra]), slopes, strict=True):
                close(one, other)
    return ran


@SWEPT
def test_every_length(pattern: Pattern) -> None:
    ran = [equals_dense(inputs(n), pattern) for n in LENGTHS]
    assert set().union(*ran) == set(FAST), "an executor runs at no length"


@SWEPT
def test_every_length_with_padding(pattern: Pattern) -> None:
    for n in LENGTHS:
        mask = torch.rand(3, n) < 0.6
        mask[1] = False
        equals_dense(inputs(n, batch=3), pattern, mask=mask)


@EVERY
@sweep("pattern", [p.at(0) for p in patterns()])
def test_a_padded_row_equals_the_row_alone(how: str, pattern: Pattern) -> None:
    """Also where who sees whom depends on where a row ends: there it ends behind its last real key, and nobody stands behind it."""
    n, lengths = 2 * BLOCK + 1, (2 * BLOCK + 1, 5, 0, 6, BLOCK)
    qkv = inputs(n, batch=len(lengths))
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    mask[0, 3] = False  # a hole ends no row
    found = attempt(how, *qkv, pattern, mask=mask)
    assert found is not None
    close(found, formers.attend(*qkv, pattern, "dense", mask=mask))
    weights = torch.randn_like(found) * (torch.arange(n) < torch.tensor(lengths)[:, None])[:, None, :, None]
    slopes = torch.autograd.grad((found * weights).sum(), qkv)
    for row, length in enumerate(lengths):
        if not length:
            assert not pattern.by_length or (found[row] == 0).all()
            continue
        short = [t[row : row + 1, :, :length].detach().requires_grad_() for t in qkv]
        alone = formers.attend(*short, pattern.of(length), "dense", mask=mask[row : row + 1, :length])
        close(found[row : row + 1, :, :length], alone)
        for slope, wanted in zip(slopes, torch.autograd.grad((alone * weights[row : row + 1, :, :length]).sum(), short), strict=True):
            close(slope[row : row + 1, :, :length], wanted)
            assert (slope[row, :, length:] == 0).all()


@SWEPT
def test_every_length_of_keys_before_the_queries(pattern: Pattern) -> None:
    for m in LENGTHS:
        equals_dense(inputs(1, m), pattern)
        equals_dense(inputs(min(3, m), m, value_dim=6), pattern)
        equals_dense(inputs(m + 2, m), pattern)


@SWEPT
def test_positions_that_differ_by_row(pattern: Pattern) -> None:
    for n in (1, 5, BLOCK + 1):
        equals_dense(inputs(n, 2 * n), pattern, queries=gaps(2, n, seed=n), keys=gaps(2, 2 * n, seed=n + 1))
        equals_dense(inputs(n), pattern, queries=Range(3 * BLOCK, n), keys=Range(3 * BLOCK, n))
        equals_dense(inputs(n), pattern, queries=Range(3, n), keys=Range(0, n))


@SWEPT
@sweep("shape", [(2, 2, 6, 9), (1, 2, 6, 9), (2, 1, 1, 9), (6, 9)])
def test_bias_and_its_gradient(pattern: Pattern, shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 9) < 0.7
    equals_dense(inputs(6, 9), pattern, (bias,), bias=bias)
    equals_dense(inputs(6, 9), pattern, (bias,), bias=bias, mask=mask)


@EVERY
@SWEPT
@sweep("dtype", [torch.float64, torch.float32])
@sweep("value_dim", [4, 3])
def test_no_keys_means_zero_and_zero_gradients(how: str, pattern: Pattern, dtype: torch.dtype, value_dim: int) -> None:
    qkv = inputs(5, batch=3, value_dim=value_dim, dtype=dtype)
    mask = torch.tensor([[True] * 5, [False] * 5, [False] * 4 + [True]])
    for bias in (None, torch.randn(1, 2, 5, 5, dtype=dtype)):
        found = attempt(how, *qkv, pattern, mask=mask, bias=bias)
        if found is None:
            continue
        seen = (pattern.mask(5, heads=2) & mask[:, None, None, :]).any(dim=-1)
        assert found.isfinite().all()
        assert (found[~seen] == 0).all()
        assert (found[seen] != 0).any(dim=-1).all()
        slopes = gradients(found, qkv)
        assert all(slope.isfinite().all() for slope in slopes)
        assert (slopes[0][~seen] == 0).all()
        assert all((slope[1] == 0).all() for slope in slopes)


@EVERY
@SWEPT
@sweep(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 3e-2)])
def test_lower_precision(how: str, pattern: Pattern, dtype: torch.dtype, tolerance: float) -> None:
    qkv = inputs(2 * BLOCK + 1, dtype=dtype)
    found = attempt(how, *qkv, pattern)
    if found is not None:
        assert found.dtype == dtype
        wanted = formers.attend(*(t.detach().double() for t in qkv), pattern, "dense")
        close(found.detach().double(), wanted, tolerance)


@EVERY
@SWEPT
def test_dropout_keeps_the_mean(how: str, pattern: Pattern) -> None:
    rows = 256  # of which each draws for itself; `blocked` takes them one by one
    q, k, v = (t.detach() for t in inputs(6, batch=1, dtype=torch.float32))
    found = attempt(how, *(t.expand(rows, -1, -1, -1) for t in (q, k, v)), pattern, dropout=0.3)
    if found is not None:
        plain = formers.attend(q, k, v, pattern, "dense")[0]
        spread, mean = found.std(dim=0), found.mean(dim=0)
        assert (spread > 0)[plain != 0].all(), "nothing was dropped"
        assert ((mean - plain).abs() <= 5 * spread / rows**0.5).all(), "a mean is further off than five standard errors"
        assert abs((mean * plain).sum() / plain.square().sum() - 1) <= 0.1, "all means together"


@EVERY
@sweep("n", [1, 2, 5, 8])
def test_causal_queries_at_the_end_are_the_last_rows(how: str, n: int) -> None:
    """torch's is_causal counts from the first key, so that it is right only where queries and keys are the same tokens."""
    q, k, v = inputs(9)
    whole = formers.attend(q, k, v, Causal(), "dense")
    found = attempt(how, q[:, :, -n:], k, v, Causal())
    if found is None:
        assert how == "blocked" or (how == "gather" and n > 1), "pieces need queries that are the keys, and gathering a single one"
        return
    close(found, whole[:, :, -n:])
    ahead = attempt(how, q[:, :, 4:8], k[:, :, :4], v[:, :, :4], Causal(), queries=Range(4, 4), keys=Range(0, 4))
    if ahead is not None:
        close(ahead, formers.attend(q[:, :, 4:8], k[:, :, :4], v[:, :, :4], Full(), "dense"))


@EVERY
@sweep("pattern", [Causal(), Local(window=3)])
def test_what_inference_left_behind_serves_training(how: str, pattern: Pattern) -> None:
    """Masks are kept by value: one that was made in inference mode must not spoil a later backward pass."""
    qkv = inputs(19, 23)
    with torch.inference_mode():
        before = attempt(how, *qkv, pattern)
    if before is not None:
        found, wanted = (gradients(formers.attend(*qkv, pattern, name), qkv) for name in (how, "dense"))
        for one, other in zip(found, wanted, strict=True):
            close(one, other)


@SWEPT
@sweep("extra", ["nothing", "mask", "gaps", "bias"])
def test_sdpa_does_run_the_fused_kernel(pattern: Pattern, extra: str) -> None:
    """Where torch has no kernel for what it is handed it silently makes the matrix; allowed only the kernel, it would raise."""
    n = 2 * BLOCK + 1
    options: dict[str, Any] = {
        "mask": {"mask": torch.rand(2, n) < 0.6},
        "gaps": {"queries": gaps(2, n), "keys": gaps(2, n)},
        "bias": {"bias": torch.randn(2, n, n)},
    }.get(extra, {})
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = formers.attend(*inputs(n, dtype=torch.float32), pattern, "sdpa", **options)
    assert found.isfinite().all()


def test_no_keys_at_all() -> None:
    found = formers.attend(*inputs(3, 0), Full())
    assert found.shape == (2, 2, 3, 4)
    assert (found == 0).all()
