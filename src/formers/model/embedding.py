"""From tokens, or from vectors, to the stream.

x_i = sqrt(d) E[token_i]       the scale stands here or at the logits, never at both  E18
x_i = sqrt(d) P_c E_c[token_i]  a table for each cluster c of tokens, where the head has such (heads/adaptive.py)      E56
x_i = W f_i + b                members with feature input
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn import functional as F

from formers.core import FormersError
from formers.heads.adaptive import among
from formers.model.spec import Spec

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Lookup(nn.Module):
    """What embeds tokens, scaled as the spec says."""

    weight: Tensor | None
    tables: nn.ParameterList | tuple[Tensor, ...]
    projections: nn.ParameterList | tuple[Tensor, ...]

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        assert spec.vocab is not None
        self.vocab = spec.vocab
        self.scale = spec.dim**0.5 if spec.embedding_scale == "input" else 1.0

    def look_up(self, tokens: Tensor) -> Tensor:
        """The vectors (batch, length, dim) of tokens, unscaled."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) of tokens (batch, length)."""
        if not isinstance(tokens, Tensor):
            raise FormersError(f"tokens are a {type(tokens).__name__}: give an int64 tensor of shape (batch, length).")
        if tokens.dim() != 2 or tokens.dtype not in INTEGERS:
            raise FormersError(f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give int64 of shape (batch, length).")
        tokens = tokens.long()
        try:
            x = self.look_up(tokens)
        except IndexError:
            vocab = self.vocab
            wrong = tokens[(tokens < 0) | (tokens >= vocab)][0].item()
            raise FormersError(f"token id {wrong} is out of range: with vocab={vocab} ids are 0 ... {vocab - 1}.") from None
        return x * self.scale if self.scale != 1.0 else x  # E18


class Embedding(Lookup):
    """The table of token vectors, shared with the head where the head is tied."""

    tables = projections = ()

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.weight = nn.Parameter(torch.randn(self.vocab, spec.dim) * (spec.spread / self.scale))

    def look_up(self, tokens: Tensor) -> Tensor:
        assert self.weight is not None
        return F.embedding(tokens, self.weight)


class AdaptiveEmbedding(Lookup):
    """A table for each cluster of tokens, the narrower the rarer they are, and the projections of their vectors into the stream."""

    weight = None

    def __init__(self, spec: Spec, shapes: Sequence[tuple[int, int]]) -> None:
        super().__init__(spec)
        self.edges = (0, *accumulate(words for words, _ in shapes))
        spread = spec.spread / self.scale * spec.dim**0.5  # so that what is projected is spread as a plain embedding is
        self.tables = nn.ParameterList([torch.randn(words, width) * (spread * width**-0.5) for words, width in shapes])
        self.projections = nn.ParameterList([torch.randn(spec.dim, width) * spec.dim**-0.5 for _, width in shapes])

    def look_up(self, tokens: Tensor) -> Tensor:
        flat = tokens.reshape(-1)
        if not torch.compiler.is_compiling() and not isinstance(flat, FakeTensor) and bool(((flat < 0) | (flat >= self.vocab)).any()):
            raise IndexError
        found = None
        for i, (table, projection) in enumerate(zip(self.tables, self.projections, strict=True)):
            rows = among(flat, self.edges[i], self.edges[i + 1], self.vocab)
            x = F.linear(F.embedding(flat[rows] - self.edges[i], table), projection)  # E56
            found = x.new_zeros(len(flat), x.shape[1]) if found is None else found
            found = found.index_add(0, rows, x)
        assert found is not None
        return found.view(*tokens.shape, -1)


class Features(nn.Module):
    """A linear map of float inputs into the stream."""

    weight = None
    tables: tuple[Tensor, ...] = ()
    projections: tuple[Tensor, ...] = ()

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


def embedding(spec: Spec) -> Lookup | Features:
    """The way into the stream that a spec asks for."""
    if spec.vocab is None:
        return Features(spec)
    shapes = spec.head.tables(spec.vocab, spec.dim)
    return AdaptiveEmbedding(spec, shapes) if shapes else Embedding(spec)
