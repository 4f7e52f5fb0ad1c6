"""Rows computed a slice at a time, so that what is made on the way to the answer lives for one slice only, in either direction."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def by_slices(compute: Callable[..., Tensor], tensors: tuple[Tensor, ...], chunk: int, dim: int = 0, draws: bool = False) -> Tensor:
    """compute(*tensors) of every `chunk` places along a dimension, joined; it must treat each place alone.

    Where gradients flow, the backward pass computes each slice once more; with `draws`, it draws the same random numbers again.
    torch.compile decides itself what is computed again: it is given the slices plainly.
    """
    if tensors[0].shape[dim] <= chunk:
        return compute(*tensors)
    slices = zip(*(torch.split(tensor, chunk, dim) for tensor in tensors), strict=True)
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return torch.cat([compute(*few) for few in slices], dim)
    return torch.cat([checkpoint(compute, *few, use_reentrant=False, preserve_rng_state=draws) for few in slices], dim)
