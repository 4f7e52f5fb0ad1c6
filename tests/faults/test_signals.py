"""Signals, two processes on one run, a full disk, a folder that cannot be written: each has its promised outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from faults import scenes
from faults.conftest import outcome
from formers.model.files import BESIDE, CHECKPOINTS, checkpoints, fault
from helpers import one_sentence

LONG = 100_000
"""More steps than any test waits for."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "formers", *arguments]


def training(data: Path, run: Path, steps: int = LONG) -> subprocess.Popen[str]:
    """A real `formers train` that has begun to take steps."""
    sizes = ["dim=16", "heads=2", "layers=1", "length=8", "batch=2", "dropout=0.1", "sample_tokens=0", "eval_batches=2"]
    sets = [word for size in sizes for word in ("--set", size)]
    words = ["--data", str(data), "--out", str(run), "--steps", str(steps), "--save-every", "50", "--track", "none", *sets]
    process = subprocess.Popen(
        command("train", "decoder", *words),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FORMERS_CACHE": str(data.parent / "cache")},
    )  # fmt: skip
    end = time.monotonic() + 90
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").stat().st_size < 500:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_finishes_the_step_saves_and_ends(number: int, code: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = training(scenes.text(tmp_path), run)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert f"formers resume {run}" in said
    last = checkpoints(run)[0]
    assert fault(last) is None
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1] == json.loads((last / "training.json").read_text())["step"], "no step that was taken is lost"


def test_a_reader_that_goes_away_does_not_end_a_training(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = training(scenes.text(tmp_path), run, steps=1500)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(timeout=90) == 0
    assert json.loads((run / "run.json").read_text())["finished"]


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    data, run = scenes.text(tmp_path), tmp_path / "run"
    process = scenes.start(data, run, steps=scenes.STEPS)
    scenes.wait_for(run / CHECKPOINTS / "step-00000000", process)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(30)
    assert process.exitcode in (143, 0)
    if process.exitcode:
        assert scenes.finished(data, run) == 0
    got, wanted = outcome(run), undisturbed
    assert got["files"] == wanted["files"]
    assert got["metrics"] == wanted["metrics"]


def test_a_second_signal_ends_at_once_and_ruins_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = training(scenes.text(tmp_path), run)
    process.send_signal(signal.SIGINT)
    time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert checkpoints(run)
    assert all(fault(folder) is None for folder in checkpoints(run))


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    data, run = scenes.text(tmp_path), tmp_path / "run"
    process = training(data, run)
    try:
        for words in (["resume", str(run)], ["train", "decoder", "--data", str(data), "--out", str(run), "--overwrite"]):
            second = subprocess.run(command(*words), capture_output=True, text=True, timeout=60)
            assert second.returncode == 2, second.stderr
            assert "another process is training" in second.stderr
            one_sentence(second.stderr.strip())
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert all(fault(folder) is None for folder in checkpoints(run))


def test_a_full_disk_is_reported_and_the_old_checkpoint_stands(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    data, run = scenes.text(tmp_path), tmp_path / "run"
    hurt = {"file_bytes": 5000, "after": run / CHECKPOINTS / "step-00000004"}
    assert scenes.finished(data, run, hurt) == 2
    said = (tmp_path / "error.txt").read_text()
    assert "cannot be written" in said
    assert "formers resume" in said
    one_sentence(said)
    assert checkpoints(run)[0].name == "step-00000004"
    assert fault(checkpoints(run)[0]) is None
    assert not list((run / CHECKPOINTS).glob(f"{BESIDE}*"))
    assert scenes.finished(data, run) == 0  # once there is room again
    assert outcome(run) == undisturbed


def test_a_really_full_disk(tmp_path: Path) -> None:
    """The same on a file system of its own, where the kernel lets this user make one."""
    script = f"""
    mount -t tmpfs -o size=600k none {tmp_path}/disk || exit 77
    cd {tmp_path}
    {sys.executable} -m formers train decoder --data {tmp_path}/text.txt --out {tmp_path}/disk/run --steps 40 --save-every 1 --track none \
        --set dim=32 --set heads=2 --set layers=1 --set length=8 --set batch=2 --set sample_tokens=0 --set keep=30
    echo code $?
    {sys.executable} -c "import formers; formers.load('{tmp_path}/disk/run'); print('loads')"
    """
    scenes.text(tmp_path)
    (tmp_path / "disk").mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORMERS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no file system of one's own here")
    assert "code 2" in done.stdout, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "loads" in done.stdout


def test_a_folder_that_cannot_be_written_is_reported_before_the_first_step(tmp_path: Path) -> None:
    data = scenes.text(tmp_path)
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "run", Path("/proc/formers/run")):
        done = subprocess.run(
            command("train", "decoder", "--data", str(data), "--out", str(out)), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 2, done.stderr
        assert "cannot be written" in done.stderr
        one_sentence(done.stderr.strip())


def test_one_step_without_a_finite_loss_is_skipped_and_kept_for_looking_at(tmp_path: Path) -> None:
    from safetensors import safe_open

    data, run = scenes.text(tmp_path), tmp_path / "run"
    assert scenes.finished(data, run, {"spoil": [5]}) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (bad,) = [line for line in lines if line.get("skipped")]
    assert bad["step"] == 6
    assert bad["loss"] is None
    with safe_open(run / bad["batch"], framework="pt") as file:
        assert file.metadata()["loss"] == "nan"
        assert file.get_tensor("0.tokens").shape == (4, 8)
    last = checkpoints(run)[0]
    with safe_open(last / "model.safetensors", framework="pt") as file:
        assert all(bool(file.get_tensor(name).isfinite().all()) for name in file.keys())  # noqa: SIM118


def test_three_in_a_row_stop_the_run_with_the_last_good_checkpoint_intact(tmp_path: Path) -> None:
    data, run = scenes.text(tmp_path), tmp_path / "run"
    assert scenes.finished(data, run, {"spoil": [5, 6, 7]}) == 3
    said = (tmp_path / "error.txt").read_text()
    assert "steps 6 to 8" in said
    assert "learning_rate" in said
    assert all(fault(folder) is None for folder in checkpoints(run))
    assert scenes.finished(tmp_path / "text.txt", tmp_path / "again", {"spoil": [5, 6, 9, 10]}) == 0  # two, then two: not three in a row
