"""Which executor would run on another device, which need not be present.

The choice depends on shapes, dtypes and the capabilities of the device, not on values. So it is made for meta tensors, without values,
in a context in which the meta device has the capabilities of the other device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from formers.attention.attend import Verdict
from formers.core import FormersError, nearest
from formers.core.devices import assume_capabilities, capabilities
from formers.inspect.measure.costs import Layers, PassCost
from formers.training.device import pick_device

KINDS = ("cpu", "cuda", "mps", "xpu")
"""The types of device that can be explained."""
SUBSTITUTE = "meta"
HERE = "cpu"
"""The type of the device that costs are counted on."""


def device_kind(name: str) -> str:
    """The kind of a device: cuda of cuda:1; of auto, that of the best available device."""
    kind = pick_device(name).type if name == "auto" else name.partition(":")[0]
    if kind not in KINDS:
        raise FormersError(f"device={name!r} cannot be explained: {nearest(kind, [*KINDS, 'auto'])}")
    return kind


@contextmanager
def as_on(kind: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """A context with a function that replaces a tensor by one without values, whose device has the capabilities of a kind of device.

    On the CPU a tensor stays as it is.
    """
    if kind == HERE:
        yield lambda x: x
        return

    def move(x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype, device=SUBSTITUTE, requires_grad=x.requires_grad)

    with assume_capabilities(SUBSTITUTE, capabilities(torch.device(kind))):
        yield move


def layers_on(step: PassCost, kind: str, training: bool = True) -> Layers:
    """The executors of a pass on a kind of device; layers that are computed alike on every device have those of the CPU."""
    if kind == HERE:
        return step.executors
    found: dict[str, Mapping[int, tuple[Verdict, ...]]] = {}
    with as_on(kind) as move, torch.set_grad_enabled(training):
        for name, by_step in step.executors.items():
            others = step.other_devices.get(name, {})
            found[name] = {n: _named(others[n](move), kind) if n in others else own for n, own in by_step.items()}
    return found


def _named(verdicts: tuple[Verdict, ...], kind: str) -> tuple[Verdict, ...]:
    """The verdicts with the name of the device instead of the name of its substitute."""
    return tuple(v if v.why_not is None else v._replace(why_not=v.why_not.replace(f" on {SUBSTITUTE}", f" on {kind}")) for v in verdicts)
