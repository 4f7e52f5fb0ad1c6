"""The residual slot: what a sublayer is given of the stream x, and how its answer y joins x."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import Slot


class Join(nn.Module):
    """Around one sublayer: x' = leave(x, sublayer(enter(x)))."""

    def enter(self, x: Tensor) -> Tensor:
        """What the sublayer is given."""
        return x

    @property
    def enters_as_it_is(self) -> bool:
        """Whether the sublayer is given x itself."""
        return type(self).enter is Join.enter

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """How its answer joins the stream."""
        return y


class DropJoin(Join):
    """A join that drops some of the sublayer's answer in training."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def dropped(self, y: Tensor) -> Tensor:
        """Drop(y); y itself in evaluation, without the price of calling a module."""
        return self.drop(y) if self.training else y


class Residual(Slot):
    """How a sublayer joins the stream."""

    def build(self, dim: int, dropout: float) -> Join:
        """The join around one sublayer."""
        raise TypeError(f"{type(self).__name__} builds no join: define build(dim, dropout).")

    def build_final(self, dim: int) -> nn.Module:
        """The module between the last block and the head."""
        return nn.Identity()

    def width(self, dim: int) -> int:
        """The width of what `build_final` gives to the head, or to a decoder."""
        return dim

    def gain(self, steps: int) -> float:
        """The factor on the initial output projections of a stack of `steps` blocks."""
        return 1.0


class Bare(Residual):
    """No residual connection and no norm (an ablation): x' = Drop(y)."""

    def build(self, dim: int, dropout: float) -> Join:
        return BareJoin(dropout)


class BareJoin(DropJoin):
    """x' = Drop(y)."""

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return self.dropped(y)
