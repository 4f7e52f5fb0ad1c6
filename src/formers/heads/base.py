"""The head slot: logits from the last hidden states, and named losses from logits and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import IGNORED, FormersError, Sizes, Slot


def mask_targets(targets: Tensor, mask: Tensor | None) -> Tensor:
    """Targets (batch, length), or several at each position, -100 where mask (batch, length), if it fits, says that no token stands."""
    if mask is None or mask.shape != targets.shape[: mask.dim()]:
        return targets
    return targets.masked_fill(~mask.view(*mask.shape, *[1] * (targets.dim() - mask.dim())), IGNORED)


class EmbeddingTables(Protocol):
    """What embeds the tokens, as far as a head that shares its weights needs to know."""

    weight: Tensor | None
    """The table (vocab, dim); None where there is none, or more than one."""
    tables: Sequence[Tensor] | nn.ParameterList
    """Tables (words, width) of clusters of tokens, where there is more than one."""
    projections: Sequence[Tensor] | nn.ParameterList
    """What brings the vectors of each table into the stream (dim, width)."""


class HeadModule(nn.Module):
    """Turns hidden states into logits and losses; the term that evaluation reports is called `cross_entropy`, in nats per target."""

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Logits and named losses of hidden (batch, length, dim), given what embeds the tokens, targets, and real tokens."""
        if targets is not None:
            raise FormersError("a model without a head has no loss: leave out targets, or give its spec a head.")
        return None, {}

    def value(self, hidden: Tensor) -> Tensor | None:
        """The value (batch, length) of the state at each position, for agents; None where there is none."""
        return None

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        """The loss (batch, length) of each target of hidden (batch, length, dim), 0 where it is -100."""
        raise FormersError(f"a {type(self).__name__} does not predict tokens one by one: use the head of a language model.")


class AuxiliaryModule(nn.Module):
    """Further losses of training, with weights that nobody needs afterwards."""

    def taps(self, progress: float) -> tuple[int, ...]:
        """The depth steps whose outputs it asks for when `progress` of the training is done."""
        return ()

    def forward(
        self, hidden: Tensor, taps: dict[int, Tensor], embedding: EmbeddingTables, targets: Tensor, mask: Tensor | None, progress: float
    ) -> dict[str, Tensor]:
        """Named losses of the last hidden states (batch, length, dim) and of the outputs of the steps it has asked for."""
        return {}


class Head(Slot):
    """What a model is for."""

    @property
    def per_position(self) -> bool:
        """Whether it answers at every position, so that a stream can be continued; not if it judges whole sequences."""
        return True

    @property
    def generates(self) -> bool:
        """Whether it predicts the next token, so that the model can write."""
        return False

    @property
    def uses_embedding(self) -> bool:
        """Whether it uses weights of the embedding, and so needs hidden states as wide as embedded tokens."""
        return False

    @property
    def taps(self) -> bool:
        """Whether training asks for the outputs of layers in between."""
        return False

    def target_shape(self, batch: int, length: int) -> tuple[int, ...]:
        """The shape of the targets of `batch` rows of `length` positions."""
        return (batch, length) if self.per_position else (batch,)

    def tables(self, vocab: int, dim: int) -> tuple[tuple[int, int], ...]:
        """Words and width of each of the tables that embed the tokens, where these are not one table as wide as the stream."""
        return ()

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        """The module; `scale` multiplies logits that are made with the embedding table."""
        return HeadModule()

    def build_auxiliary(self, sizes: Sizes, vocab: int | None) -> AuxiliaryModule | None:
        """What gives further losses in training alone; None where there are none."""
        return None

    def deployed(self) -> Head:
        """The head of the same model without what only training needs."""
        return self


class NoHead(Head):
    """Hidden states alone, as an encoder gives them to a decoder."""


def scored(products: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Logits (..., vocab) of the products of hidden states with a table: times the scale, and with the bias of each token."""
    logits = products * scale if scale != 1.0 else products
    return logits if bias is None else logits + bias.to(logits.dtype)


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The mean of what `token_nats` gives over the targets that count."""
    return mean(token_cross_entropy(logits, targets, smoothing), targets)


def mean(nats: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of the targets that are not -100; 0 if none counts."""
    return nats.sum() / (targets != IGNORED).sum().clamp(min=1)


def token_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """-sum_c t_c log p_c of each target, 0 where it is -100; t is one-hot, smoothed towards uniform.  E15"""
    check_targets(targets, logits.shape[:-1])
    flat, goal = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()  # a sum over thousands of targets leaves their range or their precision
    try:
        nats = F.cross_entropy(flat, goal, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)  # E15
    except IndexError:
        raise target_error(goal, flat.shape[-1]) from None
    return nats.view(targets.shape)


def check_targets(targets: Tensor, shape: Sequence[int]) -> None:
    """Refuses targets that are not integers of a shape."""
    if targets.shape != tuple(shape) or targets.dtype != torch.int64:
        raise FormersError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}: give int64 of shape {tuple(shape)}, -100 = ignored."
        )


def target_error(targets: Tensor, classes: int) -> FormersError:
    """The refusal of targets (n,) of which at least one is none of the classes."""
    wrong = targets[(targets != IGNORED) & ((targets < 0) | (targets >= classes))][0].item()
    return FormersError(f"target {wrong} is not a class: targets must be 0 ... {classes - 1}, or -100 to ignore.")
