"""`formers doctor`: it ends in 0 where all is well, in 1 where an executor is wrong, and never in a trap."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from formers.attention import EXECUTORS
from formers.attention.attend import Executor
from formers.cli.app import app
from formers.core import FormersError
from formers.inspect.measure import doctor
from formers.inspect.measure.doctor import machine
from helpers import one_sentence


@pytest.fixture
def quick(monkeypatch):
    """No other process is asked whether bf16 works."""
    monkeypatch.setattr(machine, "computes", lambda instructions=None: True)


def test_all_is_well(quick):
    result = CliRunner().invoke(app, ["doctor", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    facts = json.loads(result.stdout)
    assert facts["ok"]
    assert {"versions", "devices", "executors", "compiler", "distributed", "data", "cache", "extras", "completion"} <= facts.keys()


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_executor_that_is_wrong_ends_in_1_and_is_reported_on_stderr(quick, monkeypatch, flags):
    monkeypatch.setitem(EXECUTORS, "off", Executor(lambda *request: None, lambda q, k, v, request: v + 0 * (q + k), "nothing at all"))
    result = CliRunner().invoke(app, ["doctor", *flags], catch_exceptions=False)
    assert result.exit_code == 1
    assert result.stderr.startswith("formers: off on cpu disagrees with dense (")
    assert result.stdout


@pytest.mark.slow
def test_a_processor_that_traps_on_bf16_does_not_end_it():
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    environment |= {"PYTHONIOENCODING": "ascii", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-m", "formers", "doctor"], env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"bf16" in done.stdout
    assert done.stderr == b""


def facts_of_a_test(wrong):
    """The facts of a self-test, with what is wrong."""
    return {
        "ok": not wrong,
        "device": {
            "device": "cuda:0",
            "name": "A GPU",
            "memory_bytes": 10**9,
            "capability": "9.0",
            "driver": "1.2",
            "built_for": "CUDA 13",
        },
        "versions": {"formers": "1", "torch": "2", "python": "3", "system": "Linux"},
        "precisions": {"float32": "works"},
        "limits": {"float32": 1e-4},
        "executors": [],
        "checks": [],
        "wrong": wrong,
        "peak_bytes": 10**6,
        "seconds": 1.0,
    }


@pytest.mark.parametrize(("wrong", "code"), [([], 0), (["flex: Causal, float32: largest difference 1.0e+00 in values"], 1)])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_failed_self_test_exits_with_1(monkeypatch, wrong, code, flags):
    asked = []
    monkeypatch.setattr(doctor, "self_test", lambda device, tick: asked.append(device) or facts_of_a_test(wrong))
    result = CliRunner().invoke(app, ["doctor", "--device", "cuda:0", *flags], catch_exceptions=False)
    assert asked == ["cuda:0"]
    assert result.exit_code == code
    block = json.loads(result.stdout)["block"] if flags else result.stdout
    assert "device: A GPU, " in block
    assert "capability 9.0, driver 1.2, CUDA 13" in block
    assert result.stderr.splitlines() == [f"formers: {line}." for line in wrong]


def test_an_absent_device_is_refused_in_one_sentence():
    for flags, words in (
        (["--device", "nowhere"], "device='nowhere' is not available"),
        (["--device", "cpu", "--env", "x"], "give one of them"),
    ):
        result = CliRunner().invoke(app, ["doctor", *flags])
        one_sentence(str(result.exception))
        assert isinstance(result.exception, FormersError)
        assert words in str(result.exception)
