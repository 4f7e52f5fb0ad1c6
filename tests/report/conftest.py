"""Two runs that a report is made of, one of them with a hostile text in its metrics."""

from __future__ import annotations

import json

import pytest

import formers

HOSTILE = "</table><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u202e\x07"
TINY = dict(dim=16, heads=2, layers=1, length=16, batch=2, sample_tokens=12, eval_batches=1, final_batches=1)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with the runs `plain` and `hashed`."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "my.txt").write_text("to be, or not to be, that is the question\n" * 200)
    for name, member in (("plain", "decoder"), ("hashed", "reformer")):
        formers.train(member, folder / "my.txt", folder / name, steps=20, quiet=True, track="none", **TINY)
    with (folder / "plain" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 20, "prompt": HOSTILE, "sample": HOSTILE}) + "\n")
        file.write(json.dumps({"step": 20, "loss": None, "loss_word": "nan"}) + "\n")
    return folder
