"""One or several classes at every position.

logits_t = W h_t + b           (batch, length, classes), or (batch, length, places, classes)  E106

Targets are (batch, length), or (batch, length, places); -100 is excluded, as in Graves (2016), whose sums have six places of eleven
classes at every step except the first. The loss is the mean over the other targets.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Sizes
from formers.heads.base import EmbeddingTables, Head, HeadModule, cross_entropy, mask_targets, token_cross_entropy


class Tag(Head):
    """One class, or `places` classes, at every position; the targets are not shifted."""

    classes: PositiveInt
    places: PositiveInt = 1
    """Classes per position; with 1, logits and targets have no dimension for it."""

    def target_shape(self, batch: int, length: int) -> tuple[int, ...]:
        return (batch, length) if self.places == 1 else (batch, length, self.places)

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        return TagHead(sizes.dim, self.classes, self.places)


class TagHead(HeadModule):
    """Projects every position."""

    def __init__(self, dim: int, classes: int, places: int) -> None:
        super().__init__()
        self.shape = (classes,) if places == 1 else (places, classes)
        self.out = nn.Linear(dim, places * classes)

    @property
    def classes(self) -> int:
        return self.shape[-1]

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and with targets their loss, without padding."""
        logits = self._logits(hidden)
        return logits, {} if targets is None else {"cross_entropy": cross_entropy(logits, mask_targets(targets, mask))}

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        return token_cross_entropy(self._logits(hidden), targets)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.out(hidden).unflatten(-1, self.shape)  # E106
