"""What tests of the server share: runs with metrics but without a training, and answers that must be errors in the API's form."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from formers.training.folder import FACTS, FORMAT
from helpers import one_sentence


def make_run(folder: Path, steps: int = 10, start: int = 1, **facts: Any) -> Path:
    """A run as `formers train` leaves it behind, but for checkpoints: what it says of itself, and its metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"name": "decoder", "length": 32, "vocab": 256, "head": {"kind": "LanguageModel"}}
    told = {**dict.fromkeys(FACTS), "member": "decoder", "data": "a.txt", "settings": {"batch": 4}, "spec": spec, "format": FORMAT, **facts}
    (folder / "run.json").write_text(json.dumps(told))
    with (folder / "metrics.jsonl").open("a") as file:
        for step in range(start, start + steps):
            file.write(json.dumps({"step": step, "loss": 1 / step, "norm": 1.0, "rate": 0.1, "seconds": step / 10}) + "\n")
    return folder


def is_error(answer: Any, status: int, *words: str) -> dict[str, Any]:
    """Fails unless an answer is an error in the API's form, of one sentence that holds all the words."""
    assert answer.status_code == status, answer.text[:500]
    error: dict[str, Any] = answer.json()["error"]
    assert {*error} == {"message", "type", "param", "code"}
    one_sentence(error["message"])
    for word in words:
        assert word in error["message"], f"{word!r} is not in {error['message']!r}"
    return error


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until something holds, and fails if it takes too long."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def events(text: str) -> list[Any]:
    """The data of a stream of events."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
