"""A gate instead of the sum of a residual connection (E111-E118): x' = g(x, y)."""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import FormersError
from formers.core.part import checked
from formers.layers.base import check_vectors
from formers.residual import Gated as GatedPart
from formers.residual.gated import GATES, GatedResidual, Kind


class Gated(nn.Module):
    """gate(x, y) returns g(x, y) (..., dim) for the sublayer's input x and the update y (..., dim), as in GTrXL.

    kind: "gru", "output", "input", "highway", "sigtanh" or "sum". bias: the initial bias of the gate, by default 2 for gru and 1 for
    others; the larger, the closer g(x, y) starts to x. GTrXL computes x = gate(x, relu(F(norm(x)))): norm, F and ReLU are not included.
    """

    def __init__(self, dim: int, kind: Kind = "gru", bias: float | None = None) -> None:
        super().__init__()
        self.dim = checked("dim", PositiveInt, dim)
        if kind not in GATES:
            raise FormersError(f"kind={kind!r} is not a gate: give one of {', '.join(GATES)}.")
        residual = GatedPart(gate=kind, bias=bias).build(self.dim, 0.0)
        assert isinstance(residual, GatedResidual)
        residual.norm = nn.Identity()  # type: ignore[assignment]  # the norm before the sublayer is not part of the gate
        self.residual = residual

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """g(x, y)."""
        weight = next(self.parameters(), x)
        check_vectors("x", x, self.dim, weight, None)
        check_vectors("y", y, self.dim, weight, None)
        if x.shape != y.shape:
            raise FormersError(f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}: give both the same shape.")
        return self.residual.gate(x, y)
