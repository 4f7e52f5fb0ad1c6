"""A pattern as a text: operations of torch take texts, but no patterns, and torch.compile keeps a text as a constant of its graph.

The text is the JSON of the pattern, so that another process, which loads a saved model or graph, finds the same pattern.
"""

from __future__ import annotations

import json
from functools import lru_cache
from threading import Lock

from formers.patterns.base import Pattern

_KNOWN: dict[str, Pattern] = {}
_LOCK = Lock()


@lru_cache(maxsize=1024)  # called by every layer in every pass
def pattern_text(pattern: Pattern) -> str:
    """The text of a pattern; equal patterns have equal texts, and no others."""
    text = pattern.model_dump_json()
    with _LOCK:
        while _KNOWN.setdefault(text, pattern) != pattern:  # of another class with the same name
            text += " "
    return text


def pattern_of(text: str) -> Pattern:
    """The pattern of a text."""
    found = _KNOWN.get(text)
    return found if found is not None else _KNOWN.setdefault(text, Pattern.read(json.loads(text)))
