"""Adaptive softmax (Grave et al., 2017) with adaptive inputs (Baevski and Auli, 2018), as Transformer-XL uses them for words.

Words are sorted by frequency. The cutoffs split them into the frequent words V_0 and clusters V_1 ... V_n of increasingly rare ones:

h_i      = h P_i                P_i (d, d_i), d_i = d / division^i; with division 1 there is no P, and h_i = h            E54
s        = log softmax([h_0 E_0^T + b_0 ; h_0 C^T + c])        a score for each frequent word and for each cluster
log p(w) = s_w                                      w in V_0
         = s_(|V_0|+i) + log softmax(h_i E_i^T + b_i)_w        w in V_i                                                   E55
x        = P_i E_i[w]           the input embedding, scaled as other embeddings                                            E56

With targets, a cluster is computed only for the targets in it: a step costs little more than one over V_0. If tied, the tables E are
those of the input; the authors tie all projections P except P_0 for WikiText-103, and none for the One Billion Word benchmark.

With fake tensors, as in `formers explain`, targets are distributed over the clusters by Zipf's law.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

import torch
from pydantic import PositiveInt, field_validator
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from formers.core import IGNORED, FormersError, Sizes
from formers.core.devices import on_host
from formers.heads.base import EmbeddingTables, Head, HeadModule, check_targets, mask_targets, mean, target_error, token_cross_entropy

FULL = 16_384
"""Up to this vocabulary size, one softmax over all words is as good."""
LOGITS = 1 << 26
"""Off the host, at most this many logits of a cluster are computed at a time."""
PUBLISHED = ((640_000, (60_000, 100_000, 640_000)), (200_000, (20_000, 40_000, 200_000)))
"""The Transformer-XL authors' cutoffs for vocabularies above a size: One Billion Word, and WikiText-103."""


