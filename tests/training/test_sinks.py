"""Sinks: TensorBoard for real, the others by modules that have their shape; none stops a training."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from formers.training.log import Log
from formers.training.sinks import SINKS, Sink, sinks
from helpers import refused

WANDB = """
import json, pathlib
calls = []
class Settings:
    def __init__(self, **options): self.options = options
class Run:
    def __init__(self, id): self.id = id
    def define_metric(self, name, step_metric=None): calls.append(("define", name, step_metric))
    def log(self, data, step=None, commit=None): calls.append(("log", data))
    def finish(self, exit_code=None): calls.append(("finish",))
def init(entity=None, project=None, dir=None, id=None, name=None, config=None, resume=None, settings=None):
    assert pathlib.Path(dir).is_dir()
    calls.append(("init", project, id, resume, config))
    return Run(id)
"""
MLFLOW = """
import types
calls = []
def start_run(run_id=None, experiment_id=None, run_name=None):
    calls.append(("start", run_id, run_name))
    return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "new-id"))
def log_params(params): calls.append(("params", params))
def log_metrics(metrics, step=None): calls.append(("metrics", metrics, step))
def end_run(status="FINISHED"): calls.append(("end",))
"""


@pytest.fixture
def bare(monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake(tmp_path, monkeypatch, bare):
    """A function that installs a module of a name with the given source."""

    def install(name, source):
        place = tmp_path / "modules"
        place.mkdir(exist_ok=True)
        (place / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    yield install
    for name in ("wandb", "mlflow"):
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    return place


def curve(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_has_the_figures_and_a_resumed_run_goes_on_in_them(folder, bare):
    with Log(folder, quiet=True, sinks="tensorboard") as log:
        for step in (1, 2):
            log.record(step=step, loss=float(step), note="no figure")
        keep = log.size()
        for step in (3, 4):
            log.record(step=step, loss=float(step))
    assert curve(folder, "loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    with Log(folder, quiet=True, sinks="tensorboard", keep=keep) as log:
        log.record(step=3, loss=0.5)
    assert curve(folder, "loss") == [(1, 1.0), (2, 2.0), (3, 0.5)]
    with Log(folder, quiet=True, sinks="auto") as log:  # a run that replaces it
        log.record(step=1, loss=9.0)
    assert curve(folder, "loss") == [(1, 9.0)]


def test_figures_of_every_step_are_written_now_and_then_and_those_of_evaluating_always(folder, bare):
    with Log(folder, quiet=True, sinks="tensorboard") as log:
        for step in range(1, 51):
            log.record(often=True, step=step, loss=1.0)
            log.record(step=step, valid_loss=2.0)
    assert curve(folder, "loss")[0] == (1, 1.0)
    assert len(curve(folder, "loss")) < 10
    assert len(curve(folder, "valid_loss")) == 50


def test_wandb_goes_on_in_the_same_run(folder, fake, monkeypatch):
    wandb = fake("wandb", WANDB)
    monkeypatch.setenv("WANDB_MODE", "offline")
    with Log(folder, quiet=True, sinks="auto", facts={"member": "decoder"}) as log:
        log.record(step=1, loss=3.0)
        keep = log.size()
    (_, project, first, resume, config), *rest = [call for call in wandb.calls if call[0] != "define"]
    assert (project, resume, config) == ("formers", "allow", {"member": "decoder"})
    assert ("define", "*", "step") in wandb.calls
    assert rest == [("log", {"loss": 3.0, "step": 1}), ("finish",)]
    wandb.calls.clear()
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with Log(folder, quiet=True, sinks="wandb", keep=keep):
        pass
    assert wandb.calls[0][1:3] == ("mine", first)
    wandb.calls.clear()
    with Log(folder, quiet=True, sinks="wandb"):
        pass
    assert wandb.calls[0][2] != first  # a run that replaces it is another


def test_mlflow_goes_on_in_the_same_run(folder, fake, monkeypatch):
    mlflow = fake("mlflow", MLFLOW)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://nowhere")
    with Log(folder, quiet=True, sinks="auto", facts={"sizes": {"dim": 8}}) as log:
        log.record(step=1, loss=3.0)
        keep = log.size()
    assert mlflow.calls == [
        ("start", None, "run"),
        ("params", {"sizes": "{'dim': 8}"}),
        ("metrics", {"loss": 3.0}, 1),
        ("end",),
    ]
    mlflow.calls.clear()
    with Log(folder, quiet=True, sinks="mlflow", keep=keep):
        pass
    assert mlflow.calls == [("start", "new-id", None), ("end",)]


def test_auto_takes_what_is_installed_and_set_up(folder, fake, monkeypatch):
    def names():
        opened, failed = sinks(folder, "auto", {})
        for sink in opened:
            sink.close()
        return [sink.name for sink in opened], failed

    assert names() == (["tensorboard"], [])
    fake("wandb", WANDB)
    assert names() == (["tensorboard"], [])  # it is there, but nobody uses it
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert names() == (["tensorboard", "wandb"], [])
    assert sinks(folder, "none", {}) == ([], [])


def test_a_sink_that_is_named_must_be_there(folder, bare, monkeypatch):
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    for name, words in {
        "mlflow": ["mlflow is not installed", "`pip install mlflow`"],
        "tensorbord": ["'tensorbord'", "'tensorboard'"],
    }.items():
        with refused(*words):
            Log(folder, quiet=True, sinks=f"tensorboard, {name}", keep=12)
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n'
    (folder / "wandb").mkdir()  # as wandb leaves one where it was used
    monkeypatch.syspath_prepend(str(folder))
    with refused("wandb is not installed"):
        Log(folder, quiet=True, sinks="wandb")


def test_a_sink_that_cannot_be_opened_is_reported(folder, fake, monkeypatch):
    fake("wandb", WANDB + "\ndef init(**options): raise RuntimeError('no key\\nand more')\n")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    with refused("wandb cannot be written to (no key)", "leave wandb out"):
        Log(folder, quiet=True, sinks="wandb")
    with Log(folder, Console(file=io.StringIO()), sinks="auto") as log:
        log.record(step=1, loss=2.0)
    assert log.console.file.getvalue() == "wandb cannot be written to (no key): it gets no metrics\n"
    assert curve(folder, "loss") == [(1, 2.0)]


def test_a_sink_that_fails_is_reported_once_and_stops_nothing(folder, bare, monkeypatch):
    class Broken(Sink):
        name = "broken"
        package = "json"

        def __init__(self, folder, facts, after):
            self.count = 0

        def write(self, step, figures):
            self.count += 1
            if self.count == 2:
                raise ConnectionError("the server is gone")
            assert self.count < 2

    monkeypatch.setitem(SINKS, "broken", Broken)
    with Log(folder, Console(file=io.StringIO(), width=200), sinks="broken,tensorboard") as log:
        for step in range(1, 5):
            log.record(step=step, loss=1.0)
    assert log.console.file.getvalue() == "broken failed (the server is gone): it gets no more metrics, the training continues\n"
    assert len(curve(folder, "loss")) == 4
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
