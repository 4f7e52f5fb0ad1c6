"""Environments by name: tmaze:20, recall:4,3, corridor:20, MiniGrid-MemoryS7-v0:agent_view_size=3,actions=3, package:Name-v0."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from formers.core import FormersError, nearest
from formers.rl.environments.base import Environments
from formers.rl.environments.recall import Recall
from formers.rl.environments.tmaze import Corridor, TMaze

EMBEDDED: dict[str, tuple[Callable[..., Environments], tuple[str, ...]]] = {
    "tmaze": (TMaze, ("LENGTH",)),
    "corridor": (Corridor, ("LENGTH",)),
    "recall": (Recall, ("SYMBOLS", "PLACES")),
}
"""By name: the class, and what its numbers are."""
EXAMPLES = {"tmaze": "tmaze:20", "corridor": "corridor:20", "recall": "recall:4,3"}


def make(name: str, copies: int, drawn: bool = False) -> Environments:
    """`copies` of the environment of a name; with `drawn` of one that draws itself, where it can."""
    if not isinstance(name, str) or not name:
        raise FormersError(f"env={name!r} is no name: give one such as tmaze:20 or MiniGrid-MemoryS7-v0.")
    word, _, rest = name.partition(":")
    if word in EMBEDDED:
        kind, wanted = EMBEDDED[word]
        numbers = rest.split(",") if rest else []
        if len(numbers) != len(wanted) or not all(re.fullmatch(r"[1-9]\d{0,5}", number) for number in numbers):
            raise FormersError(f"{name!r} is not {word}:{','.join(wanted)} with numbers of at least 1: write it as in {EXAMPLES[word]}.")
        return kind(copies, *map(int, numbers))
    if word.lower() in EMBEDDED or ("-v" not in name and not re.search(r"[A-Z/]", name)):
        raise FormersError(f"there is no environment {name!r}: {nearest(word.lower(), list(EXAMPLES.values()))}")
    from formers.rl.environments.gymnasium import Gymnasium

    identity, options = parse(name)
    return Gymnasium(name, identity, copies, options, drawn)


def parse(name: str) -> tuple[str, dict[str, Any]]:
    """gymnasium's id, perhaps with its package before it, and the options behind it: [package:]Name-v0[:option=value,...]."""
    pieces = name.split(":")
    options: dict[str, Any] = {}
    if len(pieces) > 1 and "=" in pieces[-1]:
        for pair in pieces.pop().split(","):
            option, equals, value = pair.partition("=")
            if not equals or not option or not value:
                raise FormersError(f"{pair!r} in {name!r} sets nothing: write name=value, as in agent_view_size=3,actions=3.")
            try:
                options[option] = json.loads(value)
            except ValueError:
                options[option] = value
    return ":".join(pieces), options
