"""Copies between the host and a device: several tensors with one wait, and batches without one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from formers.core.devices import on_host


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the host, detached. Those of another device are copied together, so that the host waits once."""
    there = {name: x.detach() for name, x in tensors.items()}
    far = {name: x for name, x in there.items() if not on_host(x)}
    if not far:
        return there
    # As bytes: tensors of different types fit into one copy, to the bit.
    counts = {name: x.numel() * x.element_size() for name, x in far.items()}
    copied = torch.cat([x.contiguous().view(-1).view(torch.uint8) for x in far.values()]).cpu()
    pieces = torch.split(copied, list(counts.values()))
    for (name, x), piece in zip(far.items(), pieces, strict=True):
        there[name] = piece.clone().view(x.dtype).view(x.shape)  # a clone is aligned
    return there


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors of a batch on a device; the host does not wait for the copies."""
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}
