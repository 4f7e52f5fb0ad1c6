"""Every registered part has specimens."""

from __future__ import annotations

import formers
from contracts.specimens import MEMBERS, PARTS, PATTERNS, part_classes, pattern_classes, slots
from formers.core import Slot
from formers.patterns import Pattern
from helpers import sweep

HERE = "tests/contracts/specimens.py"


@sweep("kind", pattern_classes())
def test_every_registered_pattern_has_specimens(kind: type[Pattern]) -> None:
    given = PATTERNS.get(kind.__name__, [])
    assert given, f"{kind.__name__} is registered and untested: add small instances of it to PATTERNS in {HERE}."
    for pattern in given:
        assert type(pattern) is kind, f"{pattern!r} stands under {kind.__name__} in {HERE}: move it to {type(pattern).__name__}."


@sweep("name", formers.members())
def test_every_member_has_specimens(name: str) -> None:
    assert MEMBERS.get(name), f"{name} is registered and untested: add small options for it to MEMBERS in {HERE}."


@sweep(("slot", "kind"), part_classes())
def test_every_registered_part_has_specimens(slot: str, kind: type[Slot]) -> None:
    given = PARTS[slot].get(kind.__name__, [])
    assert given, f"{kind.__name__} is registered and untested: add small instances of it to PARTS[{slot!r}] in {HERE}."
    assert all(type(part) is kind for part in given)


def test_every_slot_of_a_spec_is_swept() -> None:
    assert {*PARTS, "pattern"} == set(slots()), f"a slot of the spec has no specimens: add it to PARTS in {HERE}."


def test_no_specimen_is_left_of_what_is_gone() -> None:
    assert set(PATTERNS) == {c.__name__ for c in pattern_classes()}
    assert set(MEMBERS) == set(formers.members())
