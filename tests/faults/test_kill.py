"""kill -9 at every stage of a save and at random moments: what is resumed ends bit for bit as what was never disturbed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from faults import scenes
from faults.conftest import outcome
from formers.model.files import checkpoints, fault

STAGES = [
    "folder", "memory", "model.safetensors", "config.json", "optimizer.safetensors", "training.json", "MANIFEST.json", "folder synced",
    "renamed", "synced", "pruned",
]  # fmt: skip
KILLED = -9


def test_these_are_the_stages_of_a_save(tmp_path: Path) -> None:
    noted = tmp_path / "stages"
    assert scenes.finished(scenes.text(tmp_path), tmp_path / "run", {"stages": str(noted)}) == 0
    assert set(noted.read_text().split("\n")) - {""} == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("save", [1, 4])
def test_killed_within_a_save(stage: str, save: int, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    data, run = scenes.text(tmp_path), tmp_path / "run"
    if stage == "memory":
        save = min(save, 2)  # step 0 carries nothing yet
    assert scenes.finished(data, run, {"stage": stage, "save": save}) == KILLED
    assert all(fault(folder) is None for folder in checkpoints(run)), "what bears the name of a checkpoint must be whole"
    assert scenes.finished(data, run) == 0
    assert outcome(run) == undisturbed


def test_killed_at_twenty_random_moments(tmp_path: Path) -> None:
    data, run, whole = scenes.text(tmp_path), tmp_path / "run", tmp_path / "whole"
    long = dict(steps=1800, eval_every=300)
    moments = random.Random(0)
    for _ in range(20):
        process = scenes.start(data, run, save_every=1, **long)
        process.join(moments.uniform(0.05, 0.5))
        assert process.exitcode is None, "the training ended before it could be killed: make it longer"
        process.kill()
        process.join()
    reached = int(checkpoints(run)[0].name.removeprefix("step-"))
    assert 0 < reached < 1800, "the kills must have come while it trained"
    assert scenes.finished(data, run) == 0
    assert scenes.finished(data, whole, save_every=1, **long) == 0
    assert outcome(run) == outcome(whole)
