"""Patterns as texts: one text for equal patterns only, and the same pattern from the text in another process."""

from __future__ import annotations

from typing import Any

from contracts.specimens import patterns
from formers.patterns import Local, Pattern, text
from formers.patterns.text import pattern_of, pattern_text
from helpers import sweep


@sweep("pattern", patterns())
def test_a_text_is_read_back(pattern: Pattern, monkeypatch: Any) -> None:
    found = pattern_text(pattern)
    assert pattern_of(found) == pattern
    monkeypatch.setattr(text, "_KNOWN", {})  # as in another process
    assert pattern_of(found) == pattern


def test_different_patterns_with_the_same_json_have_different_texts(monkeypatch: Any) -> None:
    """As of two classes with one name, which a notebook defines twice."""
    one, other = Local(window=2), Local(window=3)
    monkeypatch.setattr(text, "_KNOWN", {})
    pattern_text.cache_clear()
    monkeypatch.setattr(Pattern, "model_dump_json", lambda self: "{}")
    assert pattern_text(one) != pattern_text(other)
    assert pattern_of(pattern_text(one)) is one
    assert pattern_of(pattern_text(other)) is other
    pattern_text.cache_clear()
