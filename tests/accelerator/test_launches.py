"""Budgets of kernel launches for a training step of small models: a change that adds launches fails here.

A budget is the measured number and a tenth. It does not depend on the batch, nor on the length, except where a recurrent cell needs a
loop over tokens.
"""

from __future__ import annotations

from typing import Any

import torch

import formers
from accelerator.device import NAME, Counts, use_test_device
from helpers import sweep

SIZES = {"vocab": 11, "dim": 16, "heads": 2, "hidden": 32, "length": 32, "dropout": 0.0}
BUDGETS: list[tuple[str, dict[str, Any], int]] = [
    ("decoder", {"layers": 4}, 163),
    ("transformer-xl", {"layers": 4, "memory": 16}, 290),
    ("gtrxl", {"layers": 4, "memory": 16}, 625),
    ("universal-transformer", {"steps": 4, "act": "graves"}, 415),
    ("linformer", {"layers": 4, "rank": 8}, 250),
    ("transformer", {"layers": 4}, 412),
]


def counted(member: str, options: dict[str, Any], rows: int, padded: bool = False) -> Counts:
    """The launches, waits and copies of a forward and a backward pass of a model."""
    model = formers.create(member, **SIZES, **options)
    tokens = torch.randint(11, (rows, 24))
    mask = torch.arange(24) < torch.randint(4, 24, (rows, 1)) if padded else None
    with use_test_device() as counts:
        there, x = model.to(NAME), tokens.to(NAME)
        own = None if mask is None else mask.to(NAME)
        given = (x, x) if model.spec.encoder is not None else (x,)
        there(*given, targets=x, mask=own).loss.backward()  # tables are made and copied once
        there.zero_grad()
        counts.reset()
        there(*given, targets=x, mask=own).loss.backward()
    return counts


@sweep(("member", "options", "budget"), BUDGETS)
def test_a_step_of_training_stays_within_its_budget(member: str, options: dict[str, Any], budget: int) -> None:
    counts = counted(member, options, 2)
    assert counts.waits == 0, str(counts)
    assert counts.copied.total() == 0, str(counts)
    assert counts.launches <= budget, str(counts)
    assert counted(member, options, 5).launches == counts.launches


@sweep(("member", "options", "budget"), BUDGETS)
def test_padding_costs_few_launches(member: str, options: dict[str, Any], budget: int) -> None:
    counts = counted(member, options, 3, padded=True)
    assert counts.waits == 0, str(counts)
    assert counts.launches <= budget + 40, str(counts)


def test_a_padded_recurrent_row_is_one_kernel_a_layer_and_direction() -> None:
    found = []
    for length in (12, 24):
        model = formers.create("seq2seq", vocab=11, dim=16, layers=2, feeding=False, dropout=0.0)
        source, mask = torch.randint(11, (3, length)), torch.arange(length) < torch.tensor([[length], [3], [7]])
        with use_test_device() as counts:
            there, x = model.to(NAME), source.to(NAME)
            there(x, x, targets=x, source_mask=mask.to(NAME), mask=mask.to(NAME)).loss.backward()
        assert counts.waits == 0, str(counts)
        assert sum(n for what, n in counts.launched.items() if what.startswith("lstm ") and "backward" not in what) == 2 * 2 + 2
        found.append(counts.launches)
    assert found[0] == found[1], "the number of launches depends on the length"
