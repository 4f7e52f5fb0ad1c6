"""The longest chain of operations, on computations that one can count by hand."""

from __future__ import annotations

import torch
from torch import nn

from formers.inspect.measure.sequential_operations import depth_of, depths_from
from helpers import sweep

X = torch.arange(12.0, dtype=torch.float64).view(3, 4)


@sweep(
    ("compute", "wanted"),
    [
        (lambda x: x, 0),
        (lambda x: x + 1, 1),
        (lambda x: ((x + 1) * 2).exp(), 3),
        (lambda x: (x + 1).view(4, 3).transpose(0, 1)[1:], 1),  # views are no operations
        (lambda x: (x + 1) + (x * 2).exp().log(), 4),  # the longer of two branches, and the sum
        (lambda x: torch.full((4, 4), 2.0, dtype=x.dtype).exp().mm(x.T), 1),  # what does not depend on x was there before
        (lambda x: [x + 1, (x + 1) * 2], 2),
        (lambda x: torch.stack([row * 2 for row in x]).sum(), 3),  # rows wait for nobody
        (lambda x: x.to(torch.float32).view(torch.int32) + 1, 2),
        (lambda x: torch.ones(2), 0),
    ],
)
def test_chains_are_counted(compute, wanted):
    assert depth_of(compute, X) == wanted


def test_a_loop_is_as_deep_as_it_is_long():
    def total(x):
        state = torch.zeros(4, dtype=x.dtype)
        for row in x:
            state = state + row
        return state

    assert [depth_of(total, torch.randn(n, 4, dtype=torch.float64)) for n in (1, 5, 9)] == [1, 5, 9]


def test_writes_into_disjoint_slices_do_not_wait_for_each_other():
    def filled(x):
        buffer = torch.zeros_like(x)
        for t in range(len(x)):
            buffer[t] = x[t] * 2
        return buffer

    assert {depth_of(filled, torch.randn(n, 4)) for n in (2, 7)} == {2}


def test_who_reads_a_slice_waits_for_its_writer_alone():
    buffer = torch.zeros(2, 4)
    x = torch.randn(4)
    with depths_from(x) as depths:
        buffer[0] = x
        buffer[1] = x.exp().exp().exp()
        assert depths.of(buffer[0] + 1) == 2
        assert depths.of(buffer[1] + 1) == 5
        assert depths.of(buffer.sum()) == 5
        buffer.fill_(0.0)
        assert depths.of(buffer.sum()) == 0
        buffer[0].add_(x)
        buffer[0].add_(x)
        assert depths.of(buffer) == 2


def test_memory_that_is_used_again_is_not_mistaken_for_what_stood_there():
    x = torch.randn(64)
    with depths_from(x) as depths:
        for _ in range(600):
            (x + 1).exp()
            assert depths.of(torch.ones(64) * 2) == 0


@sweep("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_recurrence_of_torch_is_as_deep_as_its_row_is_long(kind):
    module = kind(3, 3, batch_first=True).double()
    few, some, many = (depth_of(lambda x: module(x)[0], torch.randn(1, n, 3, dtype=torch.float64)) for n in (4, 8, 16))
    assert some - few >= 4
    assert many - some == 2 * (some - few)
