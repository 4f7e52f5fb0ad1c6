"""How the command line behaves: -v and -q, its log, JSON, terminals without UTF-8, closed pipes, completion, exit codes."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer.main
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

import formers
from formers.cli import app as command
from formers.cli import names
from formers.cli.verbosity import Verbosity
from formers.core import FormersError
from formers.data.catalogue import OFFERED
from formers.data.progress import silent, silently
from formers.data.reading import Reading
from formers.family import MEMBERS
from formers.inspect.measure.patterns import pattern_classes, pattern_names
from formers.training.config import Settings
from formers.training.divergence import Diverged
from formers.training.log import Log, progress_bar
from helpers import one_sentence, sweep

TEXT = "to be, or not to be: \u2192 \u00e9. "
TINY = ["--set", "dim=16", "--set", "heads=2", "--set", "layers=1", "--set", "length=16", "--set", "batch=2"]
ROOT = Path(__file__).parents[2]


def verbs(tree=None, path=()):
    """Every command that does something, by its words."""
    tree = typer.main.get_command(command.app) if tree is None else tree
    for name, inner in tree.commands.items():
        if hasattr(inner, "commands"):
            yield from verbs(inner, (*path, name))
        else:
            yield " ".join((*path, name)), inner


@pytest.fixture
def call(monkeypatch):
    """Runs a line as the program does, in this process; its exit code, and its standard output as bytes."""

    def run(*words, encoding="utf-8"):
        out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
        monkeypatch.setattr(sys, "argv", ["formers", *words])
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended:
            command.main()
        out.flush()
        return ended.value.code or 0, out.buffer.getvalue()

    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model that has learned nothing."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    formers.create("decoder", vocab=256, dim=16, heads=2, layers=1, length=16).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(TEXT * 60, encoding="utf-8")
    return str(path)


@sweep("verb", [name for name, _ in verbs()])
def test_every_verb_takes_json_verbose_and_quiet(verb):
    taken = {flag for parameter in dict(verbs())[verb].params for flag in parameter.opts}
    assert {"--json", "--verbose", "-v", "--quiet", "-q"} <= taken


@pytest.mark.parametrize("place", ["first", "last"])
def test_quiet_leaves_results_and_nothing_else(call, capfd, notes, tmp_path, place):
    line = ["train", "decoder", "--data", notes, "--steps", "2", *TINY, "--out", str(tmp_path / "run"), "--json"]
    code, out = call(*(["-q", *line] if place == "first" else [*line, "-q"]))
    assert code == 0
    assert json.loads(out)["steps"] == 2
    assert capfd.readouterr().err == ""


def test_quiet_does_not_hide_errors(call, capfd):
    code, _ = call("generate", "nowhere", "-q")
    assert code == 2
    one_sentence(capfd.readouterr().err.strip())


def test_what_quiet_silences_is_heard_again_afterwards():
    verbosity = Verbosity()
    verbosity.quiet = True
    with verbosity.applied(), warnings.catch_warnings(record=True) as heard:
        assert silent()
        warnings.warn("nobody hears this", stacklevel=1)
    assert not heard
    assert not silent()
    assert not logging.getLogger("formers").handlers


def test_quiet_reaches_the_bars_of_a_terminal(monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    with Log(None) as log, log.part("evaluating") as tick:
        tick(1, 2)
    assert log.bar is not None
    assert "evaluating" in capfd.readouterr().err
    with silently(), Log(None) as log, log.part("evaluating") as tick, progress_bar("evaluating") as other:
        log.say("a notice")
        tick(1, 2)
        other(1, 2)
    assert log.bar is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", [["-v", "generate", "nowhere"], ["generate", "nowhere", "-v"], ["generate", "nowhere", "--verbose"]])
def test_verbose_shows_where_an_error_came_from(call, capfd, line):
    code, _ = call(*line)
    err = capfd.readouterr().err
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("formers: nowhere is not a saved model")


def test_verbose_shows_the_log_by_level(call, capfd, notes, tmp_path):
    kept = ["--out", str(tmp_path / "run"), "--overwrite"]
    line = ["train", "decoder", "--data", notes, "--tokens", "characters", "--steps", "1", *TINY, *kept]
    said = {}
    for flags in ("", "-v", "-vv"):
        call(*line, *flags.split())
        said[flags] = capfd.readouterr().err
    assert "formers: info: " not in said[""]
    assert "formers: info: training on cpu in float32" in said["-v"]
    assert "formers: info: saved " in said["-v"]
    assert "formers: debug: " not in said["-v"]
    assert "formers: debug: " in said["-vv"]


def test_a_warning_of_the_library_is_one_line(call, capfd, saved):
    code, _ = call("generate", saved, "--max-new-tokens", "30")
    err = capfd.readouterr().err
    assert code == 0
    assert err.startswith("formers: warning: beyond 16 tokens")
    assert err.count("\n") == 1
    call("generate", saved, "--max-new-tokens", "30", "--quiet")
    assert capfd.readouterr().err == ""


def test_of_several_processes_the_first_one_warns(monkeypatch):
    assert Verbosity().level == logging.WARNING
    monkeypatch.setenv("RANK", "1")
    assert Verbosity().level == logging.ERROR


def test_a_warning_stands_above_a_live_bar_and_brackets_stay_brackets():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with Verbosity().applied(), Progress(console=console) as bar:
        bar.add_task("training")
        logging.getLogger("formers.somewhere").warning("[bold]odd[/bold] %s", "words")
    assert "formers: warning: [bold]odd[/bold] words\n" in screen.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "line", ["members", "members --json", "show member transformer", "show pattern causal", "show positions", "--help", "train --help"]
)
def test_no_verb_dies_where_the_terminal_is_not_utf_8(call, line, encoding):
    code, out = call(*line.split(), encoding=encoding)
    assert code == 0
    assert out.decode(encoding)
    assert encoding != "ascii" or out.isascii()


def test_generated_text_is_escaped_where_it_cannot_be_shown(call, saved):
    line = ["generate", saved, "--prompt", "\u2192\u00e9", "--max-new-tokens", "1", "--temperature", "0"]
    assert call(*line)[1].startswith("\u2192\u00e9".encode())
    assert call(*line, encoding="ascii")[1].startswith(rb"\u2192\xe9")
    assert call(*line, encoding="latin-1")[1].startswith(b"\\u2192\xe9")


@sweep("line", ["members", "show pattern causal --json", "--help"])
def test_a_closed_pipe_ends_without_a_word(line):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "formers", *line.split()], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("line", ["members", "members --json"])
def test_a_full_disk_is_reported_in_a_sentence(line):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "formers", *line.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    one_sentence(done.stderr.strip())


def test_an_output_that_was_closed_wants_nothing(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["formers", "members", "--json"])
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert not ended.value.code
    assert capfd.readouterr().err == ""


def test_positions_as_json(call):
    facts = json.loads(call("show", "positions", "--length", "3", "--dim", "4", "--json")[1])
    assert (facts["length"], facts["dim"]) == (3, 4)
    assert facts["values"][0] == [0.0, 1.0, 0.0, 1.0]
    assert len(facts["values"]) == 3


def test_completion_knows_what_the_registries_know():
    assert {name: known.presets for name, known in names.members().items()} == {name: list(m.presets) for name, m in MEMBERS.items()}
    assert {name: known.options for name, known in names.members().items()} == {name: m.options for name, m in MEMBERS.items()}
    ours = {name: cls for name, cls in zip(pattern_names(), pattern_classes(), strict=True) if cls.__module__.startswith("formers.")}
    assert names.patterns() == {name: list(ours[name].model_fields) for name in names.patterns()}
    assert names.patterns().keys() == ours.keys()
    assert names.data_sets() == list(OFFERED)
    assert names.settings() == [*Settings.model_fields, *Reading.model_fields]


QUERIES = {
    "tr": ["train", "translate"],
    "train dec": ["decoder"],
    "train ": [*MEMBERS],
    "show pattern loc": ["local-grid", "local"],
    "show member ": [*MEMBERS],
    "train decoder --data n": ["numbers", "notes.txt"],
    "train decoder --data wikitext-1": ["wikitext-103"],
    "train decoder --data task:a": ["task:addition", "task:agreement"],
    "train decoder --preset ": ["base"],
    "train decoder --set lay": ["layers="],
    "train decoder --set batch=2 --set learning_r": ["learning_rate="],
    "train decoder --set step": [],
    "train universal-transformer --set step": ["steps=", "step_signal="],
    "show pattern local --set win": ["window="],
    "show member encoder --set cl": ["classes="],
    "generate ": ["runs/mine", "saved"],
    "resume runs/m": ["runs/mine"],
    "eval runs/mine --checkpoint ": ["last", "best"],
    "train decoder --from ./r": ["./runs/mine"],
    "train --qui": ["--quiet"],
    "train decoder --set layers = ": [],
    "generate '": ["runs/mine", "saved"],
}
COMPLETING = """
import io, json, os, sys
from formers.cli import main
answers, sys.argv = {}, ["formers"]
os.environ["_FORMERS_COMPLETE"] = "complete_bash"
shown = sys.stdout
for line in json.loads(sys.stdin.read()):
    os.environ["COMP_WORDS"] = "formers " + line
    os.environ["COMP_CWORD"] = str(len(line.split()) + line.endswith(" "))
    sys.stdout = io.StringIO()
    try:
        main()
    except SystemExit:
        answers[line] = sys.stdout.getvalue().split()
