"""Mixtures of logistics: masses that sum to one, exact logarithms in the tails, gradients, conditionals, and public layouts."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.heads.logistics import FLOOR, LAYOUTS, Logistics, from_layout, log_mass, numbers, value
from helpers import close, refused, sweep

COUNTS = sweep("count", [2, 3, 17, 256])


def by_decimals(level: int, count: int, mean: float, log_scale: float) -> float:
    """log of a bin's mass: the difference of two tails with eighty digits, measured from the side on which the bin is."""
    with localcontext() as context:
        context.prec = 80
        scale, middle = Decimal(log_scale).exp(), Decimal(2 * level) / (count - 1) - 1
        side = 1 if middle > Decimal(mean) else -1

        def beyond(edge: Decimal) -> Decimal:
            return 1 / (1 + (side * (edge - Decimal(mean)) / scale).exp())

        half = Decimal(1) / (count - 1)
        upper = Decimal(side < 0) if level == count - 1 else beyond(middle + half)
        lower = Decimal(side > 0) if level == 0 else beyond(middle - half)
        return float(abs(upper - lower).ln())


@sweep(("mean", "log_scale"), list(itertools.product((0.0, -0.3711, 0.98, 1.4, -2.0), (FLOOR, -3.3, 0.0, 4.0))))
def test_the_logarithm_of_a_mass_is_exact_in_the_tails(mean: float, log_scale: float) -> None:
    for count in (2, 3, 17, 256):
        levels = sorted({0, 1, count // 3, count // 2, count - 2, count - 1})
        found = log_mass(torch.tensor(levels), torch.tensor(mean, dtype=torch.float64), torch.tensor(log_scale, dtype=torch.float64), count)
        wanted = [by_decimals(level, count, mean, log_scale) for level in levels]
        assert all(map(math.isfinite, wanted))
        for one, other in zip(found.tolist(), wanted, strict=True):
            assert abs(one - other) <= 1e-10 * max(1.0, abs(other)), (count, one, other)


@COUNTS
@sweep("channels", [1, 2, 3, 4])
def test_masses_sum_to_one(count: int, channels: int) -> None:
    given = torch.randn(6, numbers(5, channels), dtype=torch.float64)
    given[1] *= 10  # means far outside, narrow and wide scales
    given[2, 5:] *= 100
    given[3, 5 + 5 * channels : 5 + 10 * channels] = -50.0  # below the floor
    given[4, 5 + 5 * channels : 5 + 10 * channels] = 60.0  # all mass in the first and the last level
    given[5, 5 : 5 + 5 * channels] = 1e6
    mixture = Logistics.of(given, 5, channels)
    for channel in range(channels):
        before = torch.randint(count, (6, channel))
        total = mixture.conditional(before, count).exp().sum(dim=-1)
        close(total, torch.ones(6, dtype=torch.float64), 1e-12)


@sweep(("count", "channels"), [(2, 1), (2, 3), (5, 2), (3, 4)])
def test_whole_pixels_sum_to_one(count: int, channels: int) -> None:
    mixture = Logistics.of(torch.randn(1, numbers(3, channels), dtype=torch.float64), 3, channels)
    every = torch.tensor(list(itertools.product(range(count), repeat=channels)))
    close((-mixture.nats(every, count)).exp().sum(), torch.ones((), dtype=torch.float64), 1e-12)


@COUNTS
@sweep("channels", [1, 2, 3, 4])
def test_conditionals_multiply_to_the_pixel(count: int, channels: int) -> None:
    given = torch.randn(8, numbers(4, channels), dtype=torch.float64)
    given[4:] *= 20
    mixture, levels = Logistics.of(given, 4, channels), torch.randint(count, (8, channels))
    total = torch.zeros(8, dtype=torch.float64)
    for channel in range(channels):
        each = mixture.conditional(levels[:, :channel], count)
        total -= each.gather(1, levels[:, channel : channel + 1])[:, 0]
    found = mixture.nats(levels, count)
    assert ((found - total).abs() <= 1e-10 * total.abs().clamp(min=1)).all()


def test_a_pixel_by_loops_over_components_and_channels() -> None:
    mixtures, channels, count = 3, 3, 17
    given = torch.randn(numbers(mixtures, channels), dtype=torch.float64)
    logits = given[:3].tolist()
    means, scales, coefficients = given[3:12].tolist(), given[12:21].tolist(), given[21:30].tolist()
    pixel = [3, 16, 9]
    x = [2 * level / (count - 1) - 1 for level in pixel]
    weights = [math.exp(each) / sum(map(math.exp, logits)) for each in logits]
    p = 0.0
    for k in range(mixtures):
        red, green, blue = means[3 * k : 3 * k + 3]
        c0, c1, c2 = (math.tanh(each) for each in coefficients[3 * k : 3 * k + 3])
        moved = (red, green + c0 * x[0], blue + c1 * x[0] + c2 * x[1])
        p += weights[k] * math.prod(math.exp(by_decimals(pixel[c], count, moved[c], scales[3 * k + c])) for c in range(3))
    found = Logistics.of(given, mixtures, channels).nats(torch.tensor(pixel), count)
    assert abs(found.item() + math.log(p)) < 1e-10


@sweep("count", [2, 17, 256])
@sweep("channels", [1, 3])
@sweep("factor", [1.0, 5.0])
def test_gradients(count: int, channels: int, factor: float) -> None:
    levels = torch.randint(count, (4, channels))
    levels[0], levels[1] = 0, count - 1
    given = (torch.randn(4, numbers(2, channels), dtype=torch.float64) * factor).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Logistics.of(x, 2, channels).nats(levels, count), given)


@sweep("mean", [-4.0, -1.02, 0.37, 2.5])
@sweep("log_scale", [-6.5, -3.0, 3.0, 25.0])
def test_gradients_in_the_tails(mean: float, log_scale: float) -> None:
    levels = torch.tensor([0, 1, 100, 254, 255])
    m, s = (torch.full((5,), each, dtype=torch.float64, requires_grad=True) for each in (mean, log_scale))
    assert torch.autograd.gradcheck(lambda m, s: log_mass(levels, m, s, 256), (m, s), rtol=1e-4)


@sweep("mean", [0.0, 3.0, -1e4, 1e6])
@sweep("log_scale", [-100.0, FLOOR, 0.0, 30.0, 95.0, 300.0])
def test_float32_is_finite_everywhere(mean: float, log_scale: float) -> None:
    """One component is extreme; the gradients of the others and of what made them must be numbers."""
    given = torch.randn(3, numbers(2, 3))
    given[:, 2:5], given[:, 8:11] = mean, log_scale
    given.requires_grad_()
    nats = Logistics.of(given, 2, 3).nats(torch.tensor([[0, 0, 0], [128, 7, 255], [255, 255, 255]]), 256)
    assert torch.isfinite(nats).all()
    assert torch.isfinite(torch.autograd.grad(nats.sum(), given)[0]).all()


def test_a_very_wide_scale_keeps_the_density_of_the_middle() -> None:
    found = log_mass(torch.tensor([100]), torch.tensor([0.0]), torch.tensor([120.0]), 256)
    close(found, torch.tensor([math.log(2 / 255) - 120 + 2 * math.log(0.5)]), 1e-4)


def test_numbers_of_a_pixel() -> None:
    assert [numbers(1, channels) for channels in (1, 2, 3, 4)] == [3, 6, 10, 15]
    assert numbers(10, 3) == 100


def test_temperature_divides_logits_and_multiplies_scales() -> None:
    given = torch.randn(4, numbers(3, 2), dtype=torch.float64)
    plain, warm = Logistics.of(given, 3, 2), Logistics.of(given, 3, 2, 0.5)
    close(warm.logits, plain.logits * 2)
    close(warm.log_scales.exp(), plain.log_scales.exp() * 0.5)
    close(warm.means, plain.means)
    close(warm.coefficients, plain.coefficients)


def test_the_scale_is_floored_at_seven() -> None:
    given = torch.zeros(1, numbers(1, 1))
    given[0, 2] = -9.0
    assert Logistics.of(given, 1, 1).log_scales.item() == -7.0


# Public layouts: the split of each implementation, written as it is there, and its likelihood.


def public_nats(layout: str, given: Tensor, levels: Tensor, mixtures: int) -> Tensor:
    """-log p of RGB pixels (n, 3) by the numbers (n, 10 K) of a public implementation, with its own indices."""
    k, x = mixtures, value(levels, 256, given.dtype)
    if layout == "pixelcnn++":  # l[..., :K]; then l reshaped to (3, 3K): means, log scales and coefficients of a channel
        logits, rest = given[:, :k], given[:, k:].reshape(-1, 3, 3 * k)
        means, scales, coefficients = rest[..., :k], rest[..., k : 2 * k], rest[..., 2 * k :].tanh()
    else:
        logits, means, scales, coefficients = given.split([k, 3 * k, 3 * k, 3 * k], dim=1)
        shape = (-1, k, 3) if layout == "tensor2tensor" else (-1, 3, k)
        means, scales, coefficients = (each.reshape(shape) for each in (means, scales, coefficients))
        if layout == "tensor2tensor":
            means, scales, coefficients = (each.mT for each in (means, scales, coefficients))
        coefficients = coefficients.tanh()
    first, second = means[:, 0], means[:, 1] + coefficients[:, 0] * x[:, :1]
    third = means[:, 2] + coefficients[:, 1] * x[:, :1] + coefficients[:, 2] * x[:, 1:2]
    each = F.log_softmax(logits, dim=1)
    for channel, mean in enumerate((first, second, third)):
        each = each + log_mass(levels[:, channel : channel + 1], mean, scales[:, channel].clamp(min=-7), 256)
    return -each.logsumexp(dim=1)


@sweep("layout", LAYOUTS)
def test_public_layouts_are_converted(layout: str) -> None:
    hidden, levels = torch.randn(5, 6, dtype=torch.float64), torch.randint(256, (5, 3))
    weight, bias = torch.randn(40, 6, dtype=torch.float64), torch.randn(40, dtype=torch.float64)
    wanted = public_nats(layout, F.linear(hidden, weight, bias), levels, 4)
    ours = F.linear(hidden, from_layout(weight, layout, 4), from_layout(bias, layout, 4))
    close(Logistics.of(ours, 4, 3).nats(levels, 256), wanted)
    if layout != "tensor2tensor":
        assert not torch.equal(from_layout(weight, layout, 4), weight)


def test_components_last_of_other_channels() -> None:
    for channels in (1, 2, 4):
        given = torch.arange(float(numbers(3, channels)))
        found = from_layout(given, "components-last", 3, channels)
        parts = given.split([3, 3 * channels, 3 * channels, 3 * channels * (channels - 1) // 2])
        wanted = torch.cat([parts[0], *(part.view(-1, 3).T.flatten() for part in parts[1:])])
        assert torch.equal(found, wanted)


def test_mistakes() -> None:
    with refused("did you mean 'pixelcnn++'?"):
        from_layout(torch.zeros(10), "pixelcnn", 1)
    with refused("12 rows", "1 mixtures of 3 channels", "10 parameters"):
        from_layout(torch.zeros(12), "tensor2tensor", 1)
    with refused("3 channels, not 1"):
        from_layout(torch.zeros(3), "pixelcnn++", 1, channels=1)
