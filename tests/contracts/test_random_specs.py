"""Random specs: each is refused in a sentence, or builds and satisfies every property; `make fuzz` goes on where these end."""

from __future__ import annotations

from collections import Counter

import pytest

import formers
from contracts.cases import Violation
from contracts.properties import PROPERTIES, examine
from contracts.random_parts import PARTS, Drawing
from contracts.random_specs import draw, parts_of
from contracts.shrinking import reproduction, shrink
from contracts.specimens import slots
from formers import FormersError
from formers.model.check import check as refuse

SPECS = 80
"""How many are drawn; about half of them are refused."""
GROUPS = 6
"""They are spread over so many tests, which may run side by side."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_random_spec_is_refused_or_keeps_every_promise(group: int) -> None:
    faults = []
    for seed in range(group, SPECS, GROUPS):
        fields = draw(seed)
        outcome = examine(fields, seed)
        assert not outcome.undecided, f"seed {seed}: {outcome.undecided} could not be checked"
        for fault in outcome.faults:
            smaller, said = shrink(fields, seed, fault, tries=60)
            faults.append(reproduction(smaller, seed, said))
    assert not faults, "\n\n" + "\n".join(faults)


def test_every_part_of_every_slot_is_drawn() -> None:
    known = {slot: {c.__name__ for c in kind.values() if c.__module__.startswith("formers.")} for slot, kind in slots().items()}
    assert {slot: set(kinds) for slot, kinds in PARTS.items()} == known, "add a drawer to PARTS in tests/contracts/random_parts.py."


def test_every_field_of_every_part_is_drawn() -> None:
    derived = {("BigBird", "layer"), ("BigBird", "row_blocks")}  # which a model fills in by itself
    for slot, kind in slots().items():
        for part in kind.values():
            if part.__module__.startswith("formers."):
                drawn = {name for seed in range(60) for name in PARTS[slot][part.__name__](Drawing(seed, causal=seed % 2 == 0))}
                missing = {name for name in part.model_fields if name not in drawn and (part.__name__, name) not in derived}
                assert not missing, f"{part.__name__} is never drawn with {sorted(missing)}: add them in tests/contracts/random_parts.py."
    drawn = {name for seed in range(200) for name in draw(seed)}
    assert drawn == set(formers.Spec.model_fields) - {"name"}, "add a field of the spec in tests/contracts/random_specs.py."


def test_every_part_is_drawn_and_accepted_somewhere() -> None:
    accepted: Counter[tuple[str, str]] = Counter()
    for seed in range(800):
        fields = draw(seed)
        try:
            refuse(formers.Spec(**fields))
        except FormersError:
            continue
        accepted.update(set(parts_of(fields)))
    missing = [(slot, kind) for slot, kinds in PARTS.items() for kind in kinds if not accepted[slot, kind]]
    assert not missing, "these parts are never part of a spec that works"
    assert sum(accepted[("memory", kind)] for kind in PARTS["memory"]) > 250, "too few specs are accepted"


def test_a_violation_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks can fail: a property that no model with a Local pattern has is reduced to that pattern."""

    def no_local(case: object) -> None:
        if "Local(" in repr(case.spec.pattern):
            raise Violation("Local")

    monkeypatch.setitem(PROPERTIES, "leak", no_local)
    local = (draw(seed) for seed in range(200) if "'Local'" in str(draw(seed)["pattern"]))
    first, fault = next((fields, fault) for fields in local for fault in examine(fields, 1, ("leak",)).faults)
    fields, said = shrink(first, 1, fault)
    assert fields["pattern"] == {"kind": "Local", "window": 1}
    assert fields["dim"] == fields["heads"] == fields["length"] == 1
    with pytest.raises(Violation, match="Local"):
        exec(reproduction(fields, 1, said), {})
