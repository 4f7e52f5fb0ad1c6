"""Vector inputs: x_i = W f_i + b."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import FormersError, Positions
from formers.inputs.base import Input, InputModule, InputSizes, Untied


class Features(Input):
    """Floats (batch, length, features), mapped linearly."""

    @property
    def vectors(self) -> bool:
        return True

    def shape(self, features: int | None) -> tuple[int, ...]:
        assert features is not None
        return (features,)

    def build(self, sizes: InputSizes) -> InputModule:
        return LinearInput(sizes)


class LinearInput(Untied):
    """A linear map of float inputs to the model width."""

    def __init__(self, sizes: InputSizes) -> None:
        super().__init__()
        assert sizes.features is not None
        self.features = sizes.features
        self.into = nn.Linear(sizes.features, sizes.dim)

    def check(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != self.features or not x.is_floating_point():
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise FormersError(f"features are {given}: give floats of shape (batch, length, {self.features}).")
        return x

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        return self.into(self.check(x).to(self.into.weight.dtype))
