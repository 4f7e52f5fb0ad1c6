"""Where a run's figures go besides its own folder: TensorBoard, Weights & Biases, MLflow, each if it is there and wanted.

A sink takes the figures of a step. A resumed run goes on in the same place: TensorBoard forgets what lies behind the checkpoint, and
the others find their run by the id that they left in the folder.
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
    """A place that figures are written to; `after` is the last step of a resumed run, None for a new one."""

    name: ClassVar[str]
    package: ClassVar[str]
    """What `pip install` must be given."""
    every: ClassVar[float] = 0.5
    """Seconds between two writes of figures that come with every step."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        raise TypeError(f"{type(self).__name__} cannot be opened: define __init__(folder, facts, after).")

    @classmethod
    def wanted(cls) -> bool:
        """Whether the user has set it up, so that `auto` takes it."""
        return True

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Writes the figures of a step."""
        raise TypeError(f"{type(self).__name__} takes no figures: define write(step, figures).")

    def close(self) -> None:
        """Writes out what is left."""


class TensorBoard(Sink):
    """Event files in RUN/tensorboard."""

    name = "tensorboard"
    package = "tensorboard"

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = folder / "tensorboard"
        if after is None:  # a run that is replaced must not lend its curves to the new one
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

        known = _kept(folder / "wandb-id", after) or uuid.uuid4().hex[:12]
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "formers",
            name=folder.resolve().name,
            id=known,
            resume="allow",
            dir=str(folder),
            config=dict(facts),
            settings=wandb.Settings(silent=True, console="off"),  # the terminal is the bar's
        )
        (folder / "wandb-id").write_text(known)
        # Its own steps only ever grow, and what a resumed run repeats would be dropped: ours is a figure beside the others.
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
    every = 5.0  # a request to a server, which the training waits for

    def __init__(self, folder: Path, facts: Mapping[str, Any], after: int | None) -> None:
        mlflow: Any = importlib.import_module("mlflow")

        self.mlflow = mlflow
        known = _kept(folder / "mlflow-id", after)
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
    """The sinks that `names` asks for, opened, and a line about each that `auto` wanted and could not open.

    `auto` takes those that are installed and set up, `none` none. A sink that is named must be there.
    """
    auto = names.strip() == "auto"
    opened: list[Sink] = []
    failed: list[str] = []
    for kind in _chosen(names):
        try:
            opened.append(kind(folder, facts, after))
        except Exception as error:  # whatever another's library throws
            why = f"{kind.name} cannot be written to ({_brief(error)})"
            if not auto:
                for sink in opened:
                    sink.close()
                raise FormersError(f"{why}: mend that, or leave {kind.name} out.") from None
            failed.append(f"{why}: no figures go there")
    return opened, failed


def _chosen(names: str) -> list[type[Sink]]:
    if names.strip() == "auto":
        return [kind for kind in SINKS.values() if _installed(kind) and kind.wanted()]
    chosen = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name in ("", "none"):
            continue
        if name not in SINKS:
            raise FormersError(f"{name!r} is no place for figures: {nearest(name, [*SINKS, 'auto', 'none'])}")
        if not _installed(SINKS[name]):
            raise FormersError(f"{name} is not installed: run `pip install {SINKS[name].package}`, or leave it out.")
        chosen.append(SINKS[name])
    return chosen


def _installed(kind: type[Sink]) -> bool:
    found = importlib.util.find_spec(kind.package)
    return found is not None and found.origin is not None  # a folder ./wandb, which wandb itself leaves behind, is no module


def _kept(path: Path, after: int | None) -> str | None:
    """The id that an earlier session of a resumed run left."""
    return path.read_text().strip() if after is not None and path.exists() else None


def _brief(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
