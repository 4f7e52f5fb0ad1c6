"""Predicting tokens: the next one (language model) or the hidden ones (masked language model).

logits = h E^T          E the embedding table (tied) or a matrix of its own       E16

Padding has no token: positions that are not real count for no loss, and label smoothing spreads over real tokens only. Smoothing
is for training; in evaluation the loss is the cross-entropy itself, which bits per byte and perplexity are made from.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Sizes
from formers.heads.base import Embeds, Head, HeadModule, counted, cross_entropy, token_nats


class LanguageModel(Head):
    """The next token at every position; targets are already shifted."""

    tied: bool = True
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @property
    def writes(self) -> bool:
        return True

    @property
    def ties(self) -> bool:
        return self.tied

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        assert vocab is not None
        head = TokenHead(sizes.dim, vocab, self.tied, scale, self.label_smoothing)
        if head.weight is not None and sizes.initialisation == "fan-in":
            nn.init.zeros_(head.weight)  # every token is as likely as the others: the first loss is ln(vocab)
        return head


class MaskedLM(LanguageModel):
    """The hidden tokens: targets are -100 except where the data loader masked the input."""

    @property
    def writes(self) -> bool:
        return False


class TokenHead(HeadModule):
    """Logits over the vocabulary and their cross-entropy."""

    def __init__(self, dim: int, vocab: int, tied: bool, scale: float, smoothing: float) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.randn(vocab, dim) * dim**-0.5)
        self.scale = scale if tied else 1.0
        self.smoothing = smoothing

    def forward(self, hidden: Tensor, embedding: Embeds, targets: Tensor | None, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        logits = self._logits(hidden, embedding)
        if targets is None:
            return logits, {}
        targets = counted(targets, mask)
        return logits, {"cross_entropy": cross_entropy(logits, targets, self.smoothing if self.training else 0.0)}

    def nats(self, hidden: Tensor, embedding: Embeds, targets: Tensor) -> Tensor:
        return token_nats(self._logits(hidden, embedding), targets)

    def _logits(self, hidden: Tensor, embedding: Embeds) -> Tensor:
        weight = embedding.weight if self.weight is None else self.weight
        assert weight is not None
        logits = F.linear(hidden, weight)  # E16
        return logits * self.scale if self.scale != 1.0 else logits
