"""The device to compute on."""

from __future__ import annotations

import torch

from formers.core import FormersError


def pick_device(name: str, local: int = 0) -> torch.device:
    """The device of a name; auto takes an accelerator if there is one, a different one for each process."""
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = "cpu" if found is None else found.type
    try:
        device = torch.empty(0, device=name).device
        if device.type == "cuda":
            device = torch.device("cuda", local) if ":" not in name else device
            torch.cuda.set_device(device)
        return device
    except (RuntimeError, AssertionError):
        raise FormersError(f"device={name!r} is not available: use cpu, or auto for the best available device.") from None
