"""A convolution memory contains the last vectors of each row."""

from __future__ import annotations

import torch

from formers.core import ConvMemory, State
from formers.core.serialise import pack, unpack
from helpers import refused


def test_a_tail_is_the_end_of_all_that_was_read_however_rows_are_padded() -> None:
    torch.manual_seed(0)
    rows, read = [torch.zeros(3, 5) for _ in range(4)], ConvMemory.blank(torch.zeros(4, 1, 5), 3)
    for counts in ((1, 0, 2, 4), (3, 1, 0, 4), (2, 2, 2, 2)):
        x = torch.randn(4, 4, 5, requires_grad=True)
        valid = torch.arange(4) < torch.tensor(counts)[:, None]
        both = read.prepend_to(x)
        read = read.advanced(both, None if counts == (4, 4, 4, 4) else valid)
        rows = [torch.cat([row, x[i, :n].detach()]) for i, (row, n) in enumerate(zip(rows, counts, strict=True))]
        assert not read.states.requires_grad
        for i, row in enumerate(rows):
            assert read.states[i].equal(row[-3:])
    full = read.prepend_to(torch.ones(4, 2, 5))
    assert read.advanced(full, None).states.equal(torch.cat([read.states[:, 2:], torch.ones(4, 2, 5)], dim=1))


def test_rows_of_a_tail_are_reset_chosen_and_stored() -> None:
    tail = ConvMemory(torch.arange(12.0).view(3, 2, 2))
    state = State(3, ((tail, None),), 2, 2)
    again = state.reset(torch.tensor([False, True, False])).steps[0][0]
    assert again.states[1].eq(0).all()
    assert again.states[2].equal(tail.states[2])
    chosen = state.select(torch.tensor([2, 2])).steps[0][0]
    assert chosen.states.equal(tail.states[[2, 2]])
    tensors: dict[str, torch.Tensor] = {}
    assert unpack(pack(state, tensors), tensors).steps[0][0].states.equal(tail.states)


def test_a_tail_of_another_width_is_refused() -> None:
    with refused("another width"):
        ConvMemory.blank(torch.zeros(1, 1, 5), 3).prepend_to(torch.zeros(1, 2, 4))
