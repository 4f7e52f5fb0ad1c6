"""Token prediction: the next token (language model) or masked tokens (masked language model).

logits = h E^T + b      E the embedding table (tied) or a separate matrix; b if the head has a bias            E16

Padding is not a token: padded positions are excluded from the loss, and label smoothing spreads over real tokens only. Smoothing is used
in training only; in evaluation the loss is the plain cross-entropy, from which bits per byte and perplexity are computed.

For long rows or large vocabularies, the logits can be the largest tensor of a training step. With `chunk` they are computed for that
many positions at a time (heads/chunked.py); the loss and its gradients are the same.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Sizes
from formers.heads.base import EmbeddingTables, Head, HeadModule, cross_entropy, mask_targets, scale_logits, token_cross_entropy
from formers.heads.chunked import chunked_cross_entropy, chunked_token_cross_entropy


class LanguageModel(Head):
    """The next token at every position; targets are already shifted."""

    tied: bool = True
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    chunk: PositiveInt | None = None
    """With targets, the number of positions of the batch per chunk of logits; logits are then not returned. None: all at once."""
    bias: bool = False
    """Whether a learned bias is added to the logit of each token, tied or not."""

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
            nn.init.zeros_(head.weight)  # all tokens are equally likely: the initial loss is ln(vocab)
        return head


class MaskedLM(LanguageModel):
    """The masked tokens: targets are -100 except where the data loader masked the input."""

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
        self.vocab = vocab

    @property
    def classes(self) -> int:
        return self.vocab

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Logits (batch, length, vocab), and with targets their loss; with targets and a chunk, only the loss."""
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
        """The output matrix (vocab, dim)."""
        weight = embedding.weight if self.weight is None else self.weight
        assert weight is not None
        return weight

    def _logits(self, hidden: Tensor, embedding: EmbeddingTables) -> Tensor:
        return scale_logits(F.linear(hidden, self._table(embedding)), self.bias, self.scale)  # E16