sys.stdout = shown
print(json.dumps({"answers": answers, "torch": "torch" in sys.modules}))
"""


def test_a_tab_completes_names_without_loading_torch(tmp_path):
    (tmp_path / "runs" / "mine" / "ckpt" / "step-00000001").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").touch()
    (tmp_path / "runs" / "mine" / "ckpt" / "step-00000001" / "config.json").touch()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "config.json").touch()
    (tmp_path / "notes.txt").touch()
    done = subprocess.run(
        [sys.executable, "-c", COMPLETING], input=json.dumps(list(QUERIES)), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert not found["torch"]
    assert found["answers"] == QUERIES


def test_a_tab_that_fails_says_nothing(call, capfd, monkeypatch):
    def fail():
        raise RuntimeError("no names today")

    monkeypatch.setattr(names, "members", fail)
    monkeypatch.setenv("_FORMERS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "formers train ")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert call() == (1, b"")
    assert capfd.readouterr().err == ""


def test_completion_can_be_installed(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "formers", "--install-completion", "bash"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "_FORMERS_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "formers.sh").read_text()


def test_exit_codes_are_those_of_the_documents():
    table = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8").partition("## Exit codes")[2].partition("##")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == {0, command.FAILED, command.USAGE, command.DIVERGED, command.STOPPED, 129, 143}


@pytest.mark.parametrize(("error", "code"), [(Diverged("the loss is nan: use less."), 3), (FormersError("no: use yes."), 2)])
def test_an_error_has_its_exit_code(monkeypatch, call, capfd, error, code):
    def fail(*given, **options):
        raise error

    monkeypatch.setattr("formers.training.train", fail)
    assert call("train", "decoder", "-q") == (code, b"")
    assert capfd.readouterr().err == f"formers: {error}\n"


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def fail():
        raise RuntimeError("ours")

    monkeypatch.setattr(names, "members", fail)
    monkeypatch.setattr(sys, "argv", ["formers", "members", "--json"])
    with pytest.raises(RuntimeError, match="ours"):
        command.main()


def test_the_options_reach_verbs_through_the_app_object_too():
    assert CliRunner().invoke(command.app, ["members", "-q", "--json"]).exit_code == 0
