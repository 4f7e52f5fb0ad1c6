"""The adaptive softmax and embedding without a host read: every cluster for all tokens, equal to the path of the host in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import formers
from accelerator.device import NAME, use_test_device
from formers.core.devices import Capabilities, assume_capabilities
from formers.heads import AdaptiveSoftmax, adaptive
from helpers import close, gradients, sweep

LOOSE = {"cutoffs": (4, 12), "division": 2}
HEADS: list[dict[str, Any]] = [
    LOOSE,
    {**LOOSE, "tied": False},
    {"cutoffs": (4, 12)},
    {"cutoffs": ()},
    {**LOOSE, "tied_projections": "none"},
]


def model_of(options: dict[str, Any]) -> formers.Model:
    spec = formers.spec("decoder", vocab=30, dim=16, heads=2, layers=1, length=16, dropout=0.0).replace(head=AdaptiveSoftmax(**options))
    model = formers.build(spec).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


@sweep("options", HEADS)
def test_it_equals_the_path_of_the_host(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "LOGITS", 18 * 5)  # five tokens of the largest cluster at a time
    model, tokens = model_of(options), torch.randint(30, (3, 13))
    targets = tokens[:, 1:].masked_fill(torch.rand(3, 12) < 0.2, -100)
    targets[0, 0] = 29
    found = []
    for off_host in (False, True):
        with assume_capabilities("cpu", Capabilities(host=not off_host)):
            out = model(tokens[:, :-1], targets=targets)
            losses = model.head.token_losses(out.hidden, model.embedding, targets)
            found.append([out.loss.detach(), losses.detach(), *gradients(out.loss, list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        close(one, other)


def test_it_never_waits_also_with_an_empty_cluster() -> None:
    model, tokens = model_of(LOOSE).float(), torch.randint(4, (2, 9))
    with use_test_device() as counts:
        model.to(NAME)
        there = tokens.to(NAME)
        counts.reset()
        loss = model(there[:, :-1], targets=there[:, 1:]).loss
        torch.autograd.backward(loss)
        assert counts.waits == 0, str(counts)
        assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in model.parameters())
