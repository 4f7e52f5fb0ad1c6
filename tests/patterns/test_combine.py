"""A pattern per head, and alternating patterns per layer."""

from __future__ import annotations

import json

import torch

from formers.patterns import Alternate, BigBird, Causal, Full, Local, LocalGrid, Pattern, PerHead, Strided
from helpers import refused, sweep

A, B, C = Local(window=2), Causal(), Local(window=3, causal=False)


def test_each_head_has_its_pattern() -> None:
    mask = PerHead(A, B, C).mask(9, heads=3)
    for head, pattern in enumerate((A, B, C)):
        assert torch.equal(mask[head], pattern.mask(9)[0])
    one = torch.arange(9)
    assert torch.equal(PerHead(A, B, C).allows(one[:, None], one, torch.tensor(2)), C.mask(9)[0])


def test_more_heads_than_patterns_are_refused() -> None:
    with refused("2 patterns", "3 heads"):
        PerHead(A, B).mask(5, heads=3)
    with refused("2 patterns", "3 heads"):
        PerHead(A, B).allows(1, 0, 2)


def test_layers_take_turns() -> None:
    pattern = Alternate(A, B, C)
    for layer in range(7):
        assert pattern.at(layer) == (A, B, C)[layer % 3]
        assert torch.equal(pattern.mask(9, layer=layer), (A, B, C)[layer % 3].mask(9))
    assert torch.equal(pattern.mask(9), A.mask(9)), "without a layer it is layer 0's"


def test_turns_of_heads_and_heads_of_turns() -> None:
    inner = Alternate(PerHead(A, B), PerHead(B, C))
    outer = PerHead(Alternate(A, B), Alternate(B, C))
    for layer in range(3):
        assert torch.equal(inner.mask(9, 2, layer), outer.mask(9, 2, layer))


@sweep("kind", [PerHead, Alternate])
def test_what_all_have_to_say(kind: type[PerHead | Alternate]) -> None:
    assert kind(A, B).is_causal
    assert not kind(A, C).is_causal
    assert kind(A, Local(window=5)).reach == 4
    assert kind(A, B).reach is None
    assert kind(A, Local(window=5)).oldest(9) == 5
    with refused("at most 4"):
        kind(A, LocalGrid(height=2, width=2, query=(1, 1), memory=(1, 1))).of(5)


@sweep("kind", [PerHead, Alternate])
def test_they_are_values(kind: type[PerHead | Alternate]) -> None:
    pattern = kind(A, kind(B, BigBird(block=2), C), Strided(stride=3))
    assert pattern == kind(patterns=[A, kind(B, BigBird(block=2), C), Strided(stride=3)])
    assert Pattern.read(json.loads(pattern.model_dump_json())) == pattern
    assert pattern.replace(patterns=(Full(),)) == kind(Full())


@sweep("kind", [PerHead, Alternate])
def test_bad_values_are_one_sentence(kind: type[PerHead | Alternate]) -> None:
    for make in (lambda: kind(), lambda: kind(patterns=()), lambda: kind(A).replace(patterns=())):
        with refused(kind.__name__, "at least one"):
            make()
    with refused("is not a Pattern"):
        kind(A, 3)
    with refused("is not a Pattern"):
        kind((A, B))
    with refused("patterns twice"):
        kind(A, patterns=(B,))
