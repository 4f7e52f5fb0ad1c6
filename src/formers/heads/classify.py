"""One class for the whole sequence.

logits = W pool(h) + b         pool = mean over real tokens, or the first or the last of them  E17
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Sizes
from formers.heads.base import EmbeddingTables, Head, HeadModule, cross_entropy


class Classify(Head):
    """A class per sequence; targets (batch,)."""

    classes: PositiveInt
    pool: Literal["mean", "first", "last"] = "mean"

    @property
    def per_position(self) -> bool:
        return False

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        return ClassHead(sizes.dim, self.classes, self.pool)


class ClassHead(HeadModule):
    """Pools the hidden states, then projects them."""

    def __init__(self, dim: int, classes: int, pool: str) -> None:
        super().__init__()
        self.pool = pool
        self.out = nn.Linear(dim, classes)

    @property
    def classes(self) -> int:
        return self.out.out_features

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if mask is None:
            pooled = hidden.mean(dim=1) if self.pool == "mean" else hidden[:, 0 if self.pool == "first" else -1]
        else:
            weight = self._chosen(mask)[..., None].to(hidden.dtype)
            pooled = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
        logits = self.out(pooled)  # E17
        return logits, {} if targets is None else {"cross_entropy": cross_entropy(logits, targets)}

    def _chosen(self, mask: Tensor) -> Tensor:
        """The tokens (batch, length) that are pooled: all real ones, or one of each row that has any."""
        if self.pool == "mean":
            return mask
        count = mask.cumsum(dim=1)
        return mask & (count == (1 if self.pool == "first" else count[:, -1:]))
