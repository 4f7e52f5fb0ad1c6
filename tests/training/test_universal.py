"""Training the Universal Transformer: random starts and what a convolution carries are the same after a resume, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import formers
from formers.model.files import checkpoints

TINY = {"dim": 16, "heads": 2, "steps": 2, "length": 16, "batch": 4, "quiet": True, "track": "none", "sample_tokens": 0}
CASES = [{"offset": 40, "dropout": 0.1}, {"memory": 16, "transition": "conv", "act": "graves"}]


def weights(run: Path) -> bytes:
    return (checkpoints(run)[0] / "model.safetensors").read_bytes()


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_run_goes_on_bit_for_bit(options: dict[str, object], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"abcdefghij" * 200)
    member = formers.spec("universal-transformer", vocab=256, **{**{k: TINY[k] for k in ("dim", "heads", "steps", "length")}, **options})
    assert member.depth.steps == 2
    given = {**{k: v for k, v in TINY.items() if k != "steps"}, "schedule": "constant", "warmup": 0, **options}
    for folder, budgets in (("whole", [6]), ("parts", [3, 6])):
        formers.train("universal-transformer", text, tmp_path / folder, steps=budgets[0], set={"steps": 2}, **given)
        for budget in budgets[1:]:
            formers.resume(tmp_path / folder, steps=budget, quiet=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