class AdaptiveSoftmax(Head):
    """The next word at every position, predicted by clusters; targets are already shifted. There is no label smoothing."""

    cutoffs: tuple[PositiveInt, ...]
    """The first word of each cluster of rarer words, increasing; () for one softmax over all."""
    division: PositiveInt = 1
    """The width of the vectors is divided by this from each cluster to the next."""
    tied: bool = True
    """Whether the tables are shared with the input."""
    tied_projections: Literal["all", "tails", "none"] = "tails"
    """The projections shared with the input: all, those of the clusters of rarer words ("tails"), or none."""
    bias: bool = True
    """Whether the biases b and c exist."""

    @field_validator("cutoffs")
    @classmethod
    def _increasing(cls, cutoffs: tuple[int, ...]) -> tuple[int, ...]:
        if list(cutoffs) != sorted(set(cutoffs)):
            raise FormersError(f"cutoffs={list(cutoffs)} must be increasing: give them as in [2000, 10000].")
        return cutoffs

    @property
    def generates(self) -> bool:
        return True

    @property
    def uses_embedding(self) -> bool:
        return self.tied or (self.division > 1 and self.tied_projections != "none")

    def narrowest(self, dim: int) -> int:
        """The width of the last cluster's vectors."""
        return dim // self.division ** len(self.cutoffs)

    def tables(self, vocab: int, dim: int) -> tuple[tuple[int, int], ...]:
        if self.division == 1:
            return ()
        edges = pairwise((0, *self.cutoffs, vocab))
        return tuple((stop - start, dim // self.division**i) for i, (start, stop) in enumerate(edges))

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        assert vocab is not None
        head = AdaptiveHead(self, sizes.dim, vocab, scale)
        if sizes.initialisation == "fan-in":
            for table in head.tables:
                nn.init.zeros_(table)  # as in TokenHead
        return head


def chosen_cutoffs(vocab: int) -> tuple[int, ...]:
    """The default cutoffs for a vocabulary: the published ones, or a sixteenth and a quarter of the words; none for few words."""
    if vocab <= FULL:
        return ()
    return next((cutoffs for size, cutoffs in PUBLISHED if vocab > size), (vocab // 16, vocab // 4))


class AdaptiveHead(HeadModule):
    """Log-probabilities of all words, or only the losses of the targets."""

    def __init__(self, part: AdaptiveSoftmax, dim: int, vocab: int, scale: float) -> None:
        super().__init__()
        self.edges = (0, *part.cutoffs, vocab)
        self.tails = tuple(pairwise(self.edges[1:]))
        self.divided = part.division > 1
        self.scale = scale if part.tied else 1.0
        clusters = len(part.cutoffs)
        self.bias = nn.Parameter(torch.zeros(vocab)) if part.bias else None
        if clusters:
            # Initially a cluster has the same score as a frequent word.
            self.cluster = nn.Parameter(torch.zeros(clusters, dim))
            self.cluster_bias = nn.Parameter(torch.zeros(clusters)) if part.bias else None
        shapes = part.tables(vocab, dim) or ((vocab, dim),)
        self.tables = nn.ParameterList([] if part.tied else [torch.randn(words, width) * width**-0.5 for words, width in shapes])
        own = {"all": 0, "tails": 1, "none": clusters + 1}[part.tied_projections] if self.divided else 0
        self.projections = nn.ParameterList([torch.randn(dim, width) * dim**-0.5 for _, width in shapes[:own]])

    @property
    def classes(self) -> int:
        return self.edges[-1]

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The log-probabilities (batch, length, vocab) without targets; with targets their loss, and no logits."""
        if targets is None:
            return self.log_probabilities(hidden, embedding), {}
        targets = mask_targets(targets, mask)
        return None, {"cross_entropy": mean(self.token_losses(hidden, embedding, targets), targets)}

    def log_probabilities(self, hidden: Tensor, embedding: EmbeddingTables) -> Tensor:
        """log p of every word, (..., vocab)."""
        frequent = self.edges[1]
        first = _float(self._logits(0, hidden, embedding)).log_softmax(dim=-1)
        found = [first[..., :frequent]]
        for i in range(1, len(self.tails) + 1):
            within = _float(self._logits(i, hidden, embedding)).log_softmax(dim=-1)
            found.append(first[..., frequent + i - 1, None] + within)  # E55
        return torch.cat(found, dim=-1)

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        check_targets(targets, hidden.shape[:-1])
        flat, goal = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        first, frequent = goal, self.edges[1]
        for i, (start, stop) in enumerate(self.tails):
            first = first.masked_fill((goal >= start) & (goal < stop), frequent + i)
        try:
            nats = token_cross_entropy(self._logits(0, flat, embedding), first)
        except FormersError:
            raise target_error(goal, self.edges[-1]) from None
        if not on_host(goal):
            return self._with_tails(nats, flat, goal, embedding).view(targets.shape)
        for i, (start, stop) in enumerate(self.tails, 1):
            rows = indices_between(goal, start, stop, self.edges[-1])
            # A cluster without targets is computed for zero rows, so that its weights get a zero gradient and not None.
            within = token_cross_entropy(self._logits(i, flat[rows], embedding), goal[rows] - start)
            nats = nats.index_add(0, rows, within.to(nats.dtype))  # E55
        return nats.view(targets.shape)

    def _with_tails(self, nats: Tensor, flat: Tensor, goal: Tensor, embedding: EmbeddingTables) -> Tensor:
        """The losses (n,) of all targets, from those of the first softmax, without reading how many targets each cluster has.

        Each cluster is computed for all tokens, with -100 instead of the targets of others, so many at a time that the logits stay small.
        The backward pass computes them again.
        """
        for i, (start, stop) in enumerate(self.tails, 1):

            def within(few: Tensor, some: Tensor, i: int = i) -> Tensor:
                return token_cross_entropy(self._logits(i, few, embedding), some)

            own = (goal - start).masked_fill((goal < start) | (goal >= stop), IGNORED)
            chunk = max(1, LOGITS // (stop - start))
            found = [
                checkpoint(within, few, some, use_reentrant=False, preserve_rng_state=False)
                for few, some in zip(torch.split(flat, chunk), torch.split(own, chunk), strict=True)
            ]
            nats = nats + torch.cat(found).to(nats.dtype)  # E55
        return nats

    def _logits(self, i: int, hidden: Tensor, embedding: EmbeddingTables) -> Tensor:
        """The logits of the words of a cluster; for the first, followed by those of the other clusters."""
        start, stop = self.edges[i], self.edges[i + 1]
        if self.divided:
            projection = self.projections[i] if i < len(self.projections) else embedding.projections[i]
            hidden = F.linear(hidden, projection.T)  # E54
        tables = self.tables or embedding.tables
        if tables and self.divided:
            table = tables[i]
        else:
            whole = tables[0] if tables else embedding.weight
            assert whole is not None
            table = whole[start:stop]
        weight, bias = table * self.scale if self.scale != 1.0 else table, None if self.bias is None else self.bias[start:stop]
        if i == 0 and self.tails:
            weight = torch.cat([weight, self.cluster])
            bias = None if bias is None or self.cluster_bias is None else torch.cat([bias, self.cluster_bias])
        return F.linear(hidden, weight, bias)


def indices_between(words: Tensor, start: int, stop: int, vocab: int) -> Tensor:
    """The indices of the words (n,) with ids start ... stop-1."""
    if not torch.compiler.is_compiling() and isinstance(words, FakeTensor):
        share = math.log(stop / max(start, 1)) / math.log(max(vocab, 2))  # Zipf's law: frequency of the r-th word ~ 1/r
        return torch.arange(round(share * len(words)), device=words.device)
    return ((words >= start) & (words < stop)).nonzero().view(-1)


def _float(logits: Tensor) -> Tensor:
    """Logits in at least float32."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
