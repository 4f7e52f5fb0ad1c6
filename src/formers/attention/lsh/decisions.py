"""Decisions that a recomputed forward pass repeats: the buckets of LSH attention.

A second pass may compute its inputs back from outputs (reversible layers, activation checkpointing). A hash that compares values which
differ in the last bits could then choose another bucket, so the second pass reads the decisions of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from formers.core import Context

T = TypeVar("T")


class Decisions(dict[tuple[str, int], Any]):
    """A side channel of the forward context: what the first pass decided, by name and depth step."""


def decide_once(context: Context, name: str, step: int, decide: Callable[[], T]) -> T:
    """The result of `decide`; in a second pass over the same tokens the result of the first.

    `decide` draws no random numbers: a second pass, which does not call it, would leave the generator in another state.
    """
    decisions: Decisions | None = context.channels.get(Decisions)
    if decisions is None:
        return decide()
    if (name, step) not in decisions:
        decisions[name, step] = decide()
    found: T = decisions[name, step]
    return found
