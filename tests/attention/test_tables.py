"""Tables cached in evaluation can be used in training."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.patterns import Local
from helpers import sweep


@sweep("pattern", [Local(window=3), Local(window=2) | Local(window=4, include_self=False)])
def test_what_evaluation_cached_serves_training(pattern):
    model = formers.build(formers.spec("decoder", vocab=20, dim=16, heads=2, layers=1).replace(pattern=pattern))
    tokens = torch.randint(20, (2, 23))
    with torch.inference_mode():
        expected = model(tokens, tokens).loss.item()
    loss = model(tokens, tokens).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
