"""Auxiliary losses of deep language models: at intermediate layers, and for several future tokens (Al-Rfou et al., 2018, section 2).

z^(l,k) = h^(l) W_(l,k)                       h^(l) the output of layer l = 1 ... n; each W_(l,k) is separate             E31
L^(l,k) = 1/|C| sum_i -log p^(l,k)_i(y_i+k-1)  target k = 1 ... K of position i: the k-th next token, if the row has it     E35
L       = L^(n,1) + r sum_k>1 L^(n,k) + sum_l<n w_l (L^(l,1) + r sum_k>1 L^(l,k))       r = 1/2                           E32
w_l     = 1 while p < l / 2n, then 0          "cut-off", the paper's: shallow layers end first, all by half of training   E33
w_l     = max(0, 1 - 2n p / l)                "decay": linear to 0 at the same times                                     E34
w_l     = 1                                   "constant", an ablation

p is the completed fraction of the training. L^(n,1) is the language model's loss, from the model's head; the losses of further targets
are called `future`, those of intermediate layers `intermediate`. All are sums over positions divided by |C|, the number of next tokens
with a target, so that the losses of micro-batches add up to that of the batch.

All matrices W_(l,k) except W_(n,1) are used only in training: the model stores them beside its head; evaluation, generation and saved
models do not contain them. A layer's output is what the head would get if the stack ended there: after the final norm, if the residual
has one. Pre-norm hidden states grow with the depth, and a classifier without the norm would have to learn their scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from formers.core import IGNORED, FormersError, Sizes, compact
from formers.heads.base import AuxiliaryModule, EmbeddingTables, Head
from formers.heads.language import LanguageModel

SCHEDULES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "cut-off": lambda end, progress: (end > progress).to(end.dtype),  # E33
    "decay": lambda end, progress: (1 - progress / end).clamp(min=0),  # E34
    "constant": lambda end, progress: torch.ones_like(end),
}
"""The weights (layers,) of layers whose losses end at the given fractions of the training, l/2n, at the fraction `progress`."""


class Auxiliary(LanguageModel):
    """The next token at every position, with auxiliary losses at intermediate layers and for several future tokens."""

    intermediate: Literal["cut-off", "decay", "constant", "none"] = "cut-off"
    """The schedule of the weights of intermediate losses; none: there are no such losses."""
    targets: PositiveInt = 2
    """The number of next tokens predicted at each position."""
    future_weight: PositiveFloat = 0.5
    """The weight of every target except the next token."""

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.intermediate == "none" and self.targets == 1:
            raise FormersError("intermediate=none and targets=1 leave no auxiliary loss: use the LanguageModel head, or change one.")
        return self

    @property
    def taps(self) -> bool:
        return self.intermediate != "none"

    def build_auxiliary(self, sizes: Sizes, vocab: int | None) -> AuxiliaryModule | None:
        assert vocab is not None
        layers = sizes.depth_steps - 1 if self.intermediate != "none" else 0
        return AuxiliaryLosses(self, sizes, vocab, layers) if layers or self.targets > 1 else None

    def deployed(self) -> Head:
        return LanguageModel(tied=self.tied, label_smoothing=self.label_smoothing, chunk=self.chunk, bias=self.bias)


class AuxiliaryLosses(AuxiliaryModule):
    """A classifier for each intermediate layer and target, and for each target of the last layer except the first."""

    def __init__(self, head: Auxiliary, sizes: Sizes, vocab: int, layers: int) -> None:
        super().__init__()
        self.intermediate, self.targets, self.future_weight = head.intermediate, head.targets, head.future_weight
        self.last = sizes.depth_steps
        self.ends = [layer / (2 * sizes.depth_steps) for layer in range(1, layers + 1)]
        """The fraction of the training at which the loss of each intermediate layer ends."""
        wanted = [(layer, 1) for layer in range(1, layers + 1)]
        wanted += [(layer, target) for layer in (*range(1, layers + 1), sizes.depth_steps) for target in range(2, head.targets + 1)]
        classifier = LanguageModel(tied=False, label_smoothing=head.label_smoothing, chunk=head.chunk, bias=head.bias)
        self.classifiers = nn.ModuleDict({_name(*which): classifier.build(sizes, vocab, 1.0) for which in sorted(wanted)})

    def taps(self, progress: float) -> tuple[int, ...]:
        ends = self.ends
        if torch.compiler.is_compiling():  # one graph until the last has ended: a layer of weight 0 costs less than a recompilation
            ends = ends[-1:] * len(ends)
        return tuple(step for step, end in enumerate(ends) if self.intermediate == "constant" or progress < end)

    def forward(
        self, hidden: Tensor, taps: dict[int, Tensor], embedding: EmbeddingTables, targets: Tensor, mask: Tensor | None, progress: float
    ) -> dict[str, Tensor]:
        goals = [future(targets, ahead, mask) for ahead in range(self.targets)]
        kind = torch.promote_types(hidden.dtype, torch.float32)  # a loss is at least float32
        counts = [(goal != IGNORED).sum().to(kind) for goal in goals]
        shares = [count / counts[0].clamp(min=1) for count in counts]

        def loss(x: Tensor, layer: int, target: int) -> Tensor:
            _, found = self.classifiers[_name(layer, target)](x, embedding, goals[target - 1], None)  # E31
            return found["cross_entropy"] * shares[target - 1]  # E35

        def later(x: Tensor, layer: int) -> Tensor:
            return torch.stack([loss(x, layer, target) for target in range(2, self.targets + 1)]).sum() * self.future_weight

        found: dict[str, Tensor] = {}
        if self.targets > 1:
            found["future"] = later(hidden, self.last)
        if taps:
            weights = self.weights(progress).to(kind).to(hidden.device)
            terms = [weights[t] * (loss(x, t + 1, 1) + (later(x, t + 1) if self.targets > 1 else 0)) for t, x in taps.items()]
            found["intermediate"] = torch.stack(terms).sum()  # E32
        return found

    def weights(self, progress: float) -> Tensor:
        """The weights of the intermediate layers, from the shallowest."""
        return SCHEDULES[self.intermediate](torch.tensor(self.ends, dtype=torch.float64), progress)


def future(targets: Tensor, ahead: int, mask: Tensor | None) -> Tensor:
    """Targets (batch, length) shifted by `ahead` real tokens of the row, -100 where the row ends before."""
    if mask is None or mask.shape != targets.shape:
        return F.pad(targets[:, ahead:], (0, min(ahead, targets.shape[1])), value=IGNORED)
    packed = compact(mask)
    moved = future(packed.apply(targets.masked_fill(~mask, IGNORED)), ahead, None)
    return packed.undo(moved).masked_fill(~mask, IGNORED)


def _name(layer: int, target: int) -> str:
    return f"layer{layer}_target{target}"
