"""Reversible(f, g): the values and gradients of plain autograd and of the member's half steps, and no saved activations."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import formers
from contracts.specimens import TINY, VOCAB
from formers.layers import LSHAttention, Reversible, SelfAttention
from formers.patterns import Causal
from helpers import close, gradients, refused, sweep

DIM = 16


class PreNormed(nn.Module):
    """A function of LayerNorm(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(DIM), inner

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.inner(self.norm(x), mask) if isinstance(self.inner, SelfAttention | LSHAttention) else self.inner(self.norm(x))


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 24), nn.GELU(), nn.Linear(24, DIM), nn.Dropout(dropout))


def pair(dropout: float = 0.0) -> tuple[nn.Module, nn.Module]:
    return PreNormed(SelfAttention(DIM, 2, Causal(), dropout=dropout)), PreNormed(mlp(dropout))


def by_autograd(layer: Reversible, x1: Tensor, x2: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """y1 = x1 + f(x2), y2 = x2 + g(y1), pair by pair, with all activations kept."""
    given: dict[str, Any] = {} if mask is None else {"mask": mask}
    for f, g in zip(layer.functions[::2], layer.functions[1::2], strict=True):
        x1 = x1 + f(x2, **given)
        x2 = x2 + g(x1, **given)
    return x1, x2


def streams(batch: int = 2, length: int = 7) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(batch, length, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2))  # type: ignore[return-value]


@sweep(("pairs", "dropout"), [(1, 0.0), (3, 0.0), (2, 0.4)])
def test_values_and_gradients_are_those_of_autograd(pairs: int, dropout: float) -> None:
    layer = Reversible(*(f for _ in range(pairs) for f in pair(dropout))).double()
    x1, x2 = streams()
    inputs, found = [x1, x2, *layer.parameters()], []
    for run in (layer, lambda a, b: by_autograd(layer, a, b)):
        torch.manual_seed(5)
        y1, y2 = run(x1, x2)
        found.append((y1, y2, gradients(torch.cat([y1, y2]), inputs)))
    (y1, y2, slopes), (right1, right2, wanted) = found
    assert y1.equal(right1)
    assert y2.equal(right2)
    for mine, theirs in zip(slopes, wanted, strict=True):
        close(mine, theirs, 1e-9)


def test_functions_that_share_weights_get_the_sum_of_their_gradients() -> None:
    f, g = pair()
    layer = Reversible(f, g, f, g).double()
    x1, x2 = streams()
    inputs = [x1, x2, *layer.parameters()]
    mine = gradients(torch.cat(layer(x1, x2)), inputs)
    for slope, wanted in zip(mine, gradients(torch.cat(by_autograd(layer, x1, x2)), inputs), strict=True):
        close(slope, wanted, 1e-9)


def test_the_mask_is_passed_to_functions_that_take_one() -> None:
    layer = Reversible(*pair(), PreNormed(SelfAttention(DIM, 2)), mlp()).double()
    x1, x2 = streams(2, 5)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    y1, y2 = layer(x1, x2, mask)
    alone1, alone2 = layer(x1[1:, :3], x2[1:, :3])
    close(y1[1:, :3], alone1)
    close(y2[1:, :3], alone2)


@sweep("name", ["decoder", "reformer"])
def test_a_pair_is_the_reversible_block_of_the_member(name: str) -> None:
    torch.manual_seed(3)
    options = {"decoder": {"norm": "reversible"}, "reformer": {"chunk": 2, "buckets": 4}}[name]
    model = formers.create(name, vocab=VOCAB, **{**TINY, "layers": 1}, **options).double().eval()
    block = model.stack.depth.blocks[0]
    attention = SelfAttention(DIM, 2, Causal()) if name == "decoder" else LSHAttention(DIM, 2, Causal(), chunk=2, buckets=4, length=32)
    attention.double().block.attention.load_state_dict(block.attention.state_dict())

    class FeedForward(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            context = formers.core.Context(formers.core.Range(0, x.shape[1]))
            return block.feedforward(block.residual_feedforward.norm(x), context, None, 0)[0]

    f = PreNormed(attention).double()
    f.norm.load_state_dict(block.residual_attention.norm.state_dict())
    layer = Reversible(f, FeedForward()).eval()
    seen = []
    model.stack.final.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    tokens = torch.randint(VOCAB, (2, 9))
    with torch.no_grad():
        model(tokens)
        x = model.embedding(tokens, formers.core.Range(0, 9))
        x = model.stack.position(x, formers.core.Range(0, 9), 0)
        y1, y2 = layer(x, x)
        assert model.spec.residual.end(y1, y2).equal(seen[0])


class Kept(nn.Module):
    """x W, which notes whether its activations are alive after the pass."""

    alive: list[weakref.ref[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.alive = nn.Linear(DIM, DIM), []

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        self.alive.append(weakref.ref(y))
        return 0.1 * y


def test_no_activation_is_kept_for_the_backward_pass() -> None:
    functions = [Kept() for _ in range(6)]
    layer = Reversible(*functions).double()
    x1, x2 = streams()
    y1, y2 = layer(x1, x2)
    gc.collect()
    assert [ref() for f in functions for ref in f.alive] == [None] * 6
    by_autograd(layer, x1, x2)
    (y1.sum() + y2.sum()).backward()
    assert x1.grad is not None


def test_a_copy_and_a_loaded_layer_compute_the_same() -> None:
    layer, fresh = Reversible(*pair()).double(), Reversible(*pair()).double()
    fresh.load_state_dict(layer.state_dict())
    x1, x2 = streams()
    for other in (copy.deepcopy(layer), fresh):
        assert all(mine.equal(wanted) for mine, wanted in zip(other(x1, x2), layer(x1, x2), strict=True))


@pytest.mark.slow
def test_it_compiles_to_one_graph() -> None:
    torch._dynamo.reset()
    layer = Reversible(*pair()).double()
    x1, x2 = streams()
    inputs, found = [x1, x2, *layer.parameters()], []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        found.append(gradients(torch.cat(run(x1, x2)), inputs))
    for mine, wanted in zip(*found, strict=True):
        close(mine, wanted, 1e-8)


def test_bad_input_is_refused() -> None:
    f, x = nn.Linear(DIM, DIM), torch.zeros(2, 3, DIM)
    with refused("nothing", "Reversible(f, g)"):
        Reversible()
    with refused("Linear"):
        Reversible(f)
    with refused("Linear, int"):
        Reversible(f, 3)
    with refused("function 1", "(2, 3, 5)"):
        Reversible(f, nn.Linear(DIM, 5))(x, x)
    with refused("x1", "(3, 16)"):
        Reversible(f, f)(x[0], x[0])
    with refused("x2 is a int"):
        Reversible(f, f)(x, 3)
    with refused("same"):
        Reversible(f, f)(x, x[:, :2])
    with refused("mask is a int"):
        Reversible(f, f)(x, x, 3)
