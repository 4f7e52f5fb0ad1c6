"""A model compiled for training: one graph for any lengths and numbers of rows, where its layers allow it."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.fx.experimental import _config as shapes

from formers.model import Model
from formers.model.compile_limits import compile_limits

logger = logging.getLogger(__name__)


class CompiledModel(nn.Module):
    """Calls a model through torch.compile; logs why it needs many graphs, if it does.

    Sizes are dynamic from the first step, so that there is one graph, and not one more for each size that turns out to vary.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        limits = compile_limits(model.spec)
        if limits is not None:
            logger.warning("%s", limits)
        self.compiled = torch.compile(model, dynamic=True if limits is None else None)

    def forward(self, *given: Any, **named: Any) -> Any:
        """The output of the model."""
        # Otherwise sizes that are equal in the first step, such as the length and the width, must stay equal.
        with shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            return self.compiled(*given, **named)
