"""The command line: help at once, JSON last, one sentence and exit code 2 for mistakes, a bar on a terminal only.

What depends on the process is tested with one: a training through a pipe, a bar on a terminal, a mistake, and what help loads.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from commands import command
from helpers import one_sentence, sweep

TINY = ["--set", "dim=16", "--set", "heads=2", "--set", "layers=1", "--set", "length=16", "--set", "batch=2"]


def process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "formers", *arguments], capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(b"to be or not to be, " * 60)
    return str(path)


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    done = process("train", "decoder", "--data", text, "--steps", "3", *TINY, "--out", str(out), "--counts", "--sample", "5", "--json")
    assert done.returncode == 0, done.stderr
    return out, done


def test_training_ends_with_one_line_of_json(run):
    out, done = run
    results = json.loads(done.stdout.splitlines()[-1])
    assert {"run", "loss", "bits_per_byte", "tokens_per_second", "count_bits_per_byte", "steps"} <= results.keys()
    assert results["steps"] == 3
    assert sorted(f.parent.name for f in out.rglob("model.safetensors")) == ["step-00000001", "step-00000002", "step-00000003"]


def test_through_a_pipe_there_are_no_control_codes(run):
    _, done = run
    assert "\x1b" not in done.stderr + done.stdout
    assert "\r" not in done.stderr


def test_a_run_can_be_evaluated_and_can_write(run):
    out, done = run
    evaluated = json.loads(command("eval", str(out), "--json").stdout.splitlines()[-1])
    assert evaluated["bits_per_byte"] == pytest.approx(json.loads(done.stdout.splitlines()[-1])["bits_per_byte"], abs=1e-6)
    written = command("generate", str(out), "--prompt", "to be", "--max-new-tokens", "4", "--seed", "1")
    assert written.returncode == 0
    assert written.stdout.startswith("to be")


def test_on_a_terminal_there_is_a_bar(text, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "formers", "train", "decoder", "--data", text, "--steps", "3", *TINY, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert process.wait(timeout=60) == 0
    assert b"\x1b[" in shown
    assert "━".encode() in shown
    assert b"tokens/s" in shown


MISTAKES = [
    (["train", "decodr"], ["decodr", "'decoder'"]),
    (["train", "decoder", "--set", "layrs=3"], ["layrs", "'layers'"]),
    (["train", "decoder", "--stepz", "3"], ["--stepz", "--steps"]),
    (["trian"], ["trian", "train"]),
    (["train", "decoder", "--data", "nowhere.txt"], ["nowhere.txt", "stdlib"]),
    (["train", "decoder", "--set", "steps=3"], ["--steps"]),
    (["train", "decoder", "--set", "heads=3"], ["heads=3", "dim=128"]),
    (["generate", "nowhere"], ["nowhere", "config.json"]),
    (["show", "member", "decodr"], ["decodr", "'decoder'"]),
]


@sweep(("arguments", "words", "run"), [*((*mistake, command) for mistake in MISTAKES), (*MISTAKES[0], process)])
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, words, run, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    line = done.stderr.strip()
    assert line.startswith("formers: ")
    assert "\n" not in line
    for word in words:
        assert word in line
    if "--stepz" not in arguments:
        one_sentence(line)
    assert not (tmp_path / "runs").exists()


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    done = command("train", "decoder", "--data", "empty.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert "empty.txt is empty" in done.stderr


def test_a_prompt_longer_than_the_learned_table_slides_and_says_so(text, tmp_path):
    out = str(tmp_path / "run")
    assert command("train", "decoder", "--data", text, "--steps", "1", *TINY, "--set", "position=learned", "--out", out).returncode == 0
    done = command("generate", out, "--prompt", "x" * 17, "--max-new-tokens", "2")
    assert done.returncode == 0
    assert done.stdout.startswith("x" * 17)
    assert "beyond 16 tokens" in done.stderr


@sweep("flag", ["--help", "--version"])
def test_help_and_version_do_not_import_torch(flag):
    code = f"""
import sys
sys.argv = ["formers", "{flag}"]
from formers.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "formers" in done.stdout
    assert "Assertion" not in done.stderr


def test_a_bench_that_misses_its_limit_exits_1_with_check(monkeypatch):
    from typer.testing import CliRunner

    from formers.bench import decode
    from formers.cli.app import app

    monkeypatch.setattr(decode, "LIMITS", {"speedup": (1e9, float("inf"))})
    monkeypatch.setattr(decode, "bench_decode", lambda context, rounds: {"speedup": 40.0})  # its own tests run it
    runner = CliRunner()
    arguments = ["bench", "decode", "--context", "8", "--rounds", "1"]
    assert runner.invoke(app, arguments).exit_code == 0
    missed = runner.invoke(app, [*arguments, "--check"])
    assert missed.exit_code == 1
    assert "missed: speedup" in missed.output


def test_a_run_is_resumed_to_a_larger_budget_and_a_finished_one_is_not(run, tmp_path):
    import shutil

    copy = shutil.copytree(run[0], tmp_path / "copy")
    spent = command("resume", str(copy))
    assert spent.returncode == 2
    assert "has spent its budget" in spent.stderr
    one_sentence(spent.stderr.strip())
    done = command("resume", str(copy), "--steps", "5", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 5
    assert "resuming from step 3" in done.stderr


def test_a_run_keeps_the_choices_that_make_it_again(run, tmp_path):
    out, done = run
    again = process("train", "decoder", "--config", str(out / "run.yaml"), "--out", str(tmp_path / "again"), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["loss"] == json.loads(done.stdout.splitlines()[-1])["loss"]
    unnamed = command("train", "--config", str(out / "run.yaml"), "--out", str(tmp_path / "unnamed"), "--steps", "1", "--json")
    assert unnamed.returncode == 0, unnamed.stderr
    lost = command("train", "decoder", "--from", str(out), "--steps", "1")
    assert lost.returncode == 2
    assert "give --data" in lost.stderr
    more = command("train", "decoder", "--config", str(out / "run.yaml"), "--out", str(tmp_path / "more"), "--steps", "4", "--json")
    assert json.loads(more.stdout.splitlines()[-1])["steps"] == 4
