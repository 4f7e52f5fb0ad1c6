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
from formers.inspect.measure.doctor import machine


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
