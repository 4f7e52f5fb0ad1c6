"""Conditioning on a class: a learned vector of the class is added at every position, x_t <- x_t + L[class]."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError
from formers.core.debug import checks_values
from formers.core.devices import on_host
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
        wanted = self._wanted(batch)
        if label is None:
            raise FormersError(f"the model is conditioned on {labels} classes, but no label is given: {wanted}.")
        if not isinstance(label, Tensor) or label.shape != (batch,) or label.dtype not in INTEGERS:
            given = f"{label.dtype} of shape {tuple(label.shape)}" if isinstance(label, Tensor) else f"a {type(label).__name__}"
            raise FormersError(f"label is {given}: {wanted}.")
        if not on_host(label) and checks_values(label):  # on the host the lookup raises by itself
            self.check_ids(label)
        try:
            return x + F.embedding(label.long(), self.weight)[:, None]
        except IndexError:
            raise self._error(label) from None

    def check_ids(self, label: Tensor) -> None:
        """Raises FormersError for a class that does not exist. It reads values: it is called on the host."""
        if bool(((label < 0) | (label >= len(self.weight))).any()):
            raise self._error(label)

    def _error(self, label: Tensor) -> FormersError:
        wrong = label[(label < 0) | (label >= len(self.weight))][0].item()
        return FormersError(f"class {wrong} does not exist: {self._wanted(len(label))}.")

    def _wanted(self, batch: int) -> str:
        return f"give label, an int64 tensor of shape ({batch},) with classes 0 ... {len(self.weight) - 1}"
