"""Relative positional scores (Dai et al., 2019, section 3.3), all four terms.

s_ij = ( q_i.k_j  +  q_i.(W_R r_{i-j})  +  u.k_j  +  v.(W_R r_{i-j}) ) / sqrt(d_h)
     = ( (q_i + u).k_j  +  (q_i + v).(W_R r_{i-j}) ) / sqrt(d_h)                                        E51
r_x  = sin(x / 10000^(2j/d)), then cos(x / 10000^(2j/d))          j = 0 ... d/2 - 1                     E53
x    = max(-clamp, min(i-j, clamp))      negative for later keys, which a causal model does not see

r is fixed, with all sines before all cosines, as in the authors' code. u and v have the width of a head; as in their code, all layers
share them unless `untied`. Distances beyond `clamp` get its encoding, so that a model can attend further back than in training.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from formers.core import Context, Positions, Sizes
from formers.core.devices import widest_float
from formers.core.initial import draw
from formers.core.positions import distances, distances_ahead
from formers.core.tables import cached, cached_table
from formers.score.base import Score, ScoreModule
from formers.score.distance import ByDistance


class Relative(Score):
    """Scores by content and by distance, with learned biases u and v."""

    clamp: PositiveInt | None = None
    untied: bool = False
    """Whether every layer has separate u and v."""

    def common(self, sizes: Sizes) -> nn.Module | None:
        return None if self.untied else Biases(sizes)

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule:
        return RelativeScore(sizes, self.clamp, common)


class Biases(nn.Module):
    """u and v (heads, 1, head_dim), the same for every query."""

    undecayed: ClassVar[tuple[str, ...]] = ("u_bias", "v_bias")

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.u_bias = nn.Parameter(torch.zeros(sizes.heads, 1, sizes.head_dim))
        self.v_bias = nn.Parameter(torch.zeros(sizes.heads, 1, sizes.head_dim))


class RelativeScore(ScoreModule):
    """The four terms: two through the queries, two by distance."""

    def __init__(self, sizes: Sizes, clamp: int | None, common: nn.Module | None) -> None:
        super().__init__()
        self.heads, self.clamp, self.causal = sizes.heads, clamp, sizes.causal
        self.r = nn.Linear(sizes.dim, sizes.heads * sizes.head_dim, bias=False)
        draw(self.r.weight, sizes.initialisation, 1.0)
        if common is None:
            self.biases = Biases(sizes)
        else:
            self.__dict__["biases"] = common  # owned by the stack

    def forward(self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int) -> tuple[Tensor, ByDistance]:
        queries, weight = context.positions, self.r.weight
        table = cached_table(weight, q.dtype, distances(queries, keys), self.table, ("back", self.clamp))
        ahead = None
        if not self.causal:
            ahead = cached_table(weight, q.dtype, distances_ahead(queries, keys), partial(self.table, ahead=True), ("ahead", self.clamp))[
                :, 1:
            ]
        return q + self.biases.u_bias, ByDistance((q + self.biases.v_bias) * scale, table, None, queries, keys, ahead=ahead)  # E51

    def table(self, distances: int, ahead: bool = False) -> Tensor:
        """W_R r (heads, distances, head_dim) for the distances 0, 1, ..., or with `ahead` for 0, -1, ..."""
        weight = self.r.weight
        far = distances if self.clamp is None else min(distances, self.clamp + 1)
        r = sinusoids(far, weight.shape[1], weight.dtype, weight.device)
        if ahead:  # sines change their sign; there are as many as cosines, or one more
            sines = (weight.shape[1] + 1) // 2
            r = torch.cat([-r[:, :sines], r[:, sines:]], dim=1)
        made = self.r(r).view(far, self.heads, -1).transpose(0, 1)
        if far == distances:
            return made
        return torch.cat([made, made[:, -1:].expand(-1, distances - far, -1)], dim=1)


@cached(16)
def _table(size: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a table first computed in evaluation is also used in training
        return sinusoid(torch.arange(size), dim).to(dtype).to(device)


def sinusoid(distances: Tensor, dim: int) -> Tensor:
    """r (..., dim) in the widest type of the device for integer distances (...): sines, then cosines."""
    even = torch.arange(0, dim, 2, dtype=widest_float(distances.device), device=distances.device)
    angle = distances.to(even.dtype)[..., None] / 10000.0 ** (even / dim)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :dim]  # E53


def sinusoids(size: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """r (size, dim) for the distances 0 ... size-1."""
    if torch.compiler.is_compiling():
        return sinusoid(torch.arange(size, device=device), dim).to(dtype)
    return _table(1 << max(size - 1, 255).bit_length(), dim, dtype, device)[:size]
