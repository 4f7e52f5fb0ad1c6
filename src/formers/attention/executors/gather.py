"""Attention of one query, over the keys that its pattern reads: a token of decoding costs what is read, however much is kept.

Those keys are known as plain integers (`Pattern.reads`): a stretch of the last ones, and teeth at regular distances before it. They are
put side by side, which copies them and nothing else, and the fused kernel does the rest.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from formers.attention.executors import sdpa
from formers.attention.request import Request
from formers.core import ExplicitPositions, Range
from formers.core.positions import StaticPositions, find_slices, take_slices
from formers.score import ByDistance


def unsupported(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why keys cannot be gathered; None if they can."""
    if request.first is not None:
        return "rows hold several episodes, of which a query sees its own"
    if not isinstance(request.queries, Range) or request.queries.length != 1:
        return "there is more than one query, or each row's stands elsewhere"
    if isinstance(request.keys, ExplicitPositions):
        return "the keys of each row stand elsewhere"
    if request.keys.length == 0:
        return "there are no keys at all"
    wanted = request.pattern.reads(request.queries.start)
    return None if wanted is None or find_slices(request.keys, wanted) is not None else "not all of the keys that are read are there"


def not_worthwhile(request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why gathering is not worthwhile; None if it is."""
    assert isinstance(request.queries, Range)
    wanted = request.pattern.reads(request.queries.start)
    if wanted is None:
        return "the pattern may read all keys that there are"
    # No figures: torch.compile, to whom lengths are symbols, cannot put them into words.
    return "the pattern reads more than half of the keys that there are" if 2 * wanted.length > request.keys.length else None


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
    """How many keys are read, and how the kernel is told which of them each head sees."""
    keys = _read(request)
    return f"{keys.length:,} of {request.keys.length:,} keys, {request._replace(keys=keys).mask_words()}"


def _held(request: Request) -> StaticPositions:
    """The positions of the keys that there are."""
    assert not isinstance(request.keys, ExplicitPositions)
    return request.keys


def _read(request: Request) -> StaticPositions:
    """The positions of the keys that the query reads."""
    assert isinstance(request.queries, Range)
    wanted = request.pattern.reads(request.queries.start)
    return _held(request) if wanted is None else wanted
