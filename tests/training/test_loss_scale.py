"""The scale of the loss in fp16: the rules and the stored state of torch's GradScaler."""

from __future__ import annotations

import torch

from formers.training.loss_scale import INTERVAL, LossScale


def test_it_follows_grad_scaler() -> None:
    ours, theirs = LossScale(enabled=True), torch.amp.GradScaler("cpu")
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(INTERVAL + 30):
        finite = step not in (3, 4, 20)
        optimizer.zero_grad()
        loss = (weight * (1.0 if finite else float("inf"))).sum()
        theirs.scale(loss).backward()
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite)
        assert ours.scale == theirs.get_scale()
    assert ours.state_dict() == theirs.state_dict()


def test_states_load_in_grad_scaler_and_those_of_grad_scaler_load() -> None:
    ours, theirs = LossScale(enabled=True), torch.amp.GradScaler("cpu")
    written = {**theirs.state_dict(), "scale": 1024.0, "_growth_tracker": 7}
    ours.load_state_dict(written)
    assert (ours.scale, ours.finite_steps) == (1024.0, 7)
    theirs.load_state_dict(ours.state_dict())
    assert theirs.state_dict() == written


def test_scaling_and_unscaling_change_nothing_but_the_exponent() -> None:
    weight = torch.nn.Parameter(torch.randn(5))
    (weight**3).sum().backward()
    wanted, weight.grad = weight.grad, None
    scale = LossScale(enabled=True)
    torch.autograd.backward(scale.scaled((weight**3).sum()))
    assert not weight.grad.equal(wanted)
    scale.unscale([weight])
    assert weight.grad.equal(wanted)


def test_disabled_it_does_nothing() -> None:
    scale, loss = LossScale(enabled=False), torch.tensor(2.0)
    assert scale.scaled(loss) is loss
    scale.update(finite=False)
    scale.load_state_dict({})
    assert (scale.scale, scale.state_dict()) == (1.0, {})
