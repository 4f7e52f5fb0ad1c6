"""Gated computes the gate of GTrXL's residual connection."""

from __future__ import annotations

import torch
from torch.autograd import gradcheck

from formers.layers import Gated
from formers.residual import Gated as GatedPart
from formers.residual.gated import GATES
from helpers import refused, sweep


@sweep("kind", GATES)
def test_a_gate_is_that_of_the_members_residual(kind: str) -> None:
    """The residual computes g(x, relu(y)), without dropout."""
    residual = GatedPart(gate=kind).build(6, 0.0).double()
    layer = Gated(6, kind).double()
    layer.residual.load_state_dict({name: w for name, w in residual.state_dict().items() if not name.startswith("norm.")})
    x, y = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    assert layer(x, y.relu()).equal(residual.merge(x, y))


@sweep("kind", GATES)
def test_gradients_are_the_numeric_ones(kind: str) -> None:
    layer = Gated(4, kind).double()
    x, y = (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weights = dict(layer.named_parameters())

    def run(x: torch.Tensor, y: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(weights, values, strict=True)), (x, y))

    assert gradcheck(run, (x, y, *(w.detach().requires_grad_() for w in weights.values())))


def test_a_large_bias_starts_close_to_x_and_any_leading_shape_is_taken() -> None:
    x, y = torch.randn(2, 7, 8)
    assert Gated(8, bias=10.0)(x, y).sub(x).abs().max() < 1e-2
    assert Gated(8, bias=-10.0)(x, y).sub(x).abs().max() > 0.1
    assert Gated(8)(x[0], y[0]).shape == (8,)


def test_bad_input_is_refused() -> None:
    with refused("dim=0"):
        Gated(0)
    with refused("kind='lstm'", "gru"):
        Gated(4, "lstm")
    with refused("bias=1.0", "kind='sum'"):
        Gated(4, "sum", 1.0)
    with refused("(2, 5)", "(..., 4)"):
        Gated(4)(torch.zeros(2, 4), torch.zeros(2, 5))
    with refused("(2, 4)", "(3, 4)", "same shape"):
        Gated(4)(torch.zeros(2, 4), torch.zeros(3, 4))
