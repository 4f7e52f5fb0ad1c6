"""Ablations: the residual connection without the norm, and the norm without the residual connection."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from formers.residual import NormOnly, Plain, PostNorm, PreNorm
from helpers import close


def test_the_sum_alone():
    x, y = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    join = Plain().build(8, 0.5).double().eval()
    close(join.merge(x, y), x + y)
    close(join.prenorm(x), x)
    assert list(join.parameters()) == []
    assert [Plain(of=norm).gain(4) for norm in ("pre", "post")] == [PreNorm().gain(4), PostNorm().gain(4)]
    assert PreNorm().gain(4) != PostNorm().gain(4)


def test_the_norm_alone():
    x, y = torch.randn(2, 3, 8, dtype=torch.float64), 5 * torch.randn(2, 3, 8, dtype=torch.float64)
    join = NormOnly().build(8, 0.5).double().eval()
    close(join.merge(x, y), F.layer_norm(y, (8,)))
    close(join.prenorm(x), x)
    assert isinstance(NormOnly().build_final(8), torch.nn.Identity)


def test_the_norm_alone_before_the_sublayer():
    x, y = 3 * torch.randn(2, 3, 8, dtype=torch.float64), 5 * torch.randn(2, 3, 8, dtype=torch.float64)
    part = NormOnly(of="pre")
    join = part.build(8, 0.5).double().eval()
    close(join.prenorm(x), F.layer_norm(x, (8,)))
    close(join.merge(x, y), y)
    assert isinstance(part.build_final(8), torch.nn.LayerNorm)
    assert part.gain(4) == PreNorm().gain(4)
