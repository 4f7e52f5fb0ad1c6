"""Which executor runs on a device for a few common requests, without running any."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from formers.attention.attend import choose
from formers.attention.request import Request
from formers.core import Range
from formers.inspect.measure.other_devices import as_on
from formers.inspect.measure.part_text import spell
from formers.patterns import BigBird, Causal, Full, Local, Strided
from formers.score import ByDistance

HEADS, WIDTH, LENGTH = 4, 64, 4096


def runs_on(device: torch.device) -> dict[str, str]:
    """The executor of each request in training, in float32 with heads of 64."""
    with FakeTensorMode():  # nothing is allocated
        asked = list(_requests())
    with as_on(device.type) as move:
        return {name: choose(request, move(q), move(k), move(v)).name for name, request, (q, k, v) in asked}


def _requests() -> Iterator[tuple[str, Request, tuple[Tensor, Tensor, Tensor]]]:
    """Requests over rows of 4,096 tokens, and their q, k and v."""
    q, k, v = (torch.empty(2, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3))
    everything, valid = Range(0, LENGTH), torch.empty(2, LENGTH, dtype=torch.bool)
    plain = Request(Full(), everything, everything, HEADS, WIDTH**-0.5)
    window, bigbird = Local(window=128), BigBird(block=64).at(0)
    term = ByDistance(q, k[0], None, everything, everything)
    yield "Causal", plain._replace(pattern=Causal()), (q, k, v)
    yield "Full with padding", plain._replace(valid=valid), (q, k, v)
    yield spell(window), plain._replace(pattern=window), (q, k, v)
    yield f"{spell(window)} with dropout", plain._replace(pattern=window, dropout=0.1), (q, k, v)
    yield "Strided(stride=64)", plain._replace(pattern=Strided(stride=64)), (q, k, v)
    yield "BigBird(block=64)", plain._replace(pattern=bigbird.of(LENGTH)), (q, k, v)
    yield "BigBird(block=64) with padding", plain._replace(pattern=bigbird, valid=valid), (q, k, v)
    yield "Causal with a term by distance", plain._replace(pattern=Causal(), bias=term), (q, k, v)
    yield f"{spell(window)}, one new token", plain._replace(pattern=window, queries=Range(LENGTH - 1, 1)), (q[:, :, -1:], k, v)
