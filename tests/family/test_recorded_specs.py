"""The options and specs of all members are those that were recorded (recorded_specs.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from family.recorded_specs import FILE, changes, made, options_of
from formers.family import MEMBERS

RECORDS: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def test_no_member_is_missing() -> None:
    assert set(RECORDS) <= set(MEMBERS)


@pytest.mark.parametrize("name", RECORDS)
def test_options_have_the_recorded_types_and_defaults(name: str) -> None:
    now = options_of(name)
    assert {option: now.get(option) for option in RECORDS[name]["options"]} == RECORDS[name]["options"]


@pytest.mark.parametrize("name", RECORDS)
def test_specs_are_the_recorded_ones(name: str) -> None:
    default, recorded = made(name, None, {}), RECORDS[name]
    assert default is not None
    assert changes({path: value for path, value in default.items() if path in recorded["default"]}, recorded["default"]) == {}
    for preset, options, changed in recorded["cases"]:
        assert changes(made(name, preset, options), default) == changed, f"{name}, preset {preset}, {options}"
