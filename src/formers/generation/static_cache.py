"""Static caches of a call that generates text: their buffers are allocated once, and every token is written in place.

A layer that keeps all keys gets a slot for each token of the call. A layer that keeps the last m keys, by its pattern or its memory, gets
at most 2 m + SLACK slots. When they are used up, the last m keys are moved to the beginning of the buffer.

The states are never returned to users, so overwriting them changes no value that a user has.
"""

from __future__ import annotations

from dataclasses import replace

from formers.core import HiddenMemory, KVCache, Range, State
from formers.core.cache import SLACK
from formers.model import Spec

MOST = 4096
"""Slots for at most so many new tokens are allocated at once; more grow the buffer as in any other pass."""


def reserve(state: State, spec: Spec, new: int) -> State:
    """A state whose KV caches and memories have room for `new` more tokens; the given state must not be used again."""
    new = min(new, MOST)
    total = state.bound + new
    steps = []
    for step, entries in enumerate(state.steps):
        kept = spec.memory.limit
        if kept is None:
            held = spec.pattern.at(step).cached(total)
            kept = held.length if isinstance(held, Range) else None
        if entries and kept is not None and isinstance(entries[0], KVCache | HiddenMemory):
            room = min(_length(entries[0]) + new, 2 * kept + SLACK)
            entries = (entries[0].reserve(room), *entries[1:])
        steps.append(entries)
    return replace(state, steps=tuple(steps))


def _length(entry: KVCache | HiddenMemory) -> int:
    return entry.keys.shape[2] if isinstance(entry, KVCache) else entry.states.shape[1]
