"""Saving over a model of formers works; other files are never replaced."""

from __future__ import annotations

import json

import pytest
import torch

import formers
from helpers import refused

SMALL = dict(vocab=11, dim=16, heads=2, layers=1, length=8)


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("config.json", json.dumps({"model_type": "gpt2"})),
        ("config.json", "[]"),
        ("config.json", "not JSON"),
        ("config.json", json.dumps({"format": 3, "spec": {}})),
        ("model.safetensors", "another library's weights"),
        ("MANIFEST.json", "{}"),
    ],
)
def test_files_that_formers_has_not_written_are_refused_and_stay(tmp_path, name, written):
    (tmp_path / name).write_text(written)
    before = content(tmp_path)
    with refused(str(tmp_path / name), "not written by formers", "give another folder"):
        formers.create("decoder", **SMALL).save_pretrained(tmp_path)
    assert content(tmp_path) == before


def test_a_model_of_ours_is_replaced_and_other_files_stay(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    first, second = (formers.create("decoder", **SMALL) for _ in range(2))
    for model in (first, second):
        model.save_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(formers.load(tmp_path).parameters(), second.parameters(), strict=True))
    assert (tmp_path / "README.md").read_text() == "mine"
    second.save_pretrained(tmp_path / "new" / "folder")
    assert formers.load(tmp_path / "new" / "folder").spec == second.spec
