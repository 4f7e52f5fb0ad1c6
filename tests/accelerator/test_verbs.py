"""`--device` of the verbs that compute: they run on the test device, and refuse an absent device with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import formers
from accelerator.device import NAME, use_test_device
from commands import command
from helpers import sweep

TINY = {"dim": 16, "heads": 2, "length": 16, "batch": 4, "quiet": True, "track": "none", "sample_tokens": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_bytes(b"abcdefghij" * 400)
    formers.train("decoder", folder / "text.txt", folder / "decoder", steps=1, layers=1, **TINY)
    formers.train("adaptive-span", folder / "text.txt", folder / "span", steps=1, layers=1, **TINY)
    thinking = {"steps": 3, "act": "graves"}
    formers.train("universal-transformer", folder / "text.txt", folder / "thinking", steps=1, member_sizes=thinking, **TINY)
    return folder


VERBS = (
    "eval {runs}/decoder --limit 100",
    "eval {runs}/decoder --limit 100 --precision bf16",
    "show attention {runs}/decoder --text abc",
    "show spans {runs}/span",
    "show ponder {runs}/thinking --text abc",
    "show ponder {runs}/thinking --limit 32",
    "show losses {runs}/decoder --limit 100",
    "show context {runs}/decoder --tokens 5",
)
TRAINING = (
    "train decoder --data {runs}/text.txt --steps 1 --out {runs}/new",
    "resume {runs}/decoder --steps 2",
    "compare decoder --data {runs}/text.txt --steps 1 --out {runs}/compared",
    "ablate decoder --data {runs}/text.txt --steps 1 --seeds 1 --without norm",
    "reproduce parity --steps 1 --seeds 1",
    "choose --length 16",
)


def words(verb: str, runs: Path, device: str) -> list[str]:
    return [*verb.format(runs=runs).split(), "--device", device]


@sweep("float64", [True, False])
@sweep("verb", VERBS)
def test_a_verb_computes_on_the_device(runs: Path, verb: str, float64: bool) -> None:
    """Also on one without float64, such as MPS."""
    with use_test_device(float64=float64) as counts:
        done = command(*words(verb, runs, NAME))
        assert done.returncode == 0, done.stderr
        assert counts.launches > 0
    here = command(*words(verb, runs, "cpu"))
    assert len(done.stdout.splitlines()) == len(here.stdout.splitlines())


def test_an_ablation_and_a_resumed_run_compute_on_the_device(runs: Path) -> None:
    with use_test_device() as counts:
        for verb in TRAINING[1], TRAINING[3]:
            counts.reset()
            done = command(*words(verb, runs, NAME))
            assert done.returncode == 0, done.stderr
            assert counts.launches > 0
    assert json.loads((runs / "decoder" / "run.json").read_text())["device"] == f"{NAME}:0"


@sweep("verb", (*VERBS, *TRAINING))
def test_an_absent_device_is_refused_in_one_sentence(runs: Path, verb: str) -> None:
    done = command(*words(verb, runs, "cuda:1"))
    assert done.returncode == 2
    assert "formers: device='cuda:1' is not available: use cpu, or auto for the best available device." in done.stderr
    assert "Traceback" not in done.stderr
