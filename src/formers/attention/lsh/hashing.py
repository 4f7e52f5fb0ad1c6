"""Locality-sensitive hashing of queries (Kitaev et al., 2020, "Reformer", section 2; Andoni et al., 2015).

h(x) = argmax([x R; -x R])                R in R^{d_h x b/2} normal, one for each head and round; b buckets            E90
h(x) = h_1(x) + b_1 h_2(x) + ...          for factorised buckets b = b_1 b_2 ..., with separate rotations per factor   E91

Vectors of similar direction get the same bucket more often than others; their length does not matter. Many buckets would need wide
rotations: factors make them cheap. Padding has an extra bucket, after all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError
from formers.core.devices import capabilities, on_host
from formers.core.random import fresh_seed, generator
from formers.core.tables import cached

WIDEST = 64
"""More buckets than this are factorised: otherwise rotations would cost more than attention."""


class Hashed(NamedTuple):
    """The buckets of tokens in each round, and the tokens of each round sorted by bucket."""

    buckets: Tensor
    """(batch, heads, rounds, length) int32; padding has the largest."""
    order: Tensor
    """(batch, heads, rounds, length) int64: tokens sorted by bucket, then by position."""


def factors(buckets: int) -> tuple[int, ...]:
    """Two even factors of a number of buckets, as close to each other as possible; the number itself if it is small or has none."""
    if buckets <= WIDEST or buckets % 4:
        return (buckets,)
    half = buckets // 4
    small = next(f for f in range(math.isqrt(half), 0, -1) if half % f == 0)
    return (2 * small, 2 * (half // small))


def fitting(length: int, chunk: int) -> int:
    """The paper's number of buckets for rows of a length: two per chunk, rounded up to a multiple with better factors."""
    buckets = 2 * max(1, math.ceil(length / chunk))
    return buckets if buckets <= WIDEST else WIDEST * math.ceil(buckets / WIDEST)


def check_buckets(buckets: int | tuple[int, ...]) -> None:
    """Raises FormersError for numbers of buckets that rotations cannot produce: a direction and its opposite come in pairs."""
    for count in (buckets,) if isinstance(buckets, int) else buckets:
        if count < 2 or count % 2:
            raise FormersError(
                f"buckets={buckets} is not possible: a direction and its opposite are two buckets, and {count} is "
                f"{'too few' if count < 2 else 'odd'}; use {max(2, count + count % 2)}."
            )


@cached(64)
def fixed_rotations(heads: int, width: int, rounds: int, columns: int, *keys: int) -> Tensor:
    """Cached rotations, for evaluation."""
    with torch.inference_mode(False):
        return rotations(heads, width, rounds, columns, *keys)


def rotations(heads: int, width: int, rounds: int, columns: int, *keys: int) -> Tensor:
    """Rotations (rounds, heads, width, columns), a function of the keys (seed, layer, step); each round is independent of the others."""
    seed, *rest = keys
    each = (generator(seed, "rotations", *rest, r) for r in range(rounds))
    return torch.stack([torch.randn(heads, width, columns, generator=g) for g in each])


@cached(64)
def fixed_rotations_on(device: torch.device, heads: int, width: int, rounds: int, columns: int, *keys: int) -> Tensor:
    """Cached rotations on a device, for evaluation: copied there once."""
    with torch.inference_mode(False):
        return copied(rotations(heads, width, rounds, columns, *keys), device)


def copied(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device: if it is on another one, copied asynchronously where the device can."""
    if x.device == device:
        return x
    pinned = capabilities(device).pinned and not torch.compiler.is_compiling()
    return (x.pin_memory() if pinned else x).to(device, non_blocking=True)


def _drawn(heads: int, width: int, rounds: int, columns: int, keys: Sequence[int]) -> Tensor:
    return (
        rotations(heads, width, rounds, columns, *keys) if len(keys) > 1 else rotations(heads, width, rounds, columns, fresh_seed(), *keys)
    )


drawn = torch.library.custom_op(
    "formers::rotations", _drawn, mutates_args=(), schema="(int heads, int width, int rounds, int columns, SymInt[] keys) -> Tensor"
)
"""Rotations inside compiled graphs, which have no generators: from the keys, or from the layer and a seed from torch's generator."""


@drawn.register_fake
def _drawn_shape(heads: int, width: int, rounds: int, columns: int, keys: Sequence[int]) -> Tensor:
    return torch.empty(rounds, heads, width, columns)


@torch.no_grad()
def hashes(x: Tensor, directions: Tensor, factor: tuple[int, ...]) -> Tensor:
    """Buckets (batch, heads, rounds, length) int32 of vectors x (batch, heads, length, width), from the result of `rotations`."""
    batch, heads, n, _ = x.shape
    rounds = directions.shape[0]
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if not on_host(x):
        return _hashes_at_once(x, copied(directions, x.device).to(x.dtype), factor)
    directions = directions.to(x)
    buckets = torch.empty(batch, heads, rounds, n, dtype=torch.int32, device=x.device)
    for r in range(rounds):  # one at a time: all of them would need more memory than attention
        y = x @ directions[r]
        first, share, found = 0, 1, None
        for count in factor:
            part = y[..., first : first + count // 2]
            best = part.abs().argmax(dim=-1, keepdim=True)
            h = best + (count // 2) * (part.gather(-1, best) < 0)  # E90
            found = h if found is None else found + share * h  # E91
            first, share = first + count // 2, share * count
        assert found is not None
        buckets[:, :, r] = found[..., 0]
    return buckets


def _hashes_at_once(x: Tensor, directions: Tensor, factor: tuple[int, ...]) -> Tensor:
    """What `hashes` computes, for all rounds in one product: fewer launches, but more memory."""
    rounds, heads, width, columns = directions.shape
    with torch.autocast(x.device.type, enabled=False):  # in half precision tokens would change their buckets
        y = x @ directions.permute(1, 2, 0, 3).reshape(heads, width, rounds * columns)
    found, share = None, 1
    parts = torch.split(y.view(*x.shape[:3], rounds, columns), [count // 2 for count in factor], dim=-1)
    for part, count in zip(parts, factor, strict=True):
        best = part.abs().argmax(dim=-1, keepdim=True)
        h = best + (count // 2) * (part.gather(-1, best) < 0)
        found = h if found is None else found + share * h
        share *= count
    assert found is not None
    return found[..., 0].transpose(2, 3).to(torch.int32)


@torch.no_grad()
def in_order(buckets: Tensor) -> Hashed:
    """Tokens sorted by bucket, then by position."""
    return Hashed(buckets, buckets.argsort(dim=-1, stable=True))
