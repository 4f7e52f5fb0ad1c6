"""Patterns as texts: one text for equal patterns only, and the same pattern from the text in another process."""

from __future__ import annotations

from typing import Any

from contracts.specimens import patterns
from formers.patterns import Pattern, text
from formers.patterns.text import pattern_of, pattern_text
from helpers import sweep


@sweep("pattern", patterns())
def test_a_text_is_read_back(pattern: Pattern, monkeypatch: Any) -> None:
    found = pattern_text(pattern)
    assert pattern_of(found) == pattern
    monkeypatch.setattr(text, "_KNOWN", {})  # as in another process
    assert pattern_of(found) == pattern


def test_classes_with_the_same_name_have_different_texts() -> None:
    def made(span: int) -> Pattern:
        class Repeated(Pattern):
            def allows(self, i: Any, j: Any, head: Any = 0) -> Any:
                return (j >= 0) & (i - j < span)

        return Repeated()

    one, other = made(2), made(3)
    assert pattern_text(one) != pattern_text(other)
    assert pattern_of(pattern_text(one)) is one
    assert pattern_of(pattern_text(other)) is other
