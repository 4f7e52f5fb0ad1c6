"""Half precision on the test device: halting, softmax statistics, norms and losses are computed in float32, and no score overflows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import formers
from accelerator.device import NAME, DeviceTensor, use_test_device
from accelerator.specimen_runs import LENGTH, PADDED, made, moved, train_step
from contracts.specimens import FIRST, SPECIMENS, Specimen
from formers.depth.adaptive import AdaptiveBlocks
from formers.layers import ACT
from formers.residual.gated import GATES
from helpers import close, sweep

HALVES = sweep("half", [torch.bfloat16, torch.float16])
STATISTICS = {
    "aten::_softmax", "aten::_softmax_backward_data", "aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::logsumexp",
    "aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::exp", "aten::log", "aten::rsqrt", "aten::var_mean",
    "aten::nll_loss_forward", "aten::binary_cross_entropy_with_logits", "aten::cumsum", "aten::linalg_vector_norm",
}  # fmt: skip


class Rounded(TorchDispatchMode):
    """Collects the statistics that are computed from half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in STATISTICS:
            given = [x for x in tree_flatten((args, kwargs or {}))[0] if isinstance(x, DeviceTensor)]
            if any(x.dtype in (torch.bfloat16, torch.float16) for x in given):
                self.found.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def check_statistics(specimen: Specimen, half: torch.dtype) -> None:
    """Fails if a step of training computes a statistic in half precision."""
    read = made(specimen, torch.float32, padded=True)
    x, targets = read.input(LENGTH), read.targets(LENGTH)
    with use_test_device(), torch.autocast(NAME, dtype=half), Rounded() as rounded:
        train_step(moved(read), x.to(NAME), targets.to(NAME), PADDED.to(NAME))
    assert not rounded.found


@pytest.mark.slow
@sweep("specimen", SPECIMENS)
def test_statistics_of_both_passes_are_float32(specimen: Specimen) -> None:
    check_statistics(specimen, torch.bfloat16)


def test_a_statistic_in_half_precision_is_detected() -> None:
    with use_test_device(), Rounded() as rounded:
        torch.ones(2, 2, dtype=torch.bfloat16, device=NAME).softmax(dim=1)
    assert rounded.found == {"aten::_softmax"}


@HALVES
def test_halting_probabilities_of_a_depth_are_those_of_float32(half: torch.dtype) -> None:
    model = formers.create("universal-transformer", vocab=11, dim=16, heads=2, steps=3, act="graves")
    depth = model.stack.depth
    assert isinstance(depth, AdaptiveBlocks)
    nn.init.normal_(depth.unit.weight)
    state = torch.randn(2, 5, 16)
    wanted = depth.halting(state)
    with use_test_device(), torch.autocast(NAME, dtype=half):
        found = depth.to(NAME).halting(state.to(NAME))
    close(found.cpu(), wanted, 1e-6)


@HALVES
@sweep("cell", ["tanh", "gru", "lstm"])
def test_a_halting_cell_is_that_of_float32(cell: str, half: torch.dtype) -> None:
    """A loop over tokens costs as much in either precision, and a state that is rounded at every token drifts."""
    layer, x = ACT(cell, 8, steps=4, bias=-1.0), torch.randn(2, 12, 8)
    nn.init.normal_(layer.layer.unit.weight)
    losses: dict[str, Tensor] = {}
    wanted = layer(x, losses=losses)
    with use_test_device(), torch.autocast(NAME, dtype=half):
        there: dict[str, Tensor] = {}
        found = layer.to(NAME)(x.to(NAME), losses=there)
        close(found.cpu(), wanted, 1e-5)
        close(there["ponder"].cpu(), losses["ponder"], 1e-6)


@HALVES
@sweep("kind", list(GATES))
def test_a_gate_multiplies_the_stream_by_a_factor_in_float32(kind: Any, half: torch.dtype) -> None:
    """Its argument is a number of either type here, so that only the factor could be rounded."""
    gate = formers.layers.Gated(8, kind, None if kind in ("input", "sum") else 2.0)
    with torch.no_grad():
        for name, weight in gate.named_parameters():
            if weight.dim() == 2:
                weight.copy_(torch.eye(8) if kind == "input" and name.endswith("w") else torch.zeros_like(weight))
    x = torch.tensor([1.0, 1.5, 2.0, 2.5])[:, None].expand(4, 8).contiguous()
    wanted = gate(x, torch.zeros_like(x))
    with use_test_device(), torch.autocast(NAME, dtype=half):
        found = gate.to(NAME)(x.to(NAME), torch.zeros(4, 8).to(NAME))
    close(found.cpu(), wanted, 1e-6)


@sweep("specimen", [s for s in FIRST if s.member not in ("rnn", "act-rnn", "seq2seq", "word-window")])
def test_scores_beyond_the_range_of_float16_are_finite(specimen: Specimen) -> None:
    read = made(specimen, torch.float32, padded=True)
    largest = 0.0
    with torch.no_grad():
        for name, weight in read.model.named_parameters():
            if name.endswith(("qkv.weight", "attention.q.weight", "attention.qv.weight", "kv.weight")):
                weight.mul_(300.0)
                largest = max(largest, weight.abs().max().item())
    assert largest > 90.0, "no weights of queries and keys were found"
    x, targets = read.input(LENGTH), read.targets(LENGTH)
    wanted = train_step(read, x, targets, PADDED).loss
    with use_test_device(), torch.autocast(NAME, dtype=torch.float16):
        found = train_step(moved(read), x.to(NAME), targets.to(NAME), PADDED.to(NAME))
    assert found.loss.isfinite()
    assert wanted.isfinite()
    assert all(slope.isfinite().all() for slope in found.gradients.values())
