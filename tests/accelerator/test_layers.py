"""The layers of formers.layers on the test device, and rows that fit only without their padding."""

from __future__ import annotations

import torch
from torch import nn

import formers
from accelerator.device import NAME, use_test_device
from formers.layers import Reversible, SelfAttention
from formers.patterns import Causal
from helpers import close, gradients, refused, sweep
from layers.cases import ALL, CAUSAL, made, rows

MASK = torch.tensor([[0, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 0, 0, 0]], dtype=torch.bool)


@sweep("name", list(ALL))
def test_a_layer_equals_that_of_the_cpu_and_never_waits(name: str) -> None:
    layer, x = made(ALL[name]), rows(7)
    for mask in (None, MASK):
        wanted = layer(x, mask=mask)
        slopes = gradients(wanted, layer.parameters())
        with use_test_device() as counts:
            there, own = layer.to(NAME), None if mask is None else mask.to(NAME)
            weight = torch.linspace(-1.0, 1.0, wanted.numel(), dtype=torch.float64).sin().view(wanted.shape).to(NAME)
            given, used = x.to(NAME), list(there.parameters())
            counts.reset()
            found = there(given, mask=own)
            others = torch.autograd.grad((found * weight).sum(), used, allow_unused=True, materialize_grads=True)
            assert not counts.waited, str(counts)
            close(found.detach().cpu(), wanted.detach())
            for other, slope in zip(others, slopes, strict=True):
                close(other.cpu(), slope)
            layer.to("cpu")


@sweep("name", list(CAUSAL))
@torch.no_grad()
def test_a_layer_token_by_token_equals_the_whole_row_and_never_waits(name: str) -> None:
    layer, x = made(CAUSAL[name]), rows(7)
    wanted = layer(x)
    with use_test_device() as counts:
        there, given = layer.to(NAME), x.to(NAME)
        state, found = there.initial_state(2), []
        for t in range(7):
            counts.reset()
            y, state = there(given[:, t : t + 1], state=state)
            assert t == 0 or not counts.waited, str(counts)
            found.append(y)
        close(torch.cat(found, dim=1).cpu(), wanted)


def test_reversible_functions() -> None:
    layer = Reversible(SelfAttention(16, 2, Causal()), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))).double()
    both = rows(7), rows(7)
    found = []
    with use_test_device():
        for device in ("cpu", NAME):
            layer = layer.to(device)
            inputs = [x.detach().clone().to(device).requires_grad_() for x in both]
            layer.zero_grad()
            sum(y.square().sum() for y in layer(*inputs)).backward()
            found.append([t.grad.cpu() for t in (*inputs, *layer.parameters())])
    for a, b in zip(*found, strict=True):
        close(a, b)


@torch.no_grad()
def test_padding_that_does_not_fit_is_left_out() -> None:
    """Only then are the lengths of rows read, once; otherwise padding is computed."""
    model = formers.create("decoder", vocab=11, dim=16, heads=2, layers=2, length=8, position="learned", dropout=0.0).double().eval()
    tokens, mask = torch.randint(11, (2, 12)), torch.arange(12) < torch.tensor([[8], [3]])
    wanted = model(tokens, mask=mask).logits
    with use_test_device() as counts:
        there, x = model.to(NAME), tokens.to(NAME)
        for real, waits in ((mask, 1), (mask[:, :8], 0)):
            own = real.to(NAME)
            counts.reset()
            found = there(x[:, : real.shape[1]], mask=own).logits
            assert counts.waits == waits, str(counts)
            close(found.cpu()[real], wanted[:, : real.shape[1]][real])
        with refused("12 tokens do not fit"):
            there(x, mask=torch.ones(2, 12, dtype=torch.bool, device=NAME))
