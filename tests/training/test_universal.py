"""Training the Universal Transformer: random starts and what a convolution carries are the same after a resume, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import formers
from formers.cli.app import app
from formers.depth import Shared
from formers.model.files import checkpoints
from formers.training.folder import YAML
from helpers import refused

TINY = {"dim": 16, "heads": 2, "length": 16, "batch": 4, "quiet": True, "track": "none", "sample_tokens": 0}
CASES = [{"offset": 40, "dropout": 0.1}, {"memory": 16, "transition": "conv", "act": "graves"}]


def weights(run: Path) -> bytes:
    return (checkpoints(run)[0] / "model.safetensors").read_bytes()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij" * 200)
    return path


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_run_goes_on_bit_for_bit(options: dict[str, object], text: Path, tmp_path: Path) -> None:
    given = {**TINY, "member_sizes": {"steps": 2}, "schedule": "constant", "warmup": 0, **options}
    formers.train("universal-transformer", text, tmp_path / "whole", steps=6, **given)
    formers.train("universal-transformer", text, tmp_path / "parts", steps=3, **given)
    formers.resume(tmp_path / "parts", steps=6, quiet=True)
    assert formers.load(tmp_path / "parts").spec.depth.steps == 2
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


def test_steps_of_training_and_steps_in_depth_are_distinguished(text: Path, tmp_path: Path) -> None:
    words = ["train", "universal-transformer", "--data", str(text), "--steps", "2", "--track", "none", "--out", str(tmp_path / "one")]
    sizes = ["steps=3", "dim=16", "heads=2", "length=16", "batch=4"]
    done = CliRunner().invoke(app, [*words, *(word for size in sizes for word in ("--set", size))])
    assert done.exit_code == 0, done.output
    assert formers.load(tmp_path / "one").spec.depth == Shared(layers=3)
    config = tmp_path / "one" / YAML
    assert yaml.safe_load(config.read_text())["steps"] == 2
    again = CliRunner().invoke(app, ["train", "--config", str(config), "--out", str(tmp_path / "two"), "--track", "none"])
    assert again.exit_code == 0, again.output
    assert weights(tmp_path / "two") == weights(tmp_path / "one")
    with refused("no option 'stepz'", "steps"):
        formers.train("universal-transformer", text, steps=1, member_sizes={"stepz": 3}, **TINY)
    with refused("not a dict of options"):
        formers.train("universal-transformer", text, steps=1, member_sizes=3, **TINY)
