"""Attention of one query over the keys that its pattern reads: the time of a decoding step depends on these, not on the cache size.

The positions of these keys are known as plain integers (`Pattern.reads`): the last ones, and blocks at regular distances before them.
They are copied into one tensor, which the fused kernel attends to.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from formers.attention.executors import sdpa
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.core.positions import StaticPositions, find_slices, take_slices
from formers.score import ByDistance


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why keys cannot be gathered; None if they can."""
    if request.first is not None:
        return "rows contain several episodes"
    if torch.compiler.is_compiling():
        return "torch.compile would make a graph for every layout of the keys that are read"
    if not isinstance(request.queries, Range) or request.queries.length != 1:
        return "there is more than one query, or the rows have different positions"
    if isinstance(request.keys, ExplicitPositions):
        return "the rows have different key positions"
    if request.keys.length == 0:
        return "there are no keys at all"
    wanted = request.pattern.reads(request.queries.start)
    return None if wanted is None or find_slices(request.keys, wanted) is not None else "some of the keys that are read are missing"


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why gathering is not worthwhile; None if it is."""
    assert isinstance(request.queries, Range)
    wanted = request.pattern.reads(request.queries.start)
    if wanted is None:
        return "the pattern may read all keys"
    return "the pattern reads more than half of the keys" if 2 * wanted.length > request.keys.length else None


def run(q: Tensor, k: Tensor, v: Tensor, request: Request) -> Tensor:
    """Attention over the keys that are read."""
    keys = _read(request)
    where = find_slices(_held(request), keys)
    assert where is not None, "unsupported() has checked this"
    valid = None if request.valid is None else take_slices(request.valid, where, dim=1)
    bias = request.bias
    if isinstance(bias, ByDistance):
        bias = replace(bias, keys=keys)
    elif bias is not None and bias.shape[3] != 1:
        bias = take_slices(bias, where, dim=3)
    few = request._replace(keys=keys, valid=valid, bias=bias)
    return sdpa.run(q, take_slices(k, where, dim=2), take_slices(v, where, dim=2), few)


def masks(request: Request) -> str:
    """The number of keys that are read, and how the kernel is masked."""
    keys = _read(request)
    return f"{keys.length:,} of {request.keys.length:,} keys, {request._replace(keys=keys).mask_words()}"


def _held(request: Request) -> StaticPositions:
    """The positions of the given keys."""
    assert not isinstance(request.keys, ExplicitPositions)
    return request.keys


def _read(request: Request) -> StaticPositions:
    """The positions of the keys that the query reads."""
    assert isinstance(request.queries, Range)
    wanted = request.pattern.reads(request.queries.start)
    return _held(request) if wanted is None else wanted
