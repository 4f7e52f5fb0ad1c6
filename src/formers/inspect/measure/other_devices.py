"""Which executor runs on another device, although that device is not here.

The choice depends on shapes, dtypes and what the device can do, not on values: it is made for meta tensors, which have no values, while
their device is assumed to have the capabilities of the other one.
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
"""The kinds of devices that can be asked for."""
STAND_IN = "meta"
HERE = "cpu"
"""The kind of the device that costs are counted on."""


def device_kind(name: str) -> str:
    """The kind of a device: cuda of cuda:1; of auto, that of the best device here."""
    kind = pick_device(name).type if name == "auto" else name.partition(":")[0]
    if kind not in KINDS:
        raise FormersError(f"device={name!r} cannot be explained: {nearest(kind, [*KINDS, 'auto'])}")
    return kind


@contextmanager
def as_on(kind: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """A context with a function that replaces a tensor by one without values, whose device can do what that kind of device can.

    On the CPU a tensor stays as it is.
    """
    if kind == HERE:
        yield lambda x: x
        return

    def move(x: Tensor) -> Tensor:
        return torch.empty(x.shape, dtype=x.dtype, device=STAND_IN, requires_grad=x.requires_grad)

    with assume_capabilities(STAND_IN, capabilities(torch.device(kind))):
        yield move


def layers_on(step: PassCost, kind: str, training: bool = True) -> Layers:
    """The executors of a pass on a kind of device; those of layers that are computed alike everywhere are those of the CPU."""
    if kind == HERE:
        return step.executors
    found: dict[str, Mapping[int, tuple[Verdict, ...]]] = {}
    with as_on(kind) as move, torch.set_grad_enabled(training):
        for name, by_step in step.executors.items():
            others = step.elsewhere.get(name, {})
            found[name] = {n: _named(others[n](move), kind) if n in others else own for n, own in by_step.items()}
    return found


def _named(verdicts: tuple[Verdict, ...], kind: str) -> tuple[Verdict, ...]:
    """The verdicts with the name of the device in place of the stand-in's."""
    return tuple(v if v.why_not is None else v._replace(why_not=v.why_not.replace(f" on {STAND_IN}", f" on {kind}")) for v in verdicts)
