"""The head slot: logits from the last hidden states, and named losses from logits and targets."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import IGNORED, FormersError, Sizes, Slot


class Embeds(Protocol):
    """What embeds the tokens, as far as a head that shares its weights needs to know."""

    weight: Tensor | None
    """The table (vocab, dim); None where there is none, or more than one."""


class HeadModule(nn.Module):
    """Turns hidden states into logits and losses; the term that evaluation reports is called `cross_entropy`, in nats per target."""

    def forward(
        self, hidden: Tensor, embedding: Embeds, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Logits and named losses of hidden (batch, length, dim), given what embeds the tokens, targets, and real tokens."""
        if targets is not None:
            raise FormersError("a model without a head has no loss: leave out targets, or give its spec a head.")
        return None, {}

    def nats(self, hidden: Tensor, embedding: Embeds, targets: Tensor) -> Tensor:
        """The loss (batch, length) of every target by itself, 0 at -100, of hidden (batch, length, dim)."""
        raise FormersError("this head does not tell the loss of every token: use a model with the LanguageModel head.")


class Head(Slot):
    """What a model is for."""

    @property
    def streams(self) -> bool:
        """Whether it answers at every position, so that a stream can be continued; not if it judges whole sequences."""
        return True

    @property
    def writes(self) -> bool:
        """Whether it predicts the next token, so that the model can write."""
        return False

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        """The module; `scale` multiplies logits that are made with the embedding table."""
        return HeadModule()


class NoHead(Head):
    """Hidden states alone, as an encoder gives them to a decoder."""


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean of -sum_c t_c log p_c over targets that are not -100; t is one-hot, smoothed towards uniform; 0 if none counts.  E15"""
    if targets.shape != logits.shape[:-1] or targets.dtype != torch.int64:
        raise FormersError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}: give int64 of shape {tuple(logits.shape[:-1])}, -100 = ignored."
        )
    flat, goal = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()  # a sum over thousands of targets leaves their range or their precision
    try:
        total = F.cross_entropy(flat, goal, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)  # E15
    except IndexError:
        wrong = goal[(goal != IGNORED) & ((goal < 0) | (goal >= flat.shape[-1]))][0].item()
        raise FormersError(f"target {wrong} is not a class: targets must be 0 ... {flat.shape[-1] - 1}, or -100 to ignore.") from None
    return total / (goal != IGNORED).sum().clamp(min=1)
