"""A run keeps the rules by which its data were split, also one from the time before they had a version."""

from __future__ import annotations

import json
import logging

import pytest

import formers
from formers.training import evaluate_run
from helpers import refused

TINY = {"dim": 16, "heads": 2, "layers": 1, "length": 16, "batch": 2, "sample_tokens": 0, "quiet": True, "track": "none"}


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    for i in range(40):
        (root / f"f{i}.py").write_text(f"value = {i}\n" * (20 + i))
    for i in range(10):
        (root / f"p{i}.md").write_text(f"# page {i}\n" * 30)
    return root


def aged(run):
    """Takes the version of the rules out of what a run says of itself, as in runs from before there was one."""
    facts = json.loads((run / "run.json").read_text())
    del facts["reading"]["rules"]
    (run / "run.json").write_text(json.dumps(facts))


def test_a_run_says_by_which_rules_its_data_were_split(folder, tmp_path):
    formers.train("decoder", data=folder, out=tmp_path / "new", steps=2, **TINY)
    facts = json.loads((tmp_path / "new" / "run.json").read_text())
    assert facts["reading"]["rules"] == 2
    assert " of 40 .py files" in facts["about"]
    assert "rules: 2" in (tmp_path / "new" / "run.yaml").read_text()


def test_an_old_run_resumes_and_is_evaluated_with_the_old_rules(folder, tmp_path):
    run = tmp_path / "old"
    formers.train("decoder", data=folder, out=run, steps=2, rules=1, **TINY)
    before = evaluate_run(run)
    aged(run)
    assert evaluate_run(run)["loss"] == before["loss"]
    formers.resume(run, steps=3, quiet=True)
    assert "by the hash of their names" in json.loads((run / "run.json").read_text())["about"]


def test_a_run_of_the_new_rules_is_not_read_with_the_old_ones(folder, tmp_path):
    run = tmp_path / "new"
    formers.train("decoder", data=folder, out=run, steps=2, **TINY)
    formers.resume(run, steps=3, quiet=True)
    aged(run)
    with refused("have changed"):
        evaluate_run(run)


def test_a_training_warns_of_what_its_files_are(folder, tmp_path, caplog):
    (folder / "old.py").write_bytes("schön = 1\n".encode("latin-1") * 40)
    with caplog.at_level(logging.WARNING):
        formers.train("decoder", data=folder, out=tmp_path / "run", steps=1, **TINY)
    assert any("old.py is not UTF-8" in line for line in caplog.messages)
