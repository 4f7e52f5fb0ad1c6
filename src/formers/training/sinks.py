"""Experiment trackers that get a run's metrics: TensorBoard, Weights & Biases, MLflow, each if installed and chosen.

A sink takes the metrics of a step. A resumed run continues in the same place: TensorBoard drops the steps after the checkpoint, and
the others find their run by the id in the folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from formers.core import FormersError, nearest


class Sink:
    """A tracker that metrics are written to; `after` is the last step of a resumed run, None for a new one."""

    name: ClassVar[str]
    package: ClassVar[str]
    """The name for `pip install`."""
    every: ClassVar[float] = 0.5
    """Seconds between two writes of step metrics."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        raise TypeError(f"{type(self).__name__} cannot be opened: define __init__(folder, facts, after).")

    @classmethod
    def wanted(cls) -> bool:
        """Whether the user has configured it, so that `auto` takes it."""
        return True

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the metrics of a step."""
        raise TypeError(f"{type(self).__name__} takes no figures: define write(step, figures).")

    def close(self) -> None:
        """Flushes and closes."""


class TensorBoard(Sink):
    """Event files in RUN/tensorboard."""

    name = "tensorboard"
    package = "tensorboard"

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = folder / "tensorboard"
        if after is None:  # the curves of a replaced run must not appear in the new one
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
        self.writer: Any = SummaryWriter(str(place), purge_step=None if after is None else after + 1)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class Wandb(Sink):
    """A run of Weights & Biases, in WANDB_PROJECT or `formers`; its id is kept in RUN/wandb-id."""

    name = "wandb"
    package = "wandb"

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        wandb: Any = importlib.import_module("wandb")

        known = _saved_id(folder / "wandb-id", after) or uuid.uuid4().hex[:12]
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "formers",
            name=folder.resolve().name,
            id=known,
            resume="allow",
            dir=str(folder),
            config=dict(facts),
            settings=wandb.Settings(silent=True, console="off"),  # the terminal shows the progress bar
        )
        (folder / "wandb-id").write_text(known)
        # Its own steps only increase, and steps repeated by a resumed run would be dropped: our step is one of the metrics.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    @classmethod
    def wanted(cls) -> bool:
        return any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.run.log({**figures, "step": step})

    def close(self) -> None:
        self.run.finish()


class MLflow(Sink):
    """A run of MLflow at MLFLOW_TRACKING_URI; its id is kept in RUN/mlflow-id."""

    name = "mlflow"
    package = "mlflow"
    every = 5.0  # a blocking request to a server

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        mlflow: Any = importlib.import_module("mlflow")

        self.mlflow = mlflow
        known = _saved_id(folder / "mlflow-id", after)
        run = mlflow.start_run(run_id=known) if known else mlflow.start_run(run_name=folder.resolve().name)
        if not known:  # a parameter of a run can be set once
            (folder / "mlflow-id").write_text(run.info.run_id)
            mlflow.log_params({name: str(value)[:500] for name, value in facts.items()})

    @classmethod
    def wanted(cls) -> bool:
        return bool(os.environ.get("MLFLOW_TRACKING_URI"))

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


SINKS: dict[str, type[Sink]] = {sink.name: sink for sink in (TensorBoard, Wandb, MLflow)}


def sinks(folder: Path, names: str, facts: Mapping[str, Any], after: int | None = None) -> tuple[list[Sink], list[str]]:
    """The sinks in `names`, opened, and a line about each that `auto` chose and could not open.

    `auto` takes those that are installed and configured, `none` none. A sink that is named must be installed.
    """
    auto = names.strip() == "auto"
    opened: list[Sink] = []
    failed: list[str] = []
    for kind in _chosen(names):
        try:
            opened.append(kind(folder, facts, after))
        except Exception as error:  # any exception of a third-party library
            why = f"{kind.name} cannot be written to ({_brief(error)})"
            if not auto:
                for sink in opened:
                    sink.close()
                raise FormersError(f"{why}: fix that, or leave {kind.name} out.") from None
            failed.append(f"{why}: it gets no metrics")
    return opened, failed


def _chosen(names: str) -> list[type[Sink]]:
    if names.strip() == "auto":
        return [kind for kind in SINKS.values() if _installed(kind) and kind.wanted()]
    chosen = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name in ("", "none"):
            continue
        if name not in SINKS:
            raise FormersError(f"{name!r} is not a tracker: {nearest(name, [*SINKS, 'auto', 'none'])}")
        if not _installed(SINKS[name]):
            raise FormersError(f"{name} is not installed: run `pip install {SINKS[name].package}`, or leave it out.")
        chosen.append(SINKS[name])
    return chosen


def _installed(kind: type[Sink]) -> bool:
    found = importlib.util.find_spec(kind.package)
    return found is not None and found.origin is not None  # a folder ./wandb, which wandb creates, is not a module


def _saved_id(path: Path, after: int | None) -> str | None:
    """The id that an earlier session of a resumed run saved."""
    return path.read_text().strip() if after is not None and path.exists() else None


def _brief(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
