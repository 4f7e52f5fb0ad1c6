"""The run that nothing disturbed, which every disturbed one must equal bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faults import scenes
from formers.model.files import CHECKPOINTS, checkpoints


def outcome(run: Path) -> dict[str, Any]:
    """All that a finished run came to, but for its clock: the files of its last checkpoint, and its losses."""
    last = checkpoints(run)[0]
    files = {f.name: f.read_bytes() for f in last.iterdir() if f.suffix == ".safetensors" or f.name == "config.json"}
    assert {"model.safetensors", "optimizer.safetensors", "memory-0.safetensors"} <= files.keys()
    training = json.loads((last / "training.json").read_bytes())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "busy", "tokens_per_second", "metrics_bytes", "peak_memory_bytes")
    return {
        "files": files,
        "training": {name: value for name, value in training.items() if name not in clocks},
        "metrics": [{name: value for name, value in line.items() if name not in clocks} for line in lines],
        "checkpoints": sorted(f.name for f in (run / CHECKPOINTS).iterdir()),
    }


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert scenes.finished(scenes.text(folder), folder / "run") == 0
    return outcome(folder / "run")
