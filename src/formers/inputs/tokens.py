"""Token embeddings.

x_i = sqrt(d) E[token_i]       the scale is applied here or at the logits, never at both  E18
x_i = sqrt(d) P_c E_c[token_i]  a table for each cluster c of tokens, if the head has clusters (heads/adaptive.py)      E56
x_i = sqrt(d) sum_k m_k * E[w_ik]  a position is a fact of words w_i1, w_i2, ...; m_k is a learned vector per word index k      E105
"""

from __future__ import annotations

from itertools import accumulate
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError, Positions
from formers.core.debug import checks_values
from formers.core.devices import on_host, readable
from formers.heads.adaptive import indices_between
from formers.inputs.base import INTEGERS, Input, InputModule, InputSizes


class Tokens(Input):
    """Token ids (batch, length), embedded by one table, or by the tables of the head's clusters."""

    def build(self, sizes: InputSizes) -> InputModule:
        return AdaptiveEmbedding(sizes) if sizes.tables else Embedding(sizes)


class Facts(Input):
    """Facts (batch, facts, words) of token ids, 0 = no word: a position is a sentence (Dehghani et al., 2018, section 3.1)."""

    words: PositiveInt

    def shape(self, features: int | None) -> tuple[int, ...]:
        return (self.words,)

    def build(self, sizes: InputSizes) -> InputModule:
        return FactEmbedding(sizes, self.words)


class Lookup(InputModule):
    """Embeds tokens, with the scale of the spec."""

    def __init__(self, sizes: InputSizes) -> None:
        super().__init__()
        assert sizes.vocab is not None
        self.vocab, self.scale = sizes.vocab, sizes.scale

    def embed(self, tokens: Tensor) -> Tensor:
        """The vectors (batch, length, dim) of tokens, unscaled."""
        raise TypeError(f"{type(self).__name__} embeds nothing: define embed(tokens).")

    def check(self, x: Tensor) -> Tensor:
        return integers(x, (), "(batch, length)")

    def check_ids(self, x: Tensor) -> None:
        refuse_out_of_range(x, self.vocab)

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        x = self.check(x)
        if not on_host(x) and checks_values(x):  # on the host the lookup raises by itself
            self.check_ids(x)
        try:
            vectors = self.embed(x)
        except IndexError:
            raise out_of_range(x, self.vocab) from None
        return vectors * self.scale if self.scale != 1.0 else vectors  # E18


class Embedding(Lookup):
    """A table of token vectors, shared with a tied head."""

    undecayed: ClassVar[tuple[str, ...]] = ("weight",)
    weight: Tensor
    tables = projections = ()

    def __init__(self, sizes: InputSizes) -> None:
        super().__init__(sizes)
        self.weight = nn.Parameter(torch.randn(self.vocab, sizes.dim) * (sizes.spread / self.scale))

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class FactEmbedding(Embedding):
    """The sum of the vectors of a fact's words, each multiplied by a learned vector of its index."""

    undecayed = ("weight", "mask")

    def __init__(self, sizes: InputSizes, words: int) -> None:
        super().__init__(sizes)
        self.words = words
        with torch.no_grad():
            self.weight *= words**-0.5  # so that a fact has the standard deviation of a token
        self.mask = nn.Parameter(torch.ones(words, sizes.dim))

    def check(self, x: Tensor) -> Tensor:
        return integers(x, (self.words,), f"(batch, facts, {self.words}), the words of each fact, 0 = no word")

    def embed(self, tokens: Tensor) -> Tensor:
        words = super().embed(tokens).masked_fill((tokens == 0)[..., None], 0.0)  # 0 is no word, so its row is not used
        return (words * self.mask).sum(dim=2)  # E105


class AdaptiveEmbedding(Lookup):
    """One table per cluster of tokens, narrower for rarer tokens, and the projections of their vectors to the model width."""

    undecayed: ClassVar[tuple[str, ...]] = ("tables",)
    weight = None
    tables: nn.ParameterList
    projections: nn.ParameterList

    def __init__(self, sizes: InputSizes) -> None:
        super().__init__(sizes)
        self.edges = (0, *accumulate(words for words, _ in sizes.tables))
        spread = sizes.spread / self.scale * sizes.dim**0.5  # so that projected vectors have the standard deviation of a plain embedding
        self.tables = nn.ParameterList([torch.randn(words, width) * (spread * width**-0.5) for words, width in sizes.tables])
        self.projections = nn.ParameterList([torch.randn(sizes.dim, width) * sizes.dim**-0.5 for _, width in sizes.tables])

    def embed(self, tokens: Tensor) -> Tensor:
        flat = tokens.reshape(-1)
        if not on_host(flat):
            return self.embed_by_mask(flat).view(*tokens.shape, -1)
        if readable(flat):
            self.check_ids(flat)
        found = None
        for i, (table, projection) in enumerate(zip(self.tables, self.projections, strict=True)):
            rows = indices_between(flat, self.edges[i], self.edges[i + 1], self.vocab)
            x = F.linear(F.embedding(flat[rows] - self.edges[i], table), projection)  # E56
            found = x.new_zeros(len(flat), x.shape[1]) if found is None else found
            found = found.index_add(0, rows, x)
        assert found is not None
        return found.view(*tokens.shape, found.shape[1])

    def embed_by_mask(self, flat: Tensor) -> Tensor:
        """The vectors (n, dim) of tokens (n,), unscaled: every table reads all tokens; finding its own would wait for the device."""
        found = None
        for start, stop, table, projection in zip(self.edges, self.edges[1:], self.tables, self.projections, strict=False):
            x = F.linear(F.embedding((flat - start).clamp(0, stop - start - 1), table), projection)
            found = x if found is None else torch.where((flat >= start)[:, None], x, found)
        assert found is not None
        return found


def integers(tokens: Tensor, inner: tuple[int, ...], wanted: str) -> Tensor:
    """Token ids (batch, length, *inner) as int64; raises FormersError for another shape or type; `wanted` is the shape in words."""
    if not isinstance(tokens, Tensor):
        raise FormersError(f"tokens are a {type(tokens).__name__}: give an int64 tensor of shape {wanted}.")
    if tokens.dim() != 2 + len(inner) or tokens.shape[2:] != inner or tokens.dtype not in INTEGERS:
        raise FormersError(f"tokens are {tokens.dtype} of shape {tuple(tokens.shape)}: give int64 of shape {wanted}.")
    return tokens.long()


def refuse_out_of_range(tokens: Tensor, vocab: int) -> None:
    """Raises FormersError if an id is not in 0 ... vocab-1; reads values."""
    if bool(((tokens < 0) | (tokens >= vocab)).any()):
        raise out_of_range(tokens, vocab)


def out_of_range(tokens: Tensor, vocab: int) -> FormersError:
    """The error for ids of which at least one is not in 0 ... vocab-1."""
    wrong = tokens[(tokens < 0) | (tokens >= vocab)][0].item()
    return FormersError(f"token id {wrong} is out of range: with vocab={vocab} ids are 0 ... {vocab - 1}.")
