"""Image positions: half of the vector for the row, half for the column and channel (Parmar et al., 2018, section 3.1).

x_t <- x_t + [f(y_t) ; f(C x_t + c_t)]        row y, column x, channel c of the t-th cell; C channels        E76

f is a table of learned vectors of half the width, or sines and cosines with K = dim/4 time scales from 1 to 10,000, as in
tensor2tensor: f(i) = [sin(i w_1), ..., sin(i w_K), cos(i w_1), ..., cos(i w_K)], w_k = 10000^(-(k-1)/(K-1)).
Rows and columns are those of the image, in any generation order.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError, Positions, Range, Raster, Sizes
from formers.core.devices import widest_float
from formers.core.tables import cached
from formers.position.base import Position, PositionModule


class ImagePosition(Position):
    """A row vector concatenated with a column-and-channel vector for each cell, added once, before the first layer."""

    raster: Raster
    form: Literal["sinusoidal", "learned"] = "sinusoidal"

    @property
    def bounded(self) -> bool:
        return True

    def table_length(self, length: int) -> int:
        return self.raster.cells

    def build(self, sizes: Sizes) -> PositionModule:
        return Sines(self.raster, sizes.dim) if self.form == "sinusoidal" else Tables(self.raster, sizes)


class _OfCells(PositionModule):
    """Adds concatenated row and column vectors."""

    def __init__(self, raster: Raster) -> None:
        super().__init__()
        self.raster = raster

    def halves(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of rows (height, dim/2) and of columns and channels (width * channels, dim/2)."""
        raise TypeError(f"{type(self).__name__} has no vectors: define halves(like).")

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        raster = self.raster
        if positions.stop > raster.cells:
            raise FormersError(
                f"{positions.stop} positions do not fit an image of {raster.height} x {raster.width} x {raster.channels} = "
                f"{raster.cells} cells: give one image per row."
            )
        return x + self.vectors(positions, x)

    def vectors(self, positions: Positions, like: Tensor) -> Tensor:
        """The vectors (..., dim) of positions."""
        rows, columns = _places(self.raster, like.device)
        if isinstance(positions, Range):
            row, column = rows[positions.start : positions.stop], columns[positions.start : positions.stop]
        else:
            i = positions.tensor(like.device).clamp(min=0)
            row, column = rows[i], columns[i]
        down, across = self.halves(like)
        return torch.cat([F.embedding(row, down), F.embedding(column, across)], dim=-1)  # E76


class Sines(_OfCells):
    """Fixed sines and cosines."""

    def __init__(self, raster: Raster, dim: int) -> None:
        super().__init__(raster)
        self.dim = dim

    def vectors(self, positions: Positions, like: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().vectors(positions, like)
        table = _table(self.raster, self.dim, like.dtype, like.device)
        return (
            table[positions.start : positions.stop] if isinstance(positions, Range) else table[positions.tensor(like.device).clamp(min=0)]
        )

    def halves(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return _sines(self.raster, self.dim, like.dtype, like.device)


class Tables(_OfCells):
    """Learned vectors."""

    def __init__(self, raster: Raster, sizes: Sizes) -> None:
        super().__init__(raster)
        self.row = nn.Parameter(torch.randn(raster.height, sizes.dim // 2) * sizes.spread)
        self.column = nn.Parameter(torch.randn(raster.width * raster.channels, sizes.dim - sizes.dim // 2) * sizes.spread)

    def halves(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return self.row, self.column


def waves(n: int, width: int, device: torch.device | None = None) -> Tensor:
    """f(0), ..., f(n-1) (n, width), in float64 if the device has it; zeros at the end if the width is odd or too small for both waves."""
    scales, dtype = width // 2, torch.float64 if device is None else widest_float(device)
    k = torch.arange(scales, dtype=dtype, device=device)
    angle = torch.arange(n, dtype=dtype, device=device)[:, None] * 10000.0 ** (-k / max(scales - 1, 1))
    return F.pad(torch.cat([angle.sin(), angle.cos()], dim=1), (0, width - 2 * scales))


@cached(16)
def _places(raster: Raster, device: torch.device) -> tuple[Tensor, Tensor]:
    """The row of every position, and its column times channels plus channel, each (cells,)."""
    with torch.inference_mode(False):  # a table first computed in evaluation is also used in training
        row, column, channel = (torch.as_tensor(each, device=device) for each in raster.cell(torch.arange(raster.cells, device=device)))
        return row, column * raster.channels + channel


@cached(16)
def _table(raster: Raster, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The sines and cosines of every position (cells, dim)."""
    with torch.inference_mode(False):
        host = torch.device("cpu")  # which has float64
        (row, column), (down, across) = _places(raster, host), _sines(raster, dim, dtype, host)
        return torch.cat([down[row], across[column]], dim=1).to(device)


def _sines(raster: Raster, dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The sines and cosines of rows, and of columns and channels."""
    rows, columns = waves(raster.height, dim // 2, device), waves(raster.width * raster.channels, dim - dim // 2, device)
    return rows.to(dtype), columns.to(dtype)
