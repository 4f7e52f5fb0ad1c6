"""The paths of an accelerator with FlexAttention, run on the CPU by forcing them, with small blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from accelerator.flex_equation import equation
from formers.attention.executors import dense, flex
from formers.attention.executors.flex_kernel import Kernel, use_kernel
from formers.attention.request import Request
from formers.core.devices import Capabilities, assume_capabilities
from helpers import close, gradients

BLOCK = 8
"""Positions per block."""
WIDTH = 16
"""The width of a head: narrower ones have no kernel."""


@contextmanager
def forced(kernel: Kernel = equation, block: int = BLOCK) -> Iterator[None]:
    """A context in which the CPU has FlexAttention in both passes, computed by a kernel, with blocks of a given size."""
    with pytest.MonkeyPatch.context() as patch, assume_capabilities("cpu", Capabilities(flex=True)), use_kernel("cpu", kernel):
        patch.setattr(flex, "BLOCK", block)
        patch.setattr(flex, "SHORTEST", 4 * block)
        yield


@contextmanager
def cpu_gradients() -> Iterator[None]:
    """A context in which torch's FlexAttention does not refuse gradients on a CPU: its kernels have none, its graphs do."""
    import torch.nn.attention.flex_attention as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_validate_device", lambda *_: None)
        yield


def inputs(heads: int, n: int, m: int | None = None, batch: int = 2, value_dim: int = WIDTH, grad: bool = True) -> list[Tensor]:
    """Random q, k and v in float64."""
    shapes = ((n, WIDTH), (n if m is None else m, WIDTH), (n if m is None else m, value_dim))
    return [torch.randn(batch, heads, *shape, dtype=torch.float64, requires_grad=grad) for shape in shapes]


def equals_dense(request: Request, qkv: Sequence[Tensor], more: Sequence[Tensor] = (), tolerance: float = 1e-10) -> Tensor:
    """Fails unless `flex` and `dense` agree in values and in the gradients of q, k, v and `more`; the values."""
    q, k, v = qkv
    why = flex.unsupported(request, q, k, v)
    assert why is None, why
    found, wanted = flex.run(q, k, v, request), dense.run(q, k, v, request)
    close(found, wanted, tolerance)
    slopes = [x for x in (*qkv, *more) if x.requires_grad]
    for one, other in zip(gradients(found, slopes), gradients(wanted, slopes), strict=True):
        close(one, other, tolerance)
    return found


class Counting:
    """A backend of torch.compile that keeps its graphs and runs them eagerly; both passes are graphs, as for a compiler, if `both`."""

    def __init__(self, both: bool = False) -> None:
        self.graphs: list[Any] = []
        self.both = both

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        self.graphs.append(graph)
        return aot_eager(graph, inputs) if self.both else graph.forward
