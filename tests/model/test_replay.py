"""A recomputed pass draws the same random numbers: numeric derivatives, with dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import formers
from formers import Model

SIZES = dict(vocab=7, dim=8, heads=2, layers=2, hidden=8, length=12, dropout=0.3, attention_dropout=0.2, chunk=4, rounds=2, buckets=4)


def derivatives(model: Model, given: dict[str, Any], checkpointing: bool) -> tuple[float, float]:
    """The derivative of the loss along a random direction of all weights, by differences and by autograd."""
    model.checkpointing(checkpointing)
    parameters = list(model.parameters())
    torch.manual_seed(11)
    direction = [torch.randn_like(p) for p in parameters]

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return model(**given).loss

    slopes = torch.autograd.grad(loss(), parameters)
    by_autograd = sum(float((d * s).sum()) for d, s in zip(direction, slopes, strict=True))
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=sign * 1e-6)
        values.append(loss().item())  # with gradients on: without them a state is made, which fixes the hashes
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=-sign * 1e-6)
    return (values[0] - values[1]) / 2e-6, by_autograd


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("norm", ["reversible", "pre"])
def test_hashing_with_dropout_has_right_gradients_in_any_training_loop(norm: str, checkpointing: bool) -> None:
    """Without `update` the hashes are drawn from torch's generator, which must go on the same way when the pass is computed again.

    The derivatives were -0.563 and -0.506 on such a model.
    """
    torch.manual_seed(0)
    model = formers.create("reformer", **SIZES, norm=norm).double()
    x = torch.randint(7, (2, 13))
    given = dict(tokens=x[:, :-1], targets=x[:, 1:])
    for more in ({}, {"update": 3}, {"state": model.initial_state(2)}):
        numeric, found = derivatives(model, {**given, **more}, checkpointing)
        assert found == pytest.approx(numeric, rel=1e-5, abs=1e-7), (norm, checkpointing, list(more))
    with torch.no_grad():
        state = model.eval()(x[:, :6]).state
    model.train()
    numeric, found = derivatives(model, dict(tokens=x[:, 6:-1], targets=x[:, 7:], state=state), checkpointing)
    assert found == pytest.approx(numeric, rel=1e-5, abs=1e-7), (norm, checkpointing, "behind a state")
