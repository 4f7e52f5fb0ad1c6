"""Word windows against the explicit linear map, and how far a stack of them sees."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

import formers
from formers.core import Context, Range
from formers.recurrent import Window
from formers.recurrent.window import NONLINEAR
from helpers import close, gradients, refused, sweep

DIM, LENGTH = 4, 9
CAUSAL = sweep("causal", [True, False])


def layer(causal: bool, window: int, activation: str = "relu") -> torch.nn.Module:
    spec = formers.spec("word-window", vocab=11, dim=DIM, layers=1, window=window, activation=activation, causal=causal, length=8)
    return formers.build(spec).double().stack.depth.blocks[0].attention


@CAUSAL
@sweep("window", [1, 3, 12])
@sweep("activation", ["relu", "gelu", "tanh"])
def test_it_is_the_linear_map_of_every_window(causal: bool, window: int, activation: str) -> None:
    module = layer(causal, window, activation)
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    found, left = module(x, Context(Range(0, LENGTH)), None, 0)
    ahead = 0 if causal else window
    matrix = module.weight.permute(0, 2, 1).reshape(DIM, -1)  # of [x_{i-k}; ...], one place after the other
    padded = F.pad(x, (0, 0, window, ahead))
    rows = [padded[:, i : i + window + 1 + ahead].reshape(2, -1) @ matrix.T + module.bias for i in range(LENGTH)]
    wanted = NONLINEAR[activation](torch.stack(rows, dim=1))
    assert left is None
    close(found, wanted)
    inputs = [x, module.weight, module.bias]
    for slope, other in zip(gradients(found, inputs), gradients(wanted, inputs), strict=True):
        close(slope, other)


@CAUSAL
@sweep(("layers", "window"), [(1, 2), (2, 1), (2, 3)])
def test_a_stack_sees_layers_times_window_tokens_and_no_further(causal: bool, layers: int, window: int) -> None:
    spec = formers.spec("word-window", vocab=11, dim=DIM, layers=layers, window=window, causal=causal, activation="tanh", length=20)
    model = formers.build(spec).double().eval()
    n, i = 20, 10

    def seen() -> Tensor:
        x = torch.randn(1, n, DIM, dtype=torch.float64, requires_grad=True)
        hidden, _ = model.stack(x, Context(Range(0, n)))
        return torch.autograd.grad(hidden[0, i].sum(), x)[0][0].abs().sum(dim=1) > 0

    reach = layers * window
    inside = [i - reach <= j <= (i if causal else i + reach) for j in range(n)]
    assert seen().tolist() == inside


def test_a_state_of_another_window_is_refused() -> None:
    with torch.no_grad():
        small, large = (formers.create("word-window", vocab=11, dim=DIM, layers=1, window=w, length=8) for w in (1, 2))
        state = small(torch.randint(11, (2, 4))).state
        with refused("another model made"):
            large(torch.randint(11, (2, 1)), state=state)


def test_what_a_window_cannot_be_is_refused() -> None:
    with refused("window=0", "greater than 0"):
        Window(window=0)
    with refused("activation='cosine'"):
        Window(window=1, activation="cosine")
    with refused("pool=first", "classes"):
        formers.spec("word-window", vocab=11, pool="first")
