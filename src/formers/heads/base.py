"""The head slot: logits from the last hidden states, and named losses from logits and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import IGNORED, FormersError, Sizes, Slot
from formers.core.debug import checks_values
from formers.core.devices import on_host


def mask_targets(targets: Tensor, mask: Tensor | None) -> Tensor:
    """Targets (batch, length, ...), set to -100 at padding, where mask (batch, length) is False; unchanged if the shapes do not match."""
    if mask is None or mask.shape != targets.shape[: mask.dim()]:
        return targets
    return targets.masked_fill(~mask.view(*mask.shape, *[1] * (targets.dim() - mask.dim())), IGNORED)


class EmbeddingTables(Protocol):
    """The attributes of the input embedding that a head with shared weights uses."""

    weight: Tensor | None
    """The table (vocab, dim); None if there is none, or more than one."""
    tables: Sequence[Tensor] | nn.ParameterList
    """Tables (words, width) of clusters of tokens, if there is more than one."""
    projections: Sequence[Tensor] | nn.ParameterList
    """The projection (dim, width) of the vectors of each table to the model width."""


class HeadModule(nn.Module):
    """Computes logits and losses from hidden states; the loss reported by evaluation is called `cross_entropy`, in nats per target."""

    def forward(
        self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Logits and named losses of hidden (batch, length, dim), given the input embedding, targets, and the mask of real tokens."""
        if targets is not None:
            raise FormersError("a model without a head has no loss: omit targets, or give its spec a head.")
        return None, {}

    @property
    def classes(self) -> int | None:
        """The number of classes of the targets; None without targets that are classes."""
        return None

    def check_ids(self, targets: Tensor, mask: Tensor | None) -> None:
        """Raises FormersError for targets that are no classes, except at padding. It reads values: it is called on the host."""
        if self.classes is not None and not targets.is_floating_point():
            refuse_no_class(mask_targets(targets, mask), self.classes)

    def value(self, hidden: Tensor) -> Tensor | None:
        """The value (batch, length) of the state at each position, for agents; None if the head predicts none."""
        return None

    def token_losses(self, hidden: Tensor, embedding: EmbeddingTables, targets: Tensor) -> Tensor:
        """The loss (batch, length) of each target of hidden (batch, length, dim), 0 where it is -100."""
        raise FormersError(f"a {type(self).__name__} does not predict tokens one by one: use the head of a language model.")


class AuxiliaryModule(nn.Module):
    """Auxiliary losses, with weights that are used only in training."""

    def taps(self, progress: float) -> tuple[int, ...]:
        """The depth steps whose outputs are needed, at the completed fraction `progress` of the training."""
        return ()

    def forward(
        self, hidden: Tensor, taps: dict[int, Tensor], embedding: EmbeddingTables, targets: Tensor, mask: Tensor | None, progress: float
    ) -> dict[str, Tensor]:
        """Named losses of the last hidden states (batch, length, dim) and of the outputs of the tapped steps."""
        return {}


class Head(Slot):
    """The output of a model and its loss."""

    @property
    def per_position(self) -> bool:
        """Whether it predicts at every position, so that a sequence can be continued; False if it classifies whole sequences."""
        return True

    @property
    def generates(self) -> bool:
        """Whether it predicts the next token, so that the model can generate."""
        return False

    @property
    def uses_embedding(self) -> bool:
        """Whether it uses weights of the embedding, and so needs hidden states as wide as embedded tokens."""
        return False

    @property
    def taps(self) -> bool:
        """Whether training needs the outputs of intermediate layers."""
        return False

    def target_shape(self, batch: int, length: int) -> tuple[int, ...]:
        """The shape of the targets of `batch` rows of `length` positions."""
        return (batch, length) if self.per_position else (batch,)

    def tables(self, vocab: int, dim: int) -> tuple[tuple[int, int], ...]:
        """Words and width of each embedding table; empty for one table of the model width."""
        return ()

    def build(self, sizes: Sizes, vocab: int | None, scale: float) -> HeadModule:
        """The module; `scale` multiplies logits computed with the embedding table."""
        return HeadModule()

    def build_auxiliary(self, sizes: Sizes, vocab: int | None) -> AuxiliaryModule | None:
        """The module with auxiliary losses for training; None if there are none."""
        return None

    def deployed(self) -> Head:
        """The head without what only training needs."""
        return self


class NoHead(Head):
    """Hidden states only, as for the encoder of an encoder-decoder."""


def scale_logits(products: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Logits (..., vocab) from the products of hidden states with a table: multiplied by the scale, plus the bias of each token."""
    logits = products * scale if scale != 1.0 else products
    return logits if bias is None else logits + bias.to(logits.dtype)


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """The mean of `token_cross_entropy` over the targets that are not -100; 0 if there are none."""
    return mean(token_cross_entropy(logits, targets, smoothing), targets)


def mean(nats: Tensor, targets: Tensor) -> Tensor:
    """The mean loss over the targets that are not -100; 0 if there are none."""
    return nats.sum() / (targets != IGNORED).sum().clamp(min=1)


def token_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """-sum_c t_c log p_c of each target, 0 where it is -100; t is one-hot, smoothed towards uniform.  E15"""
    check_targets(targets, logits.shape[:-1])
    flat, goal = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()  # a sum over thousands of targets exceeds their range or precision
    if not on_host(goal) and checks_values(goal):  # on the host the loss raises by itself
        refuse_no_class(goal, flat.shape[-1])
    try:
        nats = F.cross_entropy(flat, goal, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing)  # E15
    except IndexError:
        raise target_error(goal, flat.shape[-1]) from None
    return nats.view(targets.shape)


def check_targets(targets: Tensor, shape: Sequence[int]) -> None:
    """Raises FormersError unless targets are int64 of a shape."""
    if targets.shape != tuple(shape) or targets.dtype != torch.int64:
        raise FormersError(
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}: give int64 of shape {tuple(shape)}, -100 = ignored."
        )


def refuse_no_class(targets: Tensor, classes: int) -> None:
    """Raises FormersError for a target that is neither a class nor -100; reads values."""
    if bool(((targets != IGNORED) & ((targets < 0) | (targets >= classes))).any()):
        raise target_error(targets.flatten(), classes)


def target_error(targets: Tensor, classes: int) -> FormersError:
    """The error for targets (n,) of which at least one is not a class."""
    wrong = targets[(targets != IGNORED) & ((targets < 0) | (targets >= classes))][0].item()
    return FormersError(f"target {wrong} is not a class: targets must be 0 ... {classes - 1}, or -100 to ignore.")
