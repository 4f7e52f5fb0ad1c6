"""`formers members`, `--version` and every `--help` answer without loading torch, within 0.7 s of CPU time."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from formers.cli import names
from formers.family import MEMBERS
from formers.inspect.measure.members import about

MOST_SECONDS = 0.7

EVERY_HELP = """
import sys
import typer.main
from typer.testing import CliRunner
from formers.cli.app import app

def lines(command, path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from lines(inner, [*path, name])

asked = 0
for path in lines(typer.main.get_command(app), []):
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0, (path, result.output)
    assert "Usage" in result.output, path
    heavy = sorted({"torch", "numpy", "matplotlib"} & set(sys.modules))
    assert not heavy, (path, heavy)
    asked += 1
print(asked)
"""


def python(*arguments: str) -> tuple[str, float]:
    """What a Python process prints, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_no_help_loads_torch() -> None:
    assert int(python("-c", EVERY_HELP)[0]) > 40


@pytest.mark.parametrize(
    "line", ["--help", "--version", "members", "members --json", "bench --help", "reproduce", "reproduce parity --help", "train --help"]
)
def test_cpu_time(line: str) -> None:
    seconds = min(python("-m", "formers", *line.split())[1] for _ in range(2))
    assert seconds < MOST_SECONDS


def test_members_tells_what_the_registry_holds() -> None:
    facts = json.loads(python("-m", "formers", "members", "--json")[0])
    assert facts == [{"name": name, "about": about(m), "presets": list(m.presets)} for name, m in MEMBERS.items()]
    assert {name: known.about for name, known in names.members().items()} == {name: about(m) for name, m in MEMBERS.items()}
