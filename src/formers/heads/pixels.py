"""Predicting the cells of an image: a channel value as one of n levels, or a pixel by a mixture of logistics.

logits_t = W h_t + b        for the levels of cell t, or the mixture parameters of pixel t (heads/logistics.py)

Both report nats per dimension, i.e. per channel value of a pixel; divide by ln 2 for bits per dimension.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import IGNORED, Sizes
from formers.core.debug import checks_values
from formers.core.devices import widest_float
from formers.heads.base import (
    EmbeddingTables,
    Head,
    HeadModule,
    check_targets,
    cross_entropy,
    mask_targets,
    mean,
    refuse_no_class,
    token_cross_entropy,
)
from formers.heads.logistics import Logistics, numbers

Levels = Annotated[int, Field(ge=2, le=65536)]


class PixelHead:
    """The common code of image heads, which predict the cell at each position of a generation order."""

    @property
    def generates(self) -> bool:
        """Whether it predicts the next cell: always."""
        return True

    def conditional(self, logits: Tensor, before: Tensor, temperature: float) -> Tensor:
        """Logits (rows, levels) of the next channel value of a position, given logits (rows, ...) and its earlier channels (rows, c)."""
        raise TypeError(f"{type(self).__name__} predicts nothing: define conditional(logits, before, temperature).")


class PixelCategorical(PixelHead, Head):
    """One of `vocab` levels for the channel value at each position; targets (batch, cells)."""

    bias: bool = True
    """Whether each level has a bias."""

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        assert vocab is not None
        return CategoricalHead(sizes, vocab, self.bias)

    def conditional(self, logits: Tensor, before: Tensor, temperature: float) -> Tensor:
        return logits / temperature if temperature != 1.0 else logits


class PixelMixture(PixelHead, Head):
    """A discretised mixture of logistics for the pixel at each position; targets (batch, pixels, channels) of integer levels.

    A pixel with a channel of -100 is excluded. Logits are the mixture parameters, in tensor2tensor's layout.
    """

    mixtures: PositiveInt = 10
    channels: PositiveInt = 3
    levels: Levels = 256
    bias: bool = False
    """Whether each mixture parameter has a bias."""

    def target_shape(self, batch: int, length: int) -> tuple[int, ...]:
        return (batch, length, self.channels)

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        return MixtureHead(sizes, self)

    def conditional(self, logits: Tensor, before: Tensor, temperature: float) -> Tensor:
        mixture = Logistics.of(logits.to(widest_float(logits.device)), self.mixtures, self.channels, temperature)
        return mixture.conditional(before, self.levels)


class _Projected(HeadModule):
    """A linear map of hidden states."""

    def __init__(self, sizes: Sizes, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, sizes.dim) * sizes.dim**-0.5)
        if sizes.initialisation == "fan-in":
            nn.init.zeros_(self.weight)
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def project(self, hidden: Tensor) -> Tensor:
        """The linear map (..., width) of hidden states (..., dim)."""
        return F.linear(hidden, self.weight, self.bias)


class CategoricalHead(_Projected):
    """Logits of levels."""

    def __init__(self, sizes: Sizes, levels: int, bias: bool) -> None:
        super().__init__(sizes, levels, bias)

    @property
    def classes(self) -> int:
        return len(self.weight)

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (batch, cells, levels), and with targets their loss, without padding."""
        logits = self.project(hidden)
        return logits, {} if targets is None else {"cross_entropy": cross_entropy(logits, mask_targets(targets, mask))}

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        return token_cross_entropy(self.project(hidden), targets)


class MixtureHead(_Projected):
    """Parameters of mixtures of logistics."""

    def __init__(self, sizes: Sizes, part: PixelMixture) -> None:
        super().__init__(sizes, numbers(part.mixtures, part.channels), part.bias)
        self.part = part

    @property
    def classes(self) -> int:
        return self.part.levels

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mixture parameters (batch, pixels, ...), and with targets the mean nats per channel value, without padding."""
        given = self.project(hidden)
        if targets is None:
            return given, {}
        targets = mask_targets(targets, mask)
        whole = _whole(targets)
        return given, {"cross_entropy": mean(self._nats(given, targets), whole) / self.part.channels}

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        """The loss (batch, pixels) of each whole pixel, 0 for excluded ones."""
        return self._nats(self.project(hidden), targets)

    def _nats(self, given: Tensor, targets: Tensor) -> Tensor:
        part = self.part
        check_targets(targets, (*given.shape[:-1], part.channels))
        if given.dtype in (torch.float16, torch.bfloat16):
            given = given.float()
        whole = _whole(targets)
        levels = targets.clamp(min=0)
        if checks_values(targets):
            refuse_no_class(targets, part.levels)
        nats = Logistics.of(given, part.mixtures, part.channels).nats(levels, part.levels)
        return nats.masked_fill(whole == IGNORED, 0.0)


def _whole(targets: Tensor) -> Tensor:
    """-100 (batch, pixels) where a channel of targets (batch, pixels, channels) is -100."""
    return torch.where((targets == IGNORED).any(dim=-1), IGNORED, 0)
