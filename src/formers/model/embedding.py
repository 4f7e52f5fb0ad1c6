"""From tokens, or from vectors, to the stream.

x_i = sqrt(d) E[token_i]       the scale stands here or at the logits, never at both  E18
x_i = W f_i + b                members with feature input
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError
from formers.model.spec import Spec

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Embedding(nn.Module):
    """The table of token vectors, shared with the head where the head is tied."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        assert spec.vocab is not None
        self.scale = spec.dim**0.5 if spec.embedding_scale == "input" else 1.0
        self.weight = nn.Parameter(torch.randn(spec.vocab, spec.dim) * (spec.spread / self.scale))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) of tokens (batch, length)."""
        if not isinstance(tokens, Tensor):
            raise FormersError(f"tokens are a {type(tokens).__name__}: give an int64 tensor of shape (batch, length).")
        if tokens.dim() != 2 or tokens.dtype not in INTEGERS:
            raise FormersError(f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give int64 of shape (batch, length).")
        tokens = tokens.long()
        try:
            x = F.embedding(tokens, self.weight)
        except IndexError:
            vocab = self.weight.shape[0]
            wrong = tokens[(tokens < 0) | (tokens >= vocab)][0].item()
            raise FormersError(f"token id {wrong} is out of range: with vocab={vocab} ids are 0 ... {vocab - 1}.") from None
        return x * self.scale if self.scale != 1.0 else x  # E18


class Features(nn.Module):
    """A linear map of float inputs into the stream."""

    weight = None

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        assert spec.features is not None
        self.features = spec.features
        self.into = nn.Linear(spec.features, spec.dim)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, dim) of x (batch, length, features)."""
        if x.dim() != 3 or x.shape[2] != self.features or not x.is_floating_point():
            raise FormersError(f"features are {x.dtype} of shape {tuple(x.shape)}: give floats of shape (batch, length, {self.features}).")
        return self.into(x.to(self.into.weight.dtype))


def embedding(spec: Spec) -> Embedding | Features:
    """The way into the stream that a spec asks for."""
    return Features(spec) if spec.vocab is None else Embedding(spec)
