"""Reversible residual layers with user-defined functions (Gomez et al., 2017): the backward pass needs no saved activations.

y_1 = x_1 + f(x_2)        y_2 = x_2 + g(y_1)              two half steps (E95)
x_2 = y_2 - g(y_1)        x_1 = y_1 - f(x_2)              recomputed in the backward pass
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from formers.core import Context, FormersError, Range
from formers.core.state import LayerState
from formers.model.max_length import check_rows
from formers.model.reversible import HalfStep, run_reversible


class _Step(HalfStep):
    """A half step whose function is a user's module: `block` is the function to call, and `past` the module."""

    block: Callable[[Tensor], Tensor]  # type: ignore[assignment]
    past: nn.Module  # type: ignore[assignment]

    @property
    def modules(self) -> Any:
        return self.past, self.past

    def slices(self, length: int) -> list[slice]:
        return [slice(0, length)]

    def added(self, x: Tensor, context: Context, kind: torch.dtype) -> tuple[Tensor, LayerState | None]:
        return self.block(x.to(kind)), None


class Reversible(nn.Module):
    """Reversible(f, g)(x1, x2) returns (y1, y2), with y1 = x1 + f(x2) and y2 = x2 + g(y1), each (batch, length, dim).

    f and g are modules that map (batch, length, dim) to the same shape. Training saves only y1 and y2: the backward pass computes x2
    and x1 from them, and calls g and f again, with the same dropout. Further pairs can be added to the same layer, Reversible(f, g, f2,
    g2, ...): then only the outputs of the last are saved, at any depth.

    Gradients flow to x1, x2 and the parameters of f and g; other tensors used by f or g get none. f and g must not depend on earlier
    calls, as BatchNorm's running statistics do. mask (batch, length) is passed to those that take an argument of that name, as the layers
    of this package do.
    """

    def __init__(self, *functions: nn.Module) -> None:
        super().__init__()
        if not functions or len(functions) % 2 or not all(isinstance(f, nn.Module) for f in functions):
            given = ", ".join(type(f).__name__ for f in functions) or "nothing"
            raise FormersError(f"Reversible takes pairs of modules, but got {given}: give Reversible(f, g).")
        self.functions = nn.ModuleList(functions)
        self.masked = ["mask" in inspect.signature(f.forward).parameters for f in functions]

    def forward(self, x1: Tensor, x2: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(y1, y2)."""
        for name, x in (("x1", x1), ("x2", x2)):
            if not isinstance(x, Tensor) or x.dim() != 3 or not x.is_floating_point():
                found = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
                raise FormersError(f"{name} is {found}: give floats of shape (batch, length, dim).")
        if x1.shape != x2.shape or x1.dtype != x2.dtype:
            raise FormersError(
                f"x1 is {x1.dtype} of shape {tuple(x1.shape)} and x2 {x2.dtype} of shape {tuple(x2.shape)}: give both the same."
            )
        check_rows(x1, mask, "layer")
        steps = [_Step(cast(Any, partial(self.call, i, mask=mask)), i, 0, cast(Any, f)) for i, f in enumerate(self.functions)]
        context = Context(Range(0, x1.shape[1]))
        first, second, _ = run_reversible(steps, x1, context, list(self.parameters()), lambda first, second: first, x2)
        return first.to(x1.dtype), second.to(x2.dtype)

    def call(self, i: int, x: Tensor, mask: Tensor | None) -> Tensor:
        """f_i(x); raises FormersError if its shape differs from that of x."""
        f = self.functions[i]
        y = f(x, mask=mask) if mask is not None and self.masked[i] else f(x)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            found = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
            raise FormersError(
                f"function {i} ({type(f).__name__}) returned {found} for x of shape {tuple(x.shape)}: return the same shape."
            )
        return y
