"""The call of FlexAttention: one kernel, compiled by torch, for scores and masks that are functions of indices.

`flex_attention` is the only place of the library that calls it. A device may register a kernel of its own: the test device registers one
that counts launches, and tests on the CPU one that computes the equation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) -> whether the query may see the key. Indices are int32 scalars; tensors may be captured."""
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query, key) -> the score with a term added; captured tensors may require gradients."""


class Kernel(Protocol):
    """Attention (batch, heads, queries, value_dim), and the natural log-sums (batch, heads, queries), minus infinity without keys."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None
    ) -> tuple[Tensor, Tensor]: ...


KERNELS: dict[str, Kernel] = {}
"""Kernels by the type of device; others use torch's compiled FlexAttention."""


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None = None
) -> tuple[Tensor, Tensor]:
    """Attention (batch, heads, queries, value_dim) and its natural log-sums (batch, heads, queries); a row without keys has 0 and -inf."""
    return KERNELS.get(q.device.type, compiled)(q, k, v, block_mask, scale, score_mod)


@contextmanager
def use_kernel(device_type: str, kernel: Kernel) -> Iterator[None]:
    """A context in which a type of device uses another kernel."""
    before = KERNELS.get(device_type)
    KERNELS[device_type] = kernel
    try:
        yield
    finally:
        if before is None:
            del KERNELS[device_type]
        else:
            KERNELS[device_type] = before


def compiled(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None) -> tuple[Tensor, Tensor]:
    """torch's FlexAttention, compiled; inside a compiled model it is a part of its graph."""
    if torch.compiler.is_compiling():
        return _attention(q, k, v, block_mask, scale, score_mod)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: tuple[Tensor, Tensor] = _compiled()(q, k, v, block_mask, scale, score_mod)
    return found


def _attention(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.flex_attention import AuxRequest
    from torch.nn.attention.flex_attention import flex_attention as attention

    found: Any = attention(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scale, return_aux=AuxRequest(lse=True))
    return found[0], found[1].lse


@lru_cache(maxsize=1)
def _compiled() -> Any:
    """The compiled FlexAttention: without compilation it would compute the full matrix of scores."""
    return torch.compile(_attention, fullgraph=True)
