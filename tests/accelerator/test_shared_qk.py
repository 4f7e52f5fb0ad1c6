"""Full shared-QK attention on the test device equals that on the CPU, padded or not, and reads nothing."""

from __future__ import annotations

import torch

import formers
from accelerator.device import NAME, use_test_device
from formers.attention.shared_qk import SharedQK
from helpers import close, sweep


@sweep("member", ["decoder", "encoder"])
@sweep("n", [1, 7, 520])
def test_shared_qk(member: str, n: int) -> None:
    spec = formers.spec(member, vocab=11, dim=32, heads=2, layers=1, length=n, dropout=0.0).replace(attention=SharedQK())
    model = formers.build(spec).double()
    tokens = torch.randint(11, (2, n))
    mask = torch.arange(n) < torch.tensor([[n], [1]])
    wanted = [model(tokens).hidden, model(tokens, mask=mask).hidden]
    with use_test_device() as counts:
        there = model.to(NAME)
        here = tokens.to(NAME), mask.to(NAME)
        counts.reset()
        found = [there(here[0]).hidden, there(here[0], mask=here[1]).hidden]
        assert counts.waits == 0, str(counts)
        found = [x.cpu() for x in found]
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
