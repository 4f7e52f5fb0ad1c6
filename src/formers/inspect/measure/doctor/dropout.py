"""Whether attention dropout of an executor is correct, although it is not known in advance which weights it drops.

o_ic = m_ij a_ij / (1 - p)        m_ij in {0, 1},  P(m_ij = 0) = p,  j = the one key whose value is 1 in column c

So every output is 0 or a_ij / (1 - p), from which m_ij is read; the gradients follow from m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from formers.attention.executors import dense
from formers.inspect.measure.doctor.cases import Case, on_device, rounded_case, uneven, watched
from formers.inspect.measure.doctor.compare import difference

SIGMAS = 6.0
"""Standard deviations by which the share of dropped weights may differ from the rate."""
VISIBLE = 0.01
"""Weights above this are counted."""


def compare_dropped(found: list[Tensor], case: Case, precision: str) -> dict[str, float]:
    """The differences of values and gradients; infinite where the share of dropped weights is not the rate."""
    if found[0].shape != case.tensors[0].shape:
        return {"values": math.inf}
    values, dq, dk, dv = (x.cpu().to(torch.float64) for x in found)
    rate = case.request.dropout
    request, (q, k, _) = on_device(rounded_case(case, precision), "float64", "cpu")
    keys = watched(k.shape[2])
    columns = torch.arange(len(keys))
    whole = dense.weights(q, k, request._replace(dropout=0.0))[..., keys] / (1.0 - rate)
    values = values[..., : len(keys)]
    kept = ((values - whole).abs() < values.abs()).detach()
    right = whole * kept
    slopes = uneven(found[0].cpu().to(torch.float64))[..., : len(keys)]
    wanted_dq, wanted_dk = torch.autograd.grad((right * slopes).sum(), [q, k])
    counted = (whole > VISIBLE).detach()
    number = int(counted.sum())
    share = ((~kept) & counted).sum().item() / max(number, 1)
    expected = abs(share - rate) <= SIGMAS * math.sqrt(rate * (1 - rate) / max(number, 1))
    return {
        "values": difference(values, right.detach()),
        "gradient of q": difference(dq, wanted_dq),
        "gradient of k": difference(dk, wanted_dk),
        "gradient of v": difference(dv[:, :, keys, columns], (right * slopes).sum(dim=2).detach()),
        f"share of dropped weights ({share:.0%} instead of {rate:.0%})": 0.0 if expected else math.inf,
    }
