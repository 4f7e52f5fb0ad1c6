"""Which of our parameters is which of a peer's: to copy the weights over and to compare the gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from formers import Model
from helpers import close


class Pair(NamedTuple):
    """Parameters of ours that, one below the other, are a peer's; transposed where it multiplies from the other side."""

    ours: list[nn.Parameter]
    theirs: nn.Parameter
    transposed: bool = False

    def join(self, tensors: list[Tensor]) -> Tensor:
        joined = torch.cat(tensors)
        return joined.T if self.transposed else joined


def linear(ours: nn.Module, theirs: nn.Module, transposed: bool = False) -> list[Pair]:
    """Weight and bias of a linear map or of a norm."""
    return [Pair([ours.weight], theirs.weight, transposed), Pair([ours.bias], theirs.bias)]


def attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> list[Pair]:
    """Self-attention (one matrix for q, k and v) or cross-attention (one for q, one for k and v)."""
    into = [ours.qkv] if hasattr(ours, "qkv") else [ours.q, ours.kv]
    return [
        Pair([m.weight for m in into], theirs.in_proj_weight),
        Pair([m.bias for m in into], theirs.in_proj_bias),
        *linear(ours.out, theirs.out_proj),
    ]


def layer(ours: nn.Module, theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> list[Pair]:
    """One block and one layer of torch.nn."""
    joins = [ours.residual_attention, ours.residual_feedforward]
    pairs = attention(ours.attention, theirs.self_attn)
    if hasattr(ours, "cross"):
        joins.insert(1, ours.residual_cross)
        pairs += attention(ours.cross, theirs.multihead_attn)
    for number, join in enumerate(joins, 1):
        pairs += linear(join.norm, getattr(theirs, f"norm{number}"))
    return [*pairs, *linear(ours.feedforward.into, theirs.linear1), *linear(ours.feedforward.out, theirs.linear2)]


@torch.no_grad()
def shake(model: Model) -> Model:
    """The model with no parameter left at 0 or 1, so that a forgotten bias or norm shows."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@torch.no_grad()
def copy(pairs: list[Pair], peer: nn.Module) -> None:
    """Gives a peer our weights, all of them."""
    given = {id(pair.theirs) for pair in pairs}
    assert given == {id(p) for p in peer.parameters()}, "some parameters of the peer are not paired"
    for pair in pairs:
        pair.theirs.copy_(pair.join(list(pair.ours)))


def same_gradients(pairs: list[Pair]) -> None:
    """Fails unless each parameter has the gradient that its peer has."""
    for pair in pairs:
        close(pair.join([p.grad for p in pair.ours]), pair.theirs.grad)


def sinusoid(length: int, dim: int) -> Tensor:
    """PE by loops, from the paper: sin(i / 10000^(2j/d)) at 2j, cos of the same at 2j+1."""
    rows = []
    for i in range(length):
        angles = [i / 10000 ** (2 * j / dim) for j in range(dim // 2)]
        rows.append([f(angle) for angle in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64)
