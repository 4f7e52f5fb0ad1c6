"""What an environment shows and what it takes: spaces, and observations as one row of floats for the model.

Discrete(n) and MultiDiscrete(n_1, ...) become one-hot vectors, a Box its numbers, and Dict and Tuple what they hold, side by side. Images
(three dimensions, height x width x channels) stand behind all vectors, in [0, 1], so that the model can give them to its small CNN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError

Floats = NDArray[np.float32]
SMALLEST_IMAGE = 8
"""Fewer pixels to a side are read as a vector."""


@dataclass(frozen=True)
class Discrete:
    """The integers start ... start + n - 1."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class MultiDiscrete:
    """Several integers, each with its own number of values; `shape` is that of the array they come in."""

    counts: tuple[int, ...]
    shape: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True)
class Box:
    """Numbers of a shape, each between its bounds, which may be infinite; one of three dimensions with bytes is an image."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    image: bool = False


@dataclass(frozen=True)
class Product:
    """Several spaces, by key: of a Dict its names, of a Tuple its places."""

    parts: tuple[tuple[str | int, Space], ...]


Space = Discrete | MultiDiscrete | Box | Product


def leaves(space: Space, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Discrete | MultiDiscrete | Box]]:
    """The spaces that a space is made of, each with the keys that lead to it, vectors before images."""
    if isinstance(space, Product):
        found = [leaf for key, part in space.parts for leaf in leaves(part, (*path, key))]
        yield from sorted(found, key=lambda leaf: isinstance(leaf[1], Box) and leaf[1].image)
    else:
        yield path, space


def width(space: Space) -> int:
    """The floats of one observation."""
    return sum(_width(leaf) for _, leaf in leaves(space))


def images(space: Space) -> tuple[tuple[int, int, int], ...]:
    """Height, width and channels of each image of an observation."""
    return tuple((s[0], s[1], s[2]) for _, leaf in leaves(space) if isinstance(leaf, Box) and leaf.image for s in (leaf.shape,))


def flatten(space: Space, observation: Any, out: Floats) -> None:
    """Writes one observation of a space into a row of floats (width,)."""
    start = 0
    for path, leaf in leaves(space):
        value = observation
        for key in path:
            value = value[key]
        n = _width(leaf)
        _write(leaf, np.asarray(value), out[start : start + n])
        start += n


def _width(leaf: Discrete | MultiDiscrete | Box) -> int:
    return leaf.n if isinstance(leaf, Discrete) else sum(leaf.counts) if isinstance(leaf, MultiDiscrete) else prod(leaf.shape)


def _write(leaf: Discrete | MultiDiscrete | Box, value: NDArray[Any], out: Floats) -> None:
    if isinstance(leaf, Box):
        if value.shape != leaf.shape:
            raise FormersError(
                f"an observation has shape {value.shape} where the space says {leaf.shape}: the environment must keep to its spaces."
            )
        out[:] = value.reshape(-1)
        if leaf.image:
            out /= 255.0
        return
    out[:] = 0.0
    counts = np.array((leaf.n,) if isinstance(leaf, Discrete) else leaf.counts)
    chosen = value.reshape(-1).astype(np.int64) - leaf.start
    if chosen.shape != counts.shape or (chosen < 0).any() or (chosen >= counts).any():
        raise FormersError(f"an observation is {value.tolist()}, which is not in {leaf}: the environment must keep to its spaces.")
    out[np.cumsum(counts) - counts + chosen] = 1.0


def from_gymnasium(space: Any, what: str) -> Space:
    """The space of a gymnasium space; one that is not supported is refused by its name. `what` begins the sentence."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(int(n) for n in space.shape)
        return MultiDiscrete((2,) * prod(shape), shape)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.reshape(-1)), tuple(int(n) for n in space.nvec.shape))
    if isinstance(space, spaces.Box):
        shape = tuple(int(n) for n in space.shape)
        picture = space.dtype == np.uint8 and len(shape) == 3 and min(shape[:2]) >= SMALLEST_IMAGE
        low, high = (tuple(float(x) for x in side.reshape(-1)) for side in (space.low, space.high))
        return Box(shape, () if picture else low, () if picture else high, picture)
    if isinstance(space, spaces.Dict):
        return Product(tuple((key, from_gymnasium(part, what)) for key, part in space.spaces.items()))
    if isinstance(space, spaces.Tuple):
        return Product(tuple((i, from_gymnasium(part, what)) for i, part in enumerate(space.spaces)))
    raise FormersError(
        f"{what} {type(space).__name__} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, "
        "or wrap the environment so that it shows one of them."
    )
