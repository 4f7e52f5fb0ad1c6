"""Image heads: losses against sums over cells, excluded targets, nats per dimension, and errors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import formers
from formers.core import IGNORED, Sizes
from formers.heads import PixelCategorical, PixelMixture
from formers.heads.logistics import Logistics, numbers
from helpers import close, refused, sweep

SIZES = Sizes(dim=6, heads=1, head_dim=6, value_dim=6, length=8, depth_steps=1, dropout=0.0, attention_dropout=0.0)


def mixture(channels: int = 3, levels: int = 9, bias: bool = True) -> torch.nn.Module:
    head = PixelMixture(mixtures=2, channels=channels, levels=levels, bias=bias).build(SIZES, None, 1.0).double()
    with torch.no_grad():
        head.weight.normal_()
        if bias:
            head.bias.normal_()
    return head


def categorical(levels: int = 5) -> torch.nn.Module:
    head = PixelCategorical().build(SIZES, levels, 1.0).double()
    torch.nn.init.normal_(head.weight)
    return head


def naive_pixel(head: torch.nn.Module, hidden: Tensor, levels: Tensor, channels: int, count: int) -> float:
    """-log p of one pixel."""
    given = head.weight @ hidden + (0.0 if head.bias is None else head.bias)
    return Logistics.of(given, 2, channels).nats(levels, count).item()


@sweep("channels", [1, 2, 3])
@sweep("bias", [True, False])
def test_the_loss_of_a_mixture_is_the_mean_over_channel_values(channels: int, bias: bool) -> None:
    head = mixture(channels, bias=bias)
    assert head.weight.shape == (numbers(2, channels), 6)
    hidden, targets = torch.randn(2, 4, 6, dtype=torch.float64), torch.randint(9, (2, 4, channels))
    each = torch.tensor(
        [[naive_pixel(head, hidden[n, t], targets[n, t], channels, 9) for t in range(4)] for n in range(2)], dtype=torch.float64
    )
    logits, losses = head(hidden, None, targets, None)
    assert logits.shape == (2, 4, numbers(2, channels))
    close(losses["cross_entropy"], each.mean() / channels)
    close(head.token_losses(hidden, None, targets), each)


def test_what_does_not_count_of_a_mixture() -> None:
    head = mixture()
    hidden, targets = torch.randn(2, 4, 6, dtype=torch.float64), torch.randint(9, (2, 4, 3))
    each = head.token_losses(hidden, None, targets)
    targets[0, 1] = IGNORED
    targets[1, 3, 2] = IGNORED  # one channel: the pixel does not count
    real = torch.tensor([[True, True, True, True], [False, True, True, True]])
    counts = torch.tensor([[True, False, True, True], [False, True, True, False]])
    close(head(hidden, None, targets, real)[1]["cross_entropy"], each[counts].mean() / 3)
    targets[:] = IGNORED
    assert head(hidden, None, targets, None)[1]["cross_entropy"] == 0.0
    assert not head.token_losses(hidden, None, targets).any()


def test_a_cell_that_does_not_count_has_no_gradient() -> None:
    head = mixture()
    hidden = torch.randn(1, 2, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[[1, 2, 3], [IGNORED] * 3]])
    grad = torch.autograd.grad(head(hidden, None, targets, None)[1]["cross_entropy"], hidden)[0]
    assert grad[0, 0].abs().min() > 0
    assert not grad[0, 1].any()


def test_the_loss_of_levels_is_the_mean_over_cells() -> None:
    head = categorical()
    hidden, targets = torch.randn(2, 4, 6, dtype=torch.float64), torch.randint(5, (2, 4))
    targets[0, 2] = IGNORED
    real = torch.tensor([[True] * 4, [True, True, True, False]])
    total, count = 0.0, 0
    for n in range(2):
        for t in range(4):
            if targets[n, t] != IGNORED and real[n, t]:
                logits = (head.weight @ hidden[n, t] + head.bias).tolist()
                total += math.log(sum(math.exp(each) for each in logits)) - logits[int(targets[n, t])]
                count += 1
    assert count == 6
    close(head(hidden, None, targets, real)[1]["cross_entropy"], torch.tensor(total / count, dtype=torch.float64))
    assert head.token_losses(hidden, None, targets)[0, 2] == 0.0


def test_a_model_that_knows_nothing_needs_the_logarithm_of_the_levels() -> None:
    """Nats are of a dimension for both heads: a mixture of one huge scale gives half of the mass to the first level, half to the last."""
    flat = formers.create("image-transformer", height=2, width=2, channels=3, levels=16, dim=8, heads=1, layers=1, dropout=0.0)
    torch.nn.init.zeros_(flat.head.weight)
    stream = torch.randint(16, (2, 12))
    assert abs(flat(stream, targets=stream).loss.item() - math.log(16)) < 1e-6
    head = PixelMixture(mixtures=1, channels=3, levels=16, bias=True).build(SIZES, None, 1.0)
    with torch.no_grad():
        head.weight.zero_()
        head.bias[4:7] = 30.0
    extremes = torch.tensor([[[0, 15, 0]]])
    assert abs(head(torch.zeros(1, 1, 6), None, extremes, None)[1]["cross_entropy"].item() - math.log(2)) < 1e-6


def test_half_precision_is_computed_in_float32() -> None:
    head = mixture().to(torch.bfloat16)
    hidden, targets = torch.randn(1, 3, 6, dtype=torch.bfloat16), torch.randint(9, (1, 3, 3))
    nats = head.token_losses(hidden, None, targets)
    assert nats.dtype == torch.float32
    close(nats, Logistics.of(head.project(hidden).float(), 2, 3).nats(targets, 9), 0.0)


def test_mistakes() -> None:
    hidden = torch.randn(1, 2, 6, dtype=torch.float64)
    for wrong in (9, -1, -99):
        with refused(str(wrong)):
            mixture()(hidden, None, torch.full((1, 2, 3), wrong), None)
    for wrong in (5, -1):
        with refused(str(wrong)):
            categorical()(hidden, None, torch.full((1, 2), wrong), None)
    with refused("(1, 2)", "(1, 2, 3)"):
        mixture()(hidden, None, torch.zeros(1, 2, dtype=torch.int64), None)
    with refused("(1, 2, 3)", "(1, 2)"):
        categorical()(hidden, None, torch.zeros(1, 2, 3, dtype=torch.int64), None)
    with refused("levels"):
        PixelMixture(levels=1)
    with refused("mixtures"):
        PixelMixture(mixtures=0)
