"""Decisions that a recomputed forward pass must repeat: the buckets of LSH attention.

A recomputing pass may compute its inputs from outputs (reversible layers) or again (activation checkpointing). The last bits may differ,
and a hash could then choose another bucket. So the second pass uses the decisions of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from formers.core import Context

T = TypeVar("T")


class Decisions(dict[tuple[str, int], Any]):
    """A side channel of the forward context: the decisions of the first pass, by name and depth step."""


def decide_once(context: Context, name: str, step: int, decide: Callable[[], T]) -> T:
    """The result of `decide`; in a second pass over the same tokens, the result of the first.

    `decide` must not draw random numbers: a second pass does not call it, and the generator would be in another state.
    """
    decisions: Decisions | None = context.channels.get(Decisions)
    if decisions is None:
        return decide()
    if (name, step) not in decisions:
        decisions[name, step] = decide()
    found: T = decisions[name, step]
    return found
