"""Damaged checkpoints: every cut and every flipped bit is noticed, the damaged one is named, and the one before it is used."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import formers
from faults import scenes
from faults.conftest import outcome
from formers.model.files import MANIFEST, checkpoints, fault, manifest, newest, step_name
from formers.model.save import find
from helpers import refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert scenes.finished(scenes.text(folder), folder / "run", steps=8) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy" / "run"


def noticed(run: Path, damaged: Path) -> bool:
    """Whether the newest checkpoint is passed over, by name, for the one before it."""
    messages: list[str] = []
    found = newest(run, messages.append)
    return found == checkpoints(run)[1] and len(messages) == 1 and str(damaged) in messages[0]


@contextmanager
def harmed(file: Path, content: bytes) -> Iterator[None]:
    """Within it a file holds something else."""
    whole = file.read_bytes()
    file.write_bytes(content)
    yield
    file.write_bytes(whole)


def test_a_cut_at_any_of_twenty_places_is_noticed(run: Path) -> None:
    places = random.Random(0)
    last = checkpoints(run)[0]
    files = sorted(last.iterdir())
    for i in range(20):
        file = files[i % len(files)]
        whole = file.read_bytes()
        cut = places.randrange(len(whole))
        with harmed(file, whole[:cut]):
            assert noticed(run, last), f"{file.name} was cut at {cut}"
    assert newest(run, print) == last


def test_a_hundred_flipped_bits_are_noticed(run: Path) -> None:
    places = random.Random(1)
    last = checkpoints(run)[0]
    files = sorted(last.iterdir())
    for i in range(100):
        file = files[i % len(files)]
        flipped = bytearray(file.read_bytes())
        place = places.randrange(8 * len(flipped))
        flipped[place // 8] ^= 1 << place % 8
        with harmed(file, flipped):
            assert noticed(run, last), f"bit {place} of {file.name} was flipped"
    assert newest(run, print) == last


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "training.json", MANIFEST])
def test_a_missing_file_is_noticed(run: Path, name: str) -> None:
    last = checkpoints(run)[0]
    (last / name).unlink()
    assert noticed(run, last)


def test_a_damaged_last_checkpoint_costs_only_the_steps_after_the_one_before(run: Path) -> None:
    before = outcome(run)
    last = checkpoints(run)[0]
    weights = bytearray((last / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (last / "model.safetensors").write_bytes(weights)
    assert scenes.finished(run.parent / "text.txt", run, budget=True, steps=8) == 0
    assert fault(checkpoints(run)[0]) is None
    after = outcome(run)
    assert after.pop("checkpoints") == ["damaged-step-00000008", *before.pop("checkpoints")]
    assert after == before


def test_damaged_checkpoints_do_not_crowd_out_what_is_saved_after_them(run: Path) -> None:
    for folder in checkpoints(run)[:2]:
        (folder / MANIFEST).write_text("{}")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "settings": {**facts["settings"], "keep": 1, "save_every": 1}}))
    assert scenes.finished(run.parent / "text.txt", run, budget=True, steps=6) == 0
    assert checkpoints(run)[0].name == "step-00000006"
    assert fault(checkpoints(run)[0]) is None


def test_no_sound_checkpoint_is_one_sentence(run: Path) -> None:
    for folder in checkpoints(run):
        (folder / MANIFEST).write_text("{}")
    with refused("no undamaged checkpoint", "damaged"):
        formers.load(run)


def test_a_checkpoint_of_another_configuration_names_the_field(run: Path) -> None:
    last = checkpoints(run)[0]
    config = json.loads((last / "config.json").read_text())
    config["spec"]["dropout"] = 0.5
    (last / "config.json").write_text(json.dumps(config))
    files = {f.name: f for f in last.iterdir() if f.name != MANIFEST}
    (last / MANIFEST).write_bytes(manifest(files))  # sound, but not of this run
    assert scenes.finished(run.parent / "text.txt", run, budget=True, steps=20) == 2
    said = (run.parent / "error.txt").read_text()
    assert "another configuration" in said
    assert "dropout" in said
    assert "0.5" in said


def test_the_best_and_the_last_are_never_pruned(trained: Path) -> None:
    steps = [int(f.name.removeprefix("step-")) for f in checkpoints(trained / "run")]
    best = json.loads((checkpoints(trained / "run")[0] / "training.json").read_text())["best_step"]
    assert steps[:3] == [8, 6, 4]
    assert best in steps
    assert len(steps) <= 4
    assert find(trained / "run") == checkpoints(trained / "run")[0]
    assert find(trained / "run", "best").name == step_name(best)
