"""From tokens, or from vectors, to the stream.

x_i = sqrt(d) E[token_i]       the scale stands here or at the logits, never at both  E18
x_i = sqrt(d) P_c E_c[token_i]  a table for each cluster c of tokens, where the head has such (heads/adaptive.py)      E56
x_i = sqrt(d) sum_k m_k * E[w_ik]  a position is a fact of words w_i1, w_i2, ...; m_k is learnt, a vector for each place k      E105
x_i = W f_i + b                members with feature input
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError
from formers.core.compiler import concrete
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
        self.vocab, self.fact = spec.vocab, spec.fact
        self.scale = spec.dim**0.5 if spec.embedding_scale == "input" else 1.0

    def look_up(self, tokens: Tensor) -> Tensor:
        """The vectors (batch, length, dim) of tokens, unscaled."""
        raise TypeError(f"{type(self).__name__} embeds nothing: define look_up(tokens).")

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) of tokens (batch, length), or of facts (batch, length, words)."""
        if not isinstance(tokens, Tensor):
            raise FormersError(f"tokens are a {type(tokens).__name__}: give an int64 tensor of shape {self._wanted()}.")
        words = () if self.fact is None else (self.fact,)
        if tokens.dim() != 2 + len(words) or tokens.shape[2:] != words or tokens.dtype not in INTEGERS:
            raise FormersError(f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give int64 of shape {self._wanted()}.")
        tokens = tokens.long()
        try:
            x = self.look_up(tokens)
        except IndexError:
            vocab = self.vocab
            wrong = tokens[(tokens < 0) | (tokens >= vocab)][0].item()
            raise FormersError(f"token id {wrong} is out of range: with vocab={vocab} ids are 0 ... {vocab - 1}.") from None
        return x * self.scale if self.scale != 1.0 else x  # E18

    def _wanted(self) -> str:
        """The shape of tokens in words."""
        return "(batch, length)" if self.fact is None else f"(batch, facts, {self.fact}), the words of each fact, 0 = no word"


class Embedding(Lookup):
    """The table of token vectors, shared with the head where the head is tied."""

    undecayed: ClassVar[tuple[str, ...]] = ("weight",)
    tables = projections = ()

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.weight = nn.Parameter(torch.randn(self.vocab, spec.dim) * (spec.spread / self.scale))

    def look_up(self, tokens: Tensor) -> Tensor:
        assert self.weight is not None
        return F.embedding(tokens, self.weight)


class Facts(Embedding):
    """The sum of the vectors of a fact's words, each times a learned mask for its place (Dehghani et al., 2018, section 3.1)."""

    undecayed = ("weight", "mask")

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        assert spec.fact is not None
        assert self.weight is not None
        with torch.no_grad():
            self.weight *= spec.fact**-0.5  # so that a whole fact is spread as a token is
        self.mask = nn.Parameter(torch.ones(spec.fact, spec.dim))

    def look_up(self, tokens: Tensor) -> Tensor:
        words = super().look_up(tokens).masked_fill((tokens == 0)[..., None], 0.0)  # whatever stands in the first row of the table
        return (words * self.mask).sum(dim=2)  # E105


class AdaptiveEmbedding(Lookup):
    """A table for each cluster of tokens, the narrower the rarer they are, and the projections of their vectors into the stream."""

    undecayed: ClassVar[tuple[str, ...]] = ("tables",)
    weight = None

    def __init__(self, spec: Spec, shapes: Sequence[tuple[int, int]]) -> None:
        super().__init__(spec)
        self.edges = (0, *accumulate(words for words, _ in shapes))
        spread = spec.spread / self.scale * spec.dim**0.5  # so that what is projected is spread as a plain embedding is
        self.tables = nn.ParameterList([torch.randn(words, width) * (spread * width**-0.5) for words, width in shapes])
        self.projections = nn.ParameterList([torch.randn(spec.dim, width) * spec.dim**-0.5 for _, width in shapes])

    def look_up(self, tokens: Tensor) -> Tensor:
        flat = tokens.reshape(-1)
        if concrete(flat) and bool(((flat < 0) | (flat >= self.vocab)).any()):
            raise IndexError
        found = None
        for i, (table, projection) in enumerate(zip(self.tables, self.projections, strict=True)):
            rows = among(flat, self.edges[i], self.edges[i + 1], self.vocab)
            x = F.linear(F.embedding(flat[rows] - self.edges[i], table), projection)  # E56
            found = x.new_zeros(len(flat), x.shape[1]) if found is None else found
            found = found.index_add(0, rows, x)
        assert found is not None
        return found.view(*tokens.shape, found.shape[1])


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


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Inputs in which features of padding are 0: a gradient of the map into the stream would meet what stands there, be it no number.

    Tokens stay as they are, and so does what a wrong mask is given with, which is refused later.
    """
    if mask is None or not x.is_floating_point() or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        return x
    return x.masked_fill(~mask[:, :, None], 0.0)


def embedding(spec: Spec) -> Lookup | Features:
    """The way into the stream that a spec asks for."""
    if spec.vocab is None:
        return Features(spec)
    if spec.fact is not None:
        return Facts(spec)
    shapes = spec.head.tables(spec.vocab, spec.dim)
    return AdaptiveEmbedding(spec, shapes) if shapes else Embedding(spec)
