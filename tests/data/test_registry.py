"""One registry opens data by name, scheme, path or suffix."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from formers.data import kind_of, open_data
from formers.data.catalogue import NAMES, OFFERED, Kind, named_kind
from formers.data.examples import Examples
from formers.data.images import ImageData
from formers.data.registry import OPENERS
from formers.data.tasks import Strings, Vectors
from formers.data.text import TextData
from helpers import refused


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "plain.txt").write_text("one line of text\n" * 50)
    (tmp_path / "table.tsv").write_text("".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(200)))
    (tmp_path / "table.tsv.gz").write_bytes(gzip.compress((tmp_path / "table.tsv").read_bytes()))
    (tmp_path / "labels.jsonl").write_text("".join(f'{{"text": "text {i}", "label": "{"ab"[i % 2]}"}}\n' for i in range(200)))
    (tmp_path / "texts.jsonl").write_text('{"text": "one line of text"}\n' * 50)
    (tmp_path / "source.en").write_text("".join(f"number {i}\n" for i in range(200)))
    (tmp_path / "target.fr").write_text("".join(f"nombre {i}\n" for i in range(200)))
    np.save(tmp_path / "images.npy", np.zeros((4, 2, 2), dtype=np.uint8))
    (tmp_path / "qa1_train.txt").write_text("1 Mary is here.\n")
    return tmp_path


def test_every_kind_has_an_opener_and_every_name_a_kind() -> None:
    assert set(OPENERS) == set(get_args(Kind))
    for name in OFFERED:
        assert named_kind(name) in OPENERS
        assert kind_of(name) == named_kind(name)
    assert len(set(NAMES)) == len(NAMES)


def test_files_have_the_kind_of_their_suffix_or_name(files: Path) -> None:
    wanted = {
        "plain.txt": "text", "table.tsv": "labels", "table.tsv.gz": "labels", "labels.jsonl": "labels", "texts.jsonl": "text",
        "images.npy": "images", "qa1_train.txt": "stories",
    }  # fmt: skip
    assert {name: kind_of(files / name) for name in wanted} == wanted
    assert kind_of(f"{files}/source.en,{files}/target.fr") == "pairs"
    assert kind_of(files) == "stories"
    assert kind_of(f"{files}/*.txt") == kind_of(files / "nowhere") == "text"


def test_data_are_opened_as_their_kind_or_as_another(files: Path) -> None:
    assert isinstance(open_data(files / "plain.txt"), TextData)
    assert isinstance(open_data(files / "images.npy"), ImageData)
    assert isinstance(open_data("task:addition"), Strings)
    assert isinstance(open_data("task:addition", kind="vectors"), Vectors)
    labelled, pairs = open_data(files / "table.tsv"), open_data(files / "table.tsv", kind="pairs")
    assert isinstance(labelled, Examples)
    assert isinstance(pairs, Examples)
    assert labelled.labels == ("a", "b")
    assert pairs.labels is None
    with refused("shakespear", "tinyshakespeare"):
        open_data("shakespear")
    with refused("transformer is trained on pairs"):
        open_data(files / "plain.txt", kind="pairs", reader="transformer")


def test_names_are_known_without_torch() -> None:
    code = "import sys; from formers.cli.names import data_sets; assert 'enwik8' in data_sets(); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
