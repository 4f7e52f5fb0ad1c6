"""Conditioning on a class: a learned vector of the class is added at every position, x_t <- x_t + L[class]."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError
from formers.inputs.base import INTEGERS


class LabelEmbedding(nn.Module):
    """Adds the vector of its class to every position of a row."""

    undecayed: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(self, labels: int, dim: int, spread: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(labels, dim) * spread)

    def forward(self, x: Tensor, label: Tensor | None) -> Tensor:
        """x (batch, length, dim) with the vector of label (batch,) added."""
        labels, batch = len(self.weight), x.shape[0]
        wanted = f"give label, an int64 tensor of shape ({batch},) with classes 0 ... {labels - 1}"
        if label is None:
            raise FormersError(f"the model is conditioned on {labels} classes, but no label is given: {wanted}.")
        if not isinstance(label, Tensor) or label.shape != (batch,) or label.dtype not in INTEGERS:
            given = f"{label.dtype} of shape {tuple(label.shape)}" if isinstance(label, Tensor) else f"a {type(label).__name__}"
            raise FormersError(f"label is {given}: {wanted}.")
        try:
            return x + F.embedding(label.long(), self.weight)[:, None]
        except IndexError:
            wrong = label[(label < 0) | (label >= labels)][0].item()
            raise FormersError(f"class {wrong} does not exist: {wanted}.") from None
