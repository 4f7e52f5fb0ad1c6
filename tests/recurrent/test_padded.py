"""Padded recurrent rows without packing, as on devices other than the host: values, states and gradients are those of packed rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import formers
from accelerator.device import NAME, use_test_device
from formers.core.devices import Capabilities, assume_capabilities
from formers.recurrent.cells import STATES, RecurrentWeights
from formers.recurrent.layer import run
from formers.recurrent.padded import reversed_rows
from helpers import close, gradients, sweep

LENGTH, DIM = 7, 6
VALID = torch.arange(LENGTH) < torch.tensor([[LENGTH], [3], [0], [1]])
CELLS = sweep("cell", list(STATES))
WAYS = sweep("directions", [1, 2])


@CELLS
@WAYS
@sweep("scale", [1.0, 30.0])
def test_values_states_and_gradients_are_those_of_packed_rows(cell: Any, directions: int, scale: float) -> None:
    weights = RecurrentWeights(cell, DIM, DIM // directions, directions).double()
    x = (torch.randn(4, LENGTH, DIM, dtype=torch.float64) * scale).requires_grad_()
    before = tuple(torch.randn(4, DIM, dtype=torch.float64, requires_grad=True) for _ in range(STATES[cell]))
    found = []
    for host in (True, False):
        with assume_capabilities("cpu", Capabilities(host=host)):
            y, after = run(weights, x, before, VALID)
        whole = torch.cat([y[VALID].flatten(), *(s.flatten() for s in after)])
        found.append((whole, gradients(whole, [x, *before, *weights.parameters()])))
    (values, slopes), (wanted, others) = found[1], found[0]
    close(values, wanted)
    for slope, other in zip(slopes, others, strict=True):
        close(slope, other)


@sweep("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_padding_keeps_the_cell_state_to_the_bit(dtype: torch.dtype) -> None:
    weights = RecurrentWeights("lstm", DIM, DIM).to(dtype)
    with use_test_device(), torch.no_grad():
        weights = weights.to(NAME)
        x, before = torch.randn(4, LENGTH, DIM, dtype=dtype).to(NAME), tuple(torch.randn(4, DIM, dtype=dtype).to(NAME) for _ in range(2))
        short = run(weights, x[:, :3], before, VALID[:, :3].to(NAME))[1]
        long = run(weights, torch.cat([x[:, :3], 50 * x], dim=1), before, torch.cat([VALID[:, :3], VALID & False], dim=1).to(NAME))[1]
        for a, b in zip(short, long, strict=True):
            assert torch.equal(a.cpu(), b.cpu())


def test_rows_are_reversed_up_to_their_last_real_token() -> None:
    x = torch.arange(12.0).view(3, 4, 1)
    found = reversed_rows(x, torch.tensor([4, 2, 0]))[..., 0].tolist()
    assert found == [[3.0, 2.0, 1.0, 0.0], [5.0, 4.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]


def test_a_row_with_episodes_waits_once_a_layer() -> None:
    """Every episode becomes a row, which needs where they begin."""
    model = formers.create("rnn", vocab=11, dim=8, layers=2, length=9, dropout=0.0, cell="gru", norm="pre").double()
    tokens, ids = torch.randint(11, (3, 9)), torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 3]) + torch.tensor([[0], [4], [9]])

    def trained(device: str) -> tuple[Tensor, dict[str, Tensor]]:
        model.to(device).zero_grad()
        loss = model(tokens.to(device), targets=tokens.to(device), episodes=ids.to(device)).loss
        loss.backward()
        return loss.detach(), {name: p.grad for name, p in model.named_parameters()}

    wanted, slopes = trained("cpu")
    with use_test_device() as counts:
        found, others = trained(NAME)
        assert counts.waits == 2, str(counts)
        close(found.cpu(), wanted)
        for name, slope in slopes.items():
            close(others[name].cpu(), slope)
