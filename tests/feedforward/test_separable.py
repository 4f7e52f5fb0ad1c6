"""Separable convolutions against a sum over windows; padding, states and causality."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from formers.core import Context, Range, Sizes
from formers.feedforward import SeparableConv
from formers.feedforward.separable import SeparableConvTransition
from helpers import close, gradients, sweep

KERNELS = [(3, 5), (1, 1), (4, 2), (2, 7)]


def build(kernels: tuple[int, int], causal: bool, activation: str = "relu") -> SeparableConvTransition:
    torch.manual_seed(1)
    sizes = Sizes(dim=6, heads=1, head_dim=6, value_dim=6, length=9, depth_steps=1, dropout=0.0, attention_dropout=0.0, causal=causal)
    module = SeparableConv(hidden=7, kernels=kernels, activation=activation).build(sizes).double()
    for linear in (module.into.pointwise, module.out.pointwise):
        nn.init.normal_(linear.bias)  # what is outside a row is 0, and not what a convolution makes of zeros
    return module


def windows(x: Tensor, weight: Tensor, causal: bool) -> Tensor:
    """Each channel alone: the sum over its window, number by number."""
    (n, width), kernel = x.shape, weight.shape[1]
    before = kernel - 1 if causal else (kernel - 1) // 2
    rows = []
    for i in range(n):
        row = torch.zeros(width, dtype=x.dtype)
        for m in range(kernel):
            if 0 <= i - before + m < n:
                row = row + weight[:, m] * x[i - before + m]
        rows.append(row)
    return torch.stack(rows)


def oracle(module: SeparableConvTransition, x: Tensor, causal: bool) -> Tensor:
    """One row (length, dim) through both convolutions."""
    inner = windows(x, module.into.depthwise, causal) @ module.into.pointwise.weight.T + module.into.pointwise.bias
    return windows(inner.clamp(min=0), module.out.depthwise, causal) @ module.out.pointwise.weight.T + module.out.pointwise.bias


@sweep("kernels", KERNELS)
@sweep("causal", [True, False])
def test_values_and_gradients_of_every_length_are_sums_over_windows(kernels: tuple[int, int], causal: bool) -> None:
    module = build(kernels, causal)
    for n in range(1, 10):
        x = torch.randn(2, n, 6, dtype=torch.float64, requires_grad=True)
        found, left = module(x, Context(Range(0, n)), None, 0)
        assert left is None
        wanted = torch.stack([oracle(module, row, causal) for row in x])
        close(found, wanted)
        given = [x, *module.parameters()]
        for a, b in zip(gradients(found, given), gradients(wanted, given), strict=True):
            close(a, b)


@sweep("kernels", KERNELS)
@sweep("causal", [True, False])
def test_padding_does_not_leak_whatever_stands_there(kernels: tuple[int, int], causal: bool) -> None:
    module, x = build(kernels, causal), torch.randn(3, 8, 6, dtype=torch.float64) * 100
    counts = (8, 3, 1)
    valid = torch.arange(8) < torch.tensor(counts)[:, None]
    found, _ = module(x, Context(Range(0, 8), valid), None, 0)
    for row, n in enumerate(counts):
        close(found[row, :n], oracle(module, x[row, :n], causal))


@torch.no_grad()
@sweep("kernels", KERNELS)
def test_a_stream_goes_on_with_padded_and_reset_rows(kernels: tuple[int, int]) -> None:
    module, past, rows = build(kernels, True), None, [torch.zeros(0, 6, dtype=torch.float64) for _ in range(3)]
    for turn in range(12):
        n = (1, 4, 1, 2)[turn % 4]
        x = torch.randn(3, n, 6, dtype=torch.float64)
        counts = torch.randint(n + 1, (3,)) if turn % 3 else torch.full((3,), n)
        valid = torch.arange(n) < counts[:, None] if turn % 3 else None
        found, past = module(x, Context(Range(0, n), valid, keep=True), past, 0)
        for i, count in enumerate(counts.tolist()):
            rows[i] = torch.cat([rows[i], x[i, :count]])
            if count:
                close(found[i, :count], oracle(module, rows[i], True)[-count:])
        if turn % 5 == 4:
            past, rows[turn % 3] = past.reset(torch.arange(3) == turn % 3), rows[turn % 3][:0]


@sweep(("causal", "place"), [(True, 8), (False, 5)])
def test_no_later_token_is_seen_and_all_of_the_window_is(causal: bool, place: int) -> None:
    module, x = build((3, 5), causal, "gelu"), torch.randn(1, 12, 6, dtype=torch.float64, requires_grad=True)
    y, _ = module(x, Context(Range(0, 12)), None, 0)
    (slope,) = torch.autograd.grad(y[0, place].square().sum(), x)
    assert slope[0].abs().sum(dim=1).nonzero().flatten().tolist() == list(range(2, 9))


def test_weights_start_so_that_the_spread_stays() -> None:
    torch.manual_seed(0)
    sizes = Sizes(dim=256, heads=1, head_dim=6, value_dim=6, length=9, depth_steps=1, dropout=0.0, attention_dropout=0.0)
    module = SeparableConv(hidden=256).build(sizes)
    y, _ = module.into(torch.randn(4, 64, 256), Context(Range(0, 64)), None)
    assert abs(y[:, 1:-1].std().item() - 1) < 0.1
