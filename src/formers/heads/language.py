"""Predicting tokens: the next one (language model) or the hidden ones (masked language model).

logits = h E^T + b      E the embedding table (tied) or a matrix of its own; b where the head has a bias       E16

Padding has no token: positions that are not real count for no loss, and label smoothing spreads over real tokens only. Smoothing
is for training; in evaluation the loss is the cross-entropy itself, which bits per byte and perplexity are made from.

The logits of long rows, or of many tokens to choose from, can be the largest tensor of a training step. With `chunk` they are made
for so many positions at a time (heads/chunked.py): the loss and its gradients are the same.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Sizes
from formers.heads.base import EmbeddingTables, Head, HeadModule, cross_entropy, mask_targets, scored, token_cross_entropy
from formers.heads.chunked import chunked_cross_entropy, chunked_token_cross_entropy


class LanguageModel(Head):
    """The next token at every position; targets are already shifted."""

    tied: bool = True
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    chunk: PositiveInt | None = None
    """For how many positions of the batch at a time logits are made where there are targets, and then none are given; None: for all."""
    bias: bool = False
    """Whether a learned number is added to the logit of each token, whether the matrix is tied or not."""

    @property
    def generates(self) -> bool:
        return True

    @property
    def uses_embedding(self) -> bool:
        return self.tied

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        assert vocab is not None
        head = TokenHead(sizes.dim, vocab, self, scale)
        if head.weight is not None and sizes.initialisation == "fan-in":
            nn.init.zeros_(head.weight)  # every token is as likely as the others: the first loss is ln(vocab)
        return head


class MaskedLM(LanguageModel):
    """The hidden tokens: targets are -100 except where the data loader masked the input."""

    @property
    def generates(self) -> bool:
        return False


class TokenHead(HeadModule):
    """Logits over the vocabulary and their cross-entropy."""

    def __init__(self, dim: int, vocab: int, part: LanguageModel, scale: float) -> None:
        super().__init__()
        self.weight = None if part.tied else nn.Parameter(torch.randn(vocab, dim) * dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocab)) if part.bias else None
        self.scale = scale if part.tied else 1.0
        self.smoothing, self.chunk = part.label_smoothing, part.chunk

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Logits (batch, length, vocab), and with targets their loss; with targets and a chunk the loss alone."""
        if targets is None:
            return self._logits(hidden, embedding), {}
        targets, smoothing = mask_targets(targets, mask), self.smoothing if self.training else 0.0
        if self.chunk is not None:
            loss = chunked_cross_entropy(hidden, self._table(embedding), targets, self.scale, smoothing, self.chunk, self.bias)
            return None, {"cross_entropy": loss}
        logits = self._logits(hidden, embedding)
        return logits, {"cross_entropy": cross_entropy(logits, targets, smoothing)}

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        if self.chunk is not None:
            return chunked_token_cross_entropy(hidden, self._table(embedding), targets, self.scale, 0.0, self.chunk, self.bias)
        return token_cross_entropy(self._logits(hidden, embedding), targets)

    def _table(self, embedding: EmbeddingTables) -> Tensor:
        """The matrix (vocab, dim) that logits are made with."""
        weight = embedding.weight if self.weight is None else self.weight
        assert weight is not None
        return weight

    def _logits(self, hidden: Tensor, embedding: EmbeddingTables) -> Tensor:
        return scored(F.linear(hidden, self._table(embedding)), self.bias, self.scale)  # E16
