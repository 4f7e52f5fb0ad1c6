"""Pixel inputs: a linear map of the channels and ReLU, shifted by one pixel, and zero at position 0."""

from __future__ import annotations

import torch

import formers
from formers.core import ExplicitPositions, Range
from formers.inputs import InputSizes, Pixels
from helpers import close, refused, sweep

DIM = 4


def module(channels: int, **options: object) -> torch.nn.Module:
    return Pixels(**options).build(InputSizes(dim=DIM, vocab=None, features=channels, scale=2.0, spread=1.0)).double()


@sweep("channels", [1, 2, 3, 4])
@sweep("shifted", [True, False])
@sweep("activation", ["relu", "none"])
def test_a_pixel_is_mapped_by_itself(channels: int, shifted: bool, activation: str) -> None:
    part = module(channels, shifted=shifted, activation=activation)
    pixels = torch.rand(2, 7, channels, dtype=torch.float64) * 2 - 1
    weight, bias = part.into.weight, part.into.bias
    for first in (0, 1, 5):
        wanted = torch.zeros(2, 7, DIM, dtype=torch.float64)
        for n in range(2):
            for t in range(7):
                for d in range(DIM):
                    value = bias[d] + sum(weight[d, c] * pixels[n, t, c] for c in range(channels))
                    value = max(value, torch.zeros_like(value)) if activation == "relu" else value
                    wanted[n, t, d] = 0.0 if shifted and first + t == 0 else value
        close(part(pixels, Range(first, 7)), wanted, 1e-12)
    assert torch.equal(part(pixels), part(pixels, Range(0, 7)))


def test_position_0_is_ignored_wherever_it_is() -> None:
    part = module(3)
    one = torch.rand(2, 6, 3, dtype=torch.float64)
    other = torch.cat([torch.full_like(one[:, :1], 0.5), one[:, 1:]], dim=1)
    assert torch.equal(part(one), part(other))
    places = torch.tensor([[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]])
    found = part(one, ExplicitPositions(places, 9))
    assert torch.equal(found[0], part(one)[0])
    assert torch.equal(found[1], part(one, Range(3, 6))[1])


def test_chunks_equal_one_pass() -> None:
    model = formers.create(
        "image-transformer", height=3, width=3, channels=3, levels=9, head="mixture", mixtures=2, dim=8, heads=2, layers=2, dropout=0.0,
        layout="2d", query_block=(2, 2), memory_block=(1, 1),
    ).double().eval()  # fmt: skip
    pixels = torch.rand(2, 9, 3, dtype=torch.float64)
    with torch.no_grad():
        whole, state, found = model(pixels).logits, model.initial_state(2), []
        for piece in pixels.split(2, dim=1):
            out = model(piece, state=state)
            state = out.state
            found.append(out.logits)
    close(torch.cat(found, dim=1), whole)


def test_mistakes() -> None:
    with refused("torch.int64", "floats of shape (batch, length, 3)"):
        module(3)(torch.zeros(1, 2, 3, dtype=torch.int64))
    with refused("(1, 2, 4)"):
        module(3)(torch.zeros(1, 2, 4))
