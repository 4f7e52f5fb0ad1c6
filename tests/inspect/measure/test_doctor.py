"""The doctor: what it finds right is right, what is wrong it finds, and nothing that is missing or broken makes it fail."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from formers.attention import EXECUTORS
from formers.attention.attend import Executor
from formers.attention.executors import dense
from formers.core.compiler import compiler
from formers.data.catalogue import NAMES, SETS
from formers.inspect.draw.doctor import describe
from formers.inspect.measure.doctor import cases, complaints, examine, executors, machine, more, stores
from formers.inspect.measure.doctor.examine import _flex
from formers.inspect.measure.patterns import pattern_classes
from formers.patterns import Local
from helpers import one_sentence

examine_module = importlib.import_module("formers.inspect.measure.doctor.examine")  # `examine` is also the function in it
PROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(scope="module")
def verdicts():
    """The verdicts on all executors, which take a second or two."""
    return executors.check_executors("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch, verdicts):
    """No other process is asked whether bf16 works, and executors are checked once."""
    monkeypatch.setattr(machine, "computes", lambda instructions=None: True)
    monkeypatch.setattr(examine_module, "check_executors", lambda device: verdicts)


def verdict(monkeypatch, run, refuses=lambda *request: None):
    monkeypatch.setitem(EXECUTORS, "new", Executor(refuses, run, "a new one"))
    (found,) = executors.check_executors("cpu", names=["new"])
    return found


def spoilt(part, q, k, v, request):
    """Attention with one value changed in its result, or in one of its gradients."""
    y = dense.run(q, k, v, request)
    change = torch.zeros_like(y)
    change[0, 0, 0, 0] = 1e-3
    given = dict(q=q, k=k, v=v).get(part, y)[:, :, : y.shape[2]]  # of one query there are fewer than of keys
    return y + change if part == "values" else y + (given - given.detach()) * change


def test_every_registered_executor_is_checked_and_agrees(verdicts):
    found = verdicts
    assert [v["executor"] for v in found] == list(EXECUTORS)
    refusing = next(v for v in found if v["executor"] == "flex")
    assert refusing["status"] == "refuses"
    asked = len([*cases.short_cases(), *cases.long_cases()])
    assert asked > 4 * len(cases.specimens())
    assert "FlexAttention has no backward on a CPU" in refusing["refuses"]
    for v in found:
        if v is refusing:
            continue
        assert v["status"] == "works", v
        assert v["checked"] + sum(map(len, v["refuses"].values())) == 2 * asked
        assert v["largest_difference"]["float64"] < 1e-10
        assert 0 < v["largest_difference"]["float32"] < 1e-4


def test_every_simple_pattern_has_a_specimen_with_all_its_switches():
    assert {type(pattern) for pattern in cases.specimens()} == set(pattern_classes())
    local = [pattern for pattern in cases.specimens() if isinstance(pattern, Local)]
    assert {(pattern.causal, pattern.include_self) for pattern in local} == {(a, b) for a in (True, False) for b in (True, False)}


@pytest.mark.parametrize("part", ["values", "q", "k", "v"])
def test_a_wrong_value_or_gradient_is_found(monkeypatch, part):
    found = verdict(monkeypatch, lambda q, k, v, request: spoilt(part, q, k, v, request))
    assert found["status"] == "wrong"
    words = "values" if part == "values" else f"gradient of {part}"
    assert len(found["wrong"]) == found["checked"]
    assert all(": largest difference " in line and line.endswith(words) for line in found["wrong"])


def test_nothing_but_queries_without_keys_tells_uniform_attention_from_none(monkeypatch):
    def careless(q, k, v, request):
        allowed = request.mask(q.device)
        scores = (q * request.scale) @ k.transpose(-2, -1)
        scores = scores if request.bias is None else scores + request.added(q.dtype)
        weights = torch.softmax(scores if allowed is None else scores.masked_fill(~allowed, -1e9), dim=-1)
        return torch.dropout(weights, request.dropout, train=True) @ v

    found = verdict(monkeypatch, careless)
    assert found["status"] == "wrong"
    kinds = ("queries without keys", "include_self=False", "rows of 600 with padding")  # queries after the end of a row of BigBird
    without = [line for line in found["wrong"] if any(kind in line for kind in kinds)]
    assert without == found["wrong"]


def test_nan_a_wrong_shape_and_an_exception_are_found_and_survive_json(monkeypatch):
    for run in (lambda q, k, v, request: v * float("nan"), lambda q, k, v, request: v[:, :, :-1] * q[:, :, :-1] * k[:, :, :-1]):
        found = verdict(monkeypatch, run)
        assert found["status"] == "wrong"
        assert found["largest_difference"]["float64"] == "not a number"
        json.loads(json.dumps(found, allow_nan=False))

    def fail(q, k, v, request):
        raise RuntimeError("no kernel.\nmore")

    found = verdict(monkeypatch, fail)
    assert found["status"] == "wrong"
    assert found["wrong"][0].endswith("RuntimeError: no kernel")


def test_refusals_are_reported_with_their_reason(monkeypatch):
    found = verdict(monkeypatch, dense.run, lambda *request: "it is Sunday")
    assert found["status"] == "refuses"
    assert list(found["refuses"]) == ["it is Sunday"]
    some = verdict(monkeypatch, dense.run, lambda request, q, k, v: None if q.dtype == torch.float32 else "it is not float32")
    assert some["status"] == "works"
    assert list(some["largest_difference"]) == ["float32"]
    text = shown(facts_with(some))
    assert "refuses: it is not float32" in text


def facts_with(*verdicts):
    facts = examine()
    return {**facts, "executors": list(verdicts), "ok": all(v["status"] != "wrong" for v in verdicts)}


def shown(facts, encoding="utf-8", width=100):
    console = Console(width=width, color_system=None, file=None, record=True, highlight=False)
    with console.capture() as capture:
        console.print(describe(facts, encoding))
    return capture.get()


def test_a_wrong_executor_is_a_sentence_and_a_mark(monkeypatch):
    bad = verdict(monkeypatch, lambda q, k, v, request: spoilt("values", q, k, v, request))
    facts = facts_with(bad)
    (line,) = complaints(facts)
    one_sentence(line)
    assert line.startswith("new on cpu disagrees with dense (")
    assert "WRONG: " in shown(facts)
    assert complaints(facts_with(replace_status(bad))) == []


def replace_status(verdict):
    return {**verdict, "status": "works", "wrong": []}


def test_the_report_holds_the_facts_and_is_ascii_where_it_must_be(monkeypatch):
    monkeypatch.setattr(machine, "cpu_name", lambda: "Zäpf → 9000")
    facts = examine()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    text = shown(facts)
    for word in ("Zäpf → 9000", "float64 works", "bf16 works", "sdpa", "FORMERS_DATA", *NAMES, "matplotlib", "completion"):
        assert word in text
    assert "Z?pf -> 9000" in shown(facts, "ascii")
    assert facts["ok"]
    assert "All executors agree with dense." in text


@pytest.mark.parametrize(
    ("plain", "fewer", "amx", "words"),
    [
        (True, True, True, "works"),
        (True, False, False, "works"),
        (False, True, True, "works without AMX"),
        (False, True, False, "does not work"),
        (False, False, True, "does not work"),
    ],
)
def test_bf16_is_tried_elsewhere_and_reported_as_it_is(monkeypatch, plain, fewer, amx, words):
    monkeypatch.setattr(machine, "computes", lambda instructions=None: plain if instructions is None else fewer)
    monkeypatch.setattr(machine, "announces_amx", lambda: amx)
    assert machine.half_on_cpu()["bf16"].startswith(words)
    assert (machine.half_on_cpu()["bf16"] == "works") == plain
    assert "bf16" not in machine.precisions("cpu")


def test_a_precision_that_a_device_lacks_is_reported(monkeypatch):
    monkeypatch.setitem(machine.TYPES, "float64", torch.int64)
    monkeypatch.setattr(torch, "ones", lambda *shape, dtype, device: (_ for _ in ()).throw(TypeError("no such type here")))
    assert machine.precisions("cpu") == dict.fromkeys(("float32", "float64"), "does not work: no such type here")


def test_data_are_found_where_they_lie(monkeypatch, tmp_path):
    given, cache = tmp_path / "given", tmp_path / "cache"
    for place in (given / "enwik8" / "enwik8.gz", given / "ptb" / "ptb.train.txt", cache / "sets" / "tinyshakespeare" / "input.txt"):
        place.parent.mkdir(parents=True)
        place.write_bytes(b"12345")
    monkeypatch.setenv("FORMERS_CACHE", str(cache))
    monkeypatch.setenv("FORMERS_DATA", str(given))
    facts = stores.data_facts()
    assert facts["state"] == "folder"
    sets = facts["sets"]
    assert sets["enwik8"] == "in FORMERS_DATA"
    assert sets["ptb"] == "1 of 3 files in FORMERS_DATA, 2 of 3 files to be downloaded"
    assert sets["tinyshakespeare"] == "in the cache"
    assert sets["text8"] == sets["multi30k"] == "to be downloaded"
    assert sets["stdlib"] == sets["numbers"] == "made here"
    assert list(sets) == list(NAMES)
    assert stores.cache_facts() == {"folder": str(cache), "exists": True, "files": 1, "bytes": 5, "writable": True}


def test_folders_that_are_not_there_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("FORMERS_CACHE", "/proc/nowhere")
    facts = examine()
    assert facts["data"]["state"] == "missing"
    assert facts["data"]["sets"]["ptb"].startswith("refused")
    assert facts["data"]["sets"]["stdlib"] == "made here"
    assert not facts["cache"]["writable"]
    assert not facts["cache"]["exists"]
    text = shown(facts, width=200)
    assert "nowhere is not a folder" in text
    assert "set FORMERS_CACHE to a folder that can" in text
    monkeypatch.delenv("FORMERS_DATA")
    assert stores.data_facts()["state"] == "unset"


def test_whereabouts_looks_where_fetch_does(monkeypatch, tmp_path):
    from formers.data.download import whereabouts

    (package,) = SETS["enwik8"].packages
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path))
    monkeypatch.delenv("FORMERS_DATA", raising=False)
    assert whereabouts("enwik8", package) == "download"
    (tmp_path / "sets" / "enwik8").mkdir(parents=True)
    (tmp_path / "sets" / "enwik8" / "enwik8").touch()
    assert whereabouts("enwik8", package) == "cached"


def test_extras_and_packages_are_those_of_the_project():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    optional = {name: wanted for name, wanted in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    assert {name: [extra.package + extra.bound for extra in packages] for name, packages in more.EXTRAS.items()} == optional
    assert {line.partition(">=")[0] for line in project["dependencies"]} == set(machine.PACKAGES)


def test_what_is_missing_comes_with_its_command(monkeypatch):
    monkeypatch.setattr(more, "installed", lambda package: None)
    found = {extra["package"]: extra for extra in more.extras()}
    assert found["matplotlib"]["install"] == "pip install 'matplotlib>=3.8'"
    assert found["wandb"]["install"] == "pip install wandb"
    assert len(found) == len(more.extras())
    assert all(extra["version"] is None for extra in found.values())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_found_where_it_is_installed(monkeypatch, tmp_path, shell):
    monkeypatch.setattr(more, "_shell", lambda: shell)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert more.completion() == {"shell": shell, "installed": False, "install": "formers --install-completion"}
    place = tmp_path / more.COMPLETIONS[shell]
    place.parent.mkdir(parents=True)
    place.touch()
    assert more.completion()["installed"]


@pytest.mark.parametrize(("shell", "function"), [("bash", "install_bash"), ("zsh", "install_zsh"), ("fish", "install_fish")])
def test_typer_still_installs_completion_where_it_is_looked_for(monkeypatch, tmp_path, shell, function):
    shared = pytest.importorskip("typer._completion_shared")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    place = getattr(shared, function)(prog_name="formers", complete_var="_FORMERS_COMPLETE", shell=shell)
    assert place == tmp_path / more.COMPLETIONS[shell]


def test_a_compiler_is_looked_for_and_not_started(monkeypatch):
    monkeypatch.setenv("CXX", "my-own-c++")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == "my-own-c++" else None)
    assert compiler.__wrapped__() == "/bin/my-own-c++"
    monkeypatch.delenv("CXX")
    assert compiler.__wrapped__() is None
    assert "install g++ or clang++" in shown({**examine(), "compiler": None})


def test_where_flex_attention_runs_is_said():
    assert "forward pass only" in _flex(["cpu"], "/usr/bin/g++")
    assert _flex(["cpu"], None).startswith("not:")
    assert _flex(["cpu", "cuda:0"], None) == "on cuda:0, forwards and backwards"
    assert "FlexAttention" in shown(examine())


def test_one_that_makes_kernels_is_checked_on_a_few(monkeypatch):
    monkeypatch.setitem(EXECUTORS, "new", EXECUTORS["dense"]._replace(kernels=3))
    (found,) = executors.check_executors("cpu", names=["new"])
    assert found["checked"] == 3
