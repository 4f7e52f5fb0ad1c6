"""Base classes have few members, and class names are unique."""

from __future__ import annotations

from pathlib import Path

import base_classes
from formers import patterns
from formers.core import Slot

SOURCE = Path(base_classes.formers.__file__).parent
SAME_NAME = {
    "Drawn": "an image of generation, and the exercise of training that draws its rows: no file uses both",
    "Gated": "formers.layers names a layer as the part that it is made of",
    "Held": "memory held in bench, and held-out rows of an exercise: no file uses both",
    "LSHAttention": "formers.layers names a layer as the sublayer that it contains",
    "Losses": "the public losses by position, and the loss terms of PPO and of V-MPO, each in its own file",
    "Recall": "the exercise and the environment of the same task",
    "Reversible": "formers.layers names a layer as the part that it is made of",
    "SelfAttention": "formers.layers names a layer as the sublayer that it contains",
    "Sink": "what the cache writes to, and what metrics are written to: no file uses both",
    "Table": "a table of an experiment, and one of pixel values: no file uses both",
    "Words": "an experiment, and the tokenizer: the former is found by its name on the command line",
}
"""Names that are defined more than once, and why."""


def test_no_base_class_has_more_than_twelve_members_to_override() -> None:
    for cls in base_classes.base_classes():
        names = base_classes.overridable(cls)
        assert len(names) <= base_classes.LIMIT, f"{cls.__name__} has {len(names)}: {', '.join(names)}"


def test_the_count_leaves_out_final_and_private_members() -> None:
    assert set(base_classes.overridable(patterns.Pattern)) >= {"allows", "at", "of", "pieces", "is_causal"}
    assert not {"mask", "by_length", "heads", "gaps"} & set(base_classes.overridable(patterns.Pattern))
    assert base_classes.overridable(Slot) == ["values", "read"]


def test_no_class_overrides_a_final_member() -> None:
    final = {"mask", "by_length", "heads", "gaps", "__or__", "__and__"}
    for cls in patterns.Pattern.values():
        assert not final & set(vars(cls)), cls.__name__


def test_no_public_class_name_is_defined_twice() -> None:
    found = base_classes.defined_twice(SOURCE)
    assert not found.keys() - SAME_NAME.keys(), {name: files for name, files in found.items() if name not in SAME_NAME}
