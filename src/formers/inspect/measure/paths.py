"""Path lengths: the fewest operations that carry information from one position to another.

One operation carries information from j to i where links_ij; a position keeps its own. By a breadth-first search,

R_0 = I,   R_{t+1} = L_t R_t or R_t        which positions are connected after t operations, layer by layer
path(i, j) = the smallest t with R_t[i, j]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from formers.inspect.measure.links import attention_links, cross_links, final_tokens
from formers.model import Spec

NEVER = -1
"""The path between two positions that no number of operations connects."""


def distances(links: Callable[[int], Tensor], size: int, patience: int = 2) -> Tensor:
    """The fewest operations (size, size) from j (columns) to i (rows); links(t) is the boolean matrix (size, size) of operation t.

    NEVER if there is no path: the search ends after `patience` operations without a new connection.
    """
    reached = torch.eye(size, dtype=torch.bool)
    found = torch.full((size, size), NEVER).masked_fill(reached, 0)
    step = idle = 0
    while idle < patience and not bool(reached.all()):
        after = reached | (links(step).float() @ reached.float() > 0)
        step += 1
        new = after & ~reached
        idle = 0 if bool(new.any()) else idle + 1
        found.masked_fill_(new, step)
        reached = after
    return found


class Paths(NamedTuple):
    """The fewest operations between two tokens, over the pairs that a model may join."""

    longest: int | None
    """Of the worst pair; None where some pair is never joined."""
    mean: float | None


def paths(spec: Spec, length: int) -> Paths:
    """How far apart `length` tokens are that a model may join.

    Of a causal model these are pairs of a token and an earlier one, of others any two, and of an encoder-decoder a source's token and a
    target's.
    """
    if spec.encoder is not None:
        found = _crossing(spec, spec.encoder, length).flatten()
    else:
        extra, patience = spec.extra, _patience(spec, length)
        found = distances(lambda t: stack_links(spec, length, t), extra + length, patience)[extra:, extra:]
        here = torch.arange(length)
        found = found[here[:, None] > here] if spec.looks_back else found[here[:, None] != here]
    return Paths(None, None) if bool((found == NEVER).any()) else Paths(int(found.max()), float(found.float().mean()))


def _patience(spec: Spec, length: int) -> int:
    """The number of operations without a new connection after which the search ends: all layers, or more if links are random."""
    return max(spec.depth.steps, 2, length if spec.attention.draws else 0)


def stack_links(spec: Spec, length: int, step: int) -> Tensor:
    """The positions that an operation at a depth step connects, (places, places) bool; extra vectors come before the tokens.

    With a memory, tokens are read in segments of the spec's length, and see what the memory holds of those before.
    """
    places = spec.extra + length
    links = attention_links(spec.attention.at(step), spec.sizes, spec.pattern, places, step)
    if spec.memory.limit is not None:
        here = torch.arange(places)
        oldest = here // spec.length * spec.length - spec.memory.limit
        links = links & (here[None, :] >= oldest[:, None])
    return links


def _crossing(spec: Spec, source: Spec, length: int) -> Tensor:
    """The distances (length, length) from a source's tokens to those of a target."""
    before = source.extra + length

    def links(step: int) -> Tensor:
        whole = torch.zeros(before + length, before + length, dtype=torch.bool)
        whole[:before, :before] = stack_links(source, length, step)
        whole[before:, before:] = stack_links(spec, length, step)
        ends = final_tokens(source.attention.at(step), length)
        whole[before:, source.extra : before] = cross_links(spec.attention.at(step), length, length, ends)
        return whole

    patience = max(_patience(each, length) for each in (spec, source))
    return distances(links, before + length, patience)[before:, source.extra : before]
