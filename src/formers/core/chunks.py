"""Chunked computation: intermediate activations exist for one chunk at a time, in the forward and in the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(compute: Callable[..., Tensor], tensors: tuple[Tensor, ...], chunk: int, dim: int = 0, draws: bool = False) -> Tensor:
    """compute(*tensors) in chunks of `chunk` indices along a dimension, concatenated; compute must treat each index independently.

    With gradients, each chunk is checkpointed: the backward pass recomputes it, and with `draws` replays the same random numbers.
    Under torch.compile there is one chunk: their number would be a constant of the graph, so that every length would need a graph.
    """
    if torch.compiler.is_compiling() or tensors[0].shape[dim] <= chunk:
        return compute(*tensors)
    slices = zip(*(torch.split(tensor, chunk, dim) for tensor in tensors), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([compute(*few) for few in slices], dim)
    return torch.cat([checkpoint(compute, *few, use_reentrant=False, preserve_rng_state=draws) for few in slices], dim)
