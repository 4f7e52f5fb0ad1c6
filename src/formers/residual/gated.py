"""Gated residual connections with the norm at the input of the sublayer (GTrXL; Parisotto et al., 2020, section 3).

x' = g(x, y),  y = Drop(ReLU(F(LN(x))))        identity map reordering; a memory is normalised by the same LN         E110

With W, U (d, d), x the input of the sublayer (the skip) and y the update:

sum       g = x + y                                          TrXL-I                                                   E111
input     g = sigmoid(W x) * x + y                                                                                    E112
output    g = x + sigmoid(W x - b) * y                                                                                E113
highway   s = sigmoid(W x + b);  g = s * x + (1 - s) * y                                                              E114
sigtanh   g = x + sigmoid(W y - b) * tanh(U y)                                                                        E115
gru       r = sigmoid(W_r y + U_r x)                                                                                  E116
          z = sigmoid(W_z y + U_z x - b)                                                                              E117
          h = tanh(W_g y + U_g (r * x));  g = (1 - z) * x + z * h                                                     E118

Without the ReLU, a pre-norm sublayer would end in two consecutive linear maps. The matrices have no biases; b is a learned vector
initialised to `bias`: the larger it is, the closer a block starts to the identity map. By default there is no final norm. Under autocast a
factor of x is computed in the type of x: rounded to half precision, it would multiply the stream by its error in every sublayer.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import PositiveFloat, model_validator
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Self

from formers.core import FormersError
from formers.core.initial import draw
from formers.residual.base import Residual, ResidualModule
from formers.residual.norm import EPSILON, NormResidual

Kind = Literal["gru", "output", "input", "highway", "sigtanh", "sum"]
BIASES: dict[Kind, float] = {"gru": 2.0, "output": 1.0, "highway": 1.0, "sigtanh": 1.0}
"""The initial b of each gate, as in the paper; the other gates have none."""


class Gated(Residual):
    """A gate instead of the sum; kind="sum" is the plain sum with the reordered norm (TrXL-I)."""

    gate: Kind = "gru"
    """The gate; Gated(kind=...) means the same. The field is not called `kind` because in JSON that is the name of the part."""
    bias: float | None = None
    """The initial value of the gate's bias b; by default 2 for gru and 1 for the others."""
    epsilon: PositiveFloat = EPSILON
    """Added to the variance in every LayerNorm of the stack."""
    final: bool = False
    """Whether there is a LayerNorm between the last block and the head."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("kind", cls.__name__) != cls.__name__:
            return {**{name: value for name, value in fields.items() if name != "kind"}, "gate": fields["kind"]}
        return fields

    @property
    def kind(self) -> Kind:
        """The gate."""
        return self.gate

    @model_validator(mode="after")
    def _check_bias(self) -> Self:
        if self.bias is not None and self.gate not in BIASES:
            raise FormersError(f"bias={self.bias} does not apply to kind={self.gate!r}, which has no bias: omit it, or use kind='gru'.")
        return self

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return GATES[self.gate](dim, dropout, self.epsilon, BIASES.get(self.gate, 0.0) if self.bias is None else self.bias)

    def build_final(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, self.epsilon) if self.final else nn.Identity()


class GatedResidual(NormResidual):
    """g(x, Drop(ReLU(y))), where y = F(LN(x)); with the sum as the gate."""

    matrices: tuple[tuple[str, int], ...] = ()
    """The names of the gate's matrices, and how many (dim, dim) matrices are stacked in each."""

    def __init__(self, dim: int, dropout: float, epsilon: float, bias: float) -> None:
        super().__init__(dim, dropout, epsilon)
        for name, count in self.matrices:
            weight = nn.Parameter(torch.empty(count * dim, dim))
            for block in torch.split(weight.data, dim):
                draw(block)
            self.register_parameter(name, weight)
        if self.biased:
            self.bias = nn.Parameter(torch.full((dim,), float(bias)))

    @property
    def biased(self) -> bool:
        """Whether the gate has a bias."""
        return False

    def prenorm(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return self.gate(x, self.dropped(torch.relu(y)))  # E110

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        """x' (..., dim) from the sublayer's input x and the update y, each (..., dim)."""
        return x + y  # E111


class InputGate(GatedResidual):
    """sigmoid(W x) * x + y."""

    w: Tensor
    matrices = (("w", 1),)

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(x, self.w).to(x.dtype)) * x + y  # E112


class _Biased(GatedResidual):
    """The common code of gates with a bias."""

    @property
    def biased(self) -> bool:
        return True


class OutputGate(_Biased):
    """x + sigmoid(W x - b) * y."""

    w: Tensor
    matrices = (("w", 1),)

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.sigmoid(F.linear(x, self.w) - self.bias) * y  # E113


class HighwayGate(_Biased):
    """s * x + (1 - s) * y, with s = sigmoid(W x + b)."""

    w: Tensor
    matrices = (("w", 1),)

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        s = torch.sigmoid(F.linear(x, self.w, self.bias).to(x.dtype))
        return s * x + (1 - s) * y  # E114


class SigTanhGate(_Biased):
    """x + sigmoid(W y - b) * tanh(U y)."""

    w: Tensor
    u: Tensor
    matrices = (("w", 1), ("u", 1))

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.sigmoid(F.linear(y, self.w) - self.bias) * torch.tanh(F.linear(y, self.u))  # E115


class GRUGate(_Biased):
    """A GRU with the state x and the input y, the update; w stacks W_r, W_z, W_g and u stacks U_r, U_z."""

    w: Tensor
    u: Tensor
    u_g: Tensor
    matrices = (("w", 3), ("u", 2), ("u_g", 1))

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        (wr, wz, wg), (ur, uz) = F.linear(y, self.w).chunk(3, dim=-1), F.linear(x, self.u).chunk(2, dim=-1)
        r = torch.sigmoid(wr + ur)  # E116
        z = torch.sigmoid(wz + uz - self.bias)  # E117
        return (1 - z) * x + z * torch.tanh(wg + F.linear(r * x, self.u_g))  # E118


GATES: dict[Kind, type[GatedResidual]] = {
    "sum": GatedResidual, "input": InputGate, "output": OutputGate, "highway": HighwayGate, "sigtanh": SigTanhGate, "gru": GRUGate,
}  # fmt: skip
