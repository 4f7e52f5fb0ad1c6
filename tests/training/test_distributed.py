"""Several processes: the gradient of one, whatever the batch is made of; another number of them; and one that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from formers.core import FormersError
from formers.model.files import checkpoints
from formers.training.distributed import World

SCENE = str(Path(__file__).with_name("distributed_scene.py"))
SIZES = [
    "dim=16",
    "heads=2",
    "layers=1",
    "length=8",
    "batch=6",
    "dropout=0.0",
    "sample_tokens=0",
    "eval_batches=2",
    "schedule=constant",
    "warmup=0",
]
SETS = [word for size in SIZES for word in ("--set", size)]


def go(*arguments: str, processes: int = 1, restarts: int = 0, code: int = 0) -> subprocess.CompletedProcess[str]:
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*start, *arguments], capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_bytes(b"the quick brown fox jumps over the lazy dog; " * 40)
    (folder / "pairs.tsv").write_text("".join(f"{'ab' * (i % 7)}{i}\t{'x' * (i % 5)}{i}\n" for i in range(200)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "file", "accumulate", "how"),
    [
        ("decoder", "text.txt", 2, "checkpoint"),
        ("encoder", "text.txt", 1, ""),
        ("transformer", "pairs.tsv", 3, ""),
        ("transformer", "pairs.tsv", 2, "reversible"),  # the way back returns the gradients of weights
        ("character-transformer", "text.txt", 2, "half"),  # some classifiers have ended: they have no gradient in any process
    ],
)
def test_gradients_equal_those_of_one_process(member: str, file: str, accumulate: int, how: str, data: Path, tmp_path: Path) -> None:
    kind = f"{member}:{data / file}"
    go(SCENE, "gradients", kind, "1", str(tmp_path / "one"), how if how != "checkpoint" else "")
    go(SCENE, "gradients", kind, str(accumulate), str(tmp_path / "two"), how, processes=2)
    one, two = load_file(tmp_path / "one"), load_file(tmp_path / "two")
    assert one.keys() == two.keys()
    assert one["norm"] > 1e-3
    ended = [name for name in one if name.startswith("auxiliary.classifiers.layer1")]
    assert not ended
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-6, rtol=0.0, msg=lambda m, name=name: f"{name}: {m}")


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "norm" in line]


@pytest.mark.slow
def test_a_killed_process_is_restarted_and_all_go_on_to_the_same_loss(data: Path, tmp_path: Path) -> None:
    words = ["train", "decoder", "--data", str(data / "text.txt"), "--steps", "8", "--save-every", "2", "--track", "none", *SETS, "--json"]
    whole = go(SCENE, "killed", "9", "0", *words, "--out", str(tmp_path / "whole"), processes=2)
    hurt = go(SCENE, "killed", "1", "5", *words, "--out", str(tmp_path / "hurt"), processes=2, restarts=1)
    assert losses(tmp_path / "hurt") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "hurt")) == 8
    one, two = (json.loads(done.stdout.strip().splitlines()[-1]) for done in (whole, hurt))
    assert one["loss"] == two["loss"]
    weights = [(checkpoints(tmp_path / name)[0] / "model.safetensors").read_bytes() for name in ("whole", "hurt")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(data: Path, tmp_path: Path) -> None:
    words = ["train", "decoder", "--data", str(data / "text.txt"), "--save-every", "3", "--track", "none", *SETS]
    go("-m", "formers", *words, "--steps", "8", "--out", str(tmp_path / "one"))
    go("-m", "formers", *words, "--steps", "4", "--out", str(tmp_path / "two"), processes=2)
    go("-m", "formers", "resume", str(tmp_path / "two"), "--steps", "8")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def test_rows_are_shared_evenly_and_each_has_some() -> None:
    for size in (1, 2, 3):
        for pieces in (1, 2):
            cut = [rows for rank in range(size) for rows in World(rank, size).rows(7, pieces)]
            assert [i for rows in cut for i in range(7)[rows]] == list(range(7))
            widths = [rows.stop - rows.start for rows in cut]
            assert max(widths) - min(widths) <= 1
    with pytest.raises(FormersError, match="batch=3"):
        World(0, 2).rows(3, 2)


@pytest.mark.slow
def test_several_processes_need_a_folder_that_all_know(data: Path) -> None:
    done = go("-m", "formers", "train", "decoder", "--data", str(data / "text.txt"), "--steps", "1", *SETS, processes=2, code=1)
    assert done.stderr.count("give --out") == 1


@pytest.mark.slow
def test_a_restart_goes_on_with_its_own_run_only(data: Path, tmp_path: Path) -> None:
    words = ["train", "decoder", "--data", str(data / "text.txt"), "--track", "none", *SETS, "--out", str(tmp_path / "run")]
    go("-m", "formers", *words, "--steps", "2")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    go("-m", "formers", *words, "--steps", "4", processes=2, restarts=1, code=1)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
