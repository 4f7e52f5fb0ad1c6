"""Embedded channel values against a loop: one table per channel, shifted by one cell, and zero at position 0."""

from __future__ import annotations

import torch
from torch import Tensor

import formers
from formers.core import ExplicitPositions, Range
from formers.inputs import ChannelValues, InputSizes
from helpers import close, refused, sweep

VOCAB, DIM = 5, 4
CHANNELS = sweep("channels", [1, 2, 3, 4])


def module(channels: int, shifted: bool = True) -> torch.nn.Module:
    sizes = InputSizes(dim=DIM, vocab=VOCAB, features=None, scale=DIM**0.5, spread=1.0)
    return ChannelValues(channels=channels, shifted=shifted).build(sizes).double()


def by_loop(part: torch.nn.Module, levels: Tensor, channels: int, shifted: bool, first: int = 0) -> Tensor:
    """What each position is given, row by row of the tables."""
    tables = part.values.view(channels, VOCAB, DIM)
    rows = []
    for row in levels.tolist():
        found = []
        for t, level in enumerate(row, start=first):
            cell = t - 1 if shifted else t
            found.append(torch.zeros(DIM, dtype=torch.float64) if cell < 0 else DIM**0.5 * tables[cell % channels, level])
        rows.append(torch.stack(found))
    return torch.stack(rows)


@CHANNELS
@sweep("shifted", [True, False])
def test_values_are_rows_of_the_table_of_their_channel(channels: int, shifted: bool) -> None:
    part = module(channels, shifted)
    levels = torch.randint(VOCAB, (3, 12))
    close(part(levels), by_loop(part, levels, channels, shifted), 1e-12)
    for first in range(1, 6):
        close(part(levels, Range(first, 12)), by_loop(part, levels, channels, shifted, first), 1e-12)


@CHANNELS
def test_position_0_is_ignored_wherever_it_is(channels: int) -> None:
    part = module(channels)
    one, other = torch.randint(VOCAB, (2, 9)), torch.randint(VOCAB, (2, 9))
    other[:, 1:] = one[:, 1:]
    other[:, 0] = (one[:, 0] + 1) % VOCAB
    assert torch.equal(part(one), part(other))
    places = torch.stack([torch.arange(9), torch.arange(4, 13)])
    found = part(one, ExplicitPositions(places, 13))
    close(found[:1], by_loop(part, one[:1], channels, True), 1e-12)
    close(found[1:], by_loop(part, one[1:], channels, True, 4), 1e-12)


@CHANNELS
def test_a_state_keeps_the_phase_of_the_channels(channels: int) -> None:
    """Chunks that end inside a pixel, with a mask and without."""
    model = formers.create(
        "image-transformer", height=3, width=2, channels=channels, levels=VOCAB, dim=8, heads=2, layers=2, hidden=8, dropout=0.0
    ).double().eval()  # fmt: skip
    levels = torch.randint(VOCAB, (2, 6 * channels))
    with torch.no_grad():
        whole = model(levels).logits
        for step in (1, 2, 4):
            state, found = model.initial_state(2), []
            for piece in levels.split(step, dim=1):
                out = model(piece, state=state)
                state = out.state
                found.append(out.logits)
            close(torch.cat(found, dim=1), whole)
        mask = torch.ones(2, 6 * channels + 2, dtype=torch.bool)
        mask[0, :2] = mask[1, 0] = mask[1, 3] = False  # padding before the row, and in the midst of it
        padded = torch.zeros(mask.shape, dtype=torch.int64)
        padded[mask] = levels.flatten()
        found = model(padded, mask=mask).logits
        close(found[mask].view_as(whole), whole)


def test_mistakes() -> None:
    for part in (module(1), module(3)):
        for wrong in (VOCAB, -1):
            with refused(f"token id {wrong} is out of range", f"vocab={VOCAB}"):
                part(torch.tensor([[0, 1, wrong]]))
        with refused("torch.float32", "levels of cells"):
            part(torch.zeros(1, 3))
        with refused("(1, 3, 3)", "(batch, length)"):
            part(torch.zeros(1, 3, 3, dtype=torch.int64))
