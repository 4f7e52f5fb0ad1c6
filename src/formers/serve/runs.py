"""The runs below a folder: found by looking, named by their path, and looked up by that name, never opened by what a request says.

A folder is a run if it holds run.json, and a saved model if it holds config.json. Links that lead out of the folder are not followed,
neither to runs nor to files within one. A run that cannot be read says why, and does not hide the others.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formers.core import FormersError
from formers.model.files import CHECKPOINTS, checkpoints
from formers.model.save import CONFIG, WEIGHTS, read_config
from formers.serve.errors import ApiError
from formers.serve.limits import Limits
from formers.serve.metrics import MetricsFile, thinned
from formers.training.folder import RUN, read_facts
from formers.training.log import METRICS

log = logging.getLogger(__name__)
DEEPEST = 4
"""How many folders deep runs are looked for."""
FOLDERS = 50_000
"""In how many folders at the most."""
TRAINING = 30.0
"""A run without results is training if it has written within so many seconds."""
KEPT = 6
"""Thinned curves of a run that are kept."""
BEST = "@best"
"""What stands behind a run's name for its best checkpoint instead of the last."""


@dataclass(eq=False)
class RunEntry:
    """A run or saved model, and what is known of it."""

    name: str
    path: Path
    metrics: MetricsFile
    facts: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    saved: bool = False
    """Whether it holds a model that can be loaded."""
    version: int = 0
    """Changes with everything that is shown."""
    indexed: bool = False
    """Whether its metrics have been read to their end."""
    asked: float = 0.0
    """When its curves were last asked for."""
    stamp: tuple[Any, ...] = ()
    """When its files were last written, as far as they have been read."""
    summary: dict[str, Any] = field(default_factory=dict)
    written: float = 0.0
    """When its metrics were last written."""
    drawn: dict[tuple[str, str, int], tuple[int, NDArray[np.float32], NDArray[np.float32]]] = field(default_factory=dict)
    """Thinned curves by name, axis and number of points, and the version they are of."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def status(self) -> str:
        """finished, training, stopped, damaged, or saved for a model that is no run."""
        if self.error is not None:
            return "damaged"
        if self.facts.get("kind") == CONFIG:
            return "saved"
        if "results" in self.facts:
            return "finished"
        return "training" if time.time() - self.written < TRAINING else "stopped"

    def tokens_a_step(self) -> int | None:
        """Tokens of a training step, where a run reads rows of one length."""
        spec, settings = self.facts.get("spec"), self.facts.get("settings")
        if self.facts.get("task") not in ("text", "image", "other") or not isinstance(spec, dict) or not isinstance(settings, dict):
            return None
        batch, length = settings.get("batch"), spec.get("length")
        return batch * length if isinstance(batch, int) and isinstance(length, int) else None

    def told(self) -> dict[str, Any]:
        """What the list of runs says of it, ready for JSON."""
        facts = self.facts
        return {
            "id": self.name,
            "member": facts.get("member"),
            "data": facts.get("env") or facts.get("data"),
            "task": facts.get("task"),
            "parameters": facts.get("parameters"),
            "status": self.status,
            "error": self.error,
            "saved": self.saved,
            "version": self.version,
            "indexed": self.indexed,
            "tokens_a_step": self.tokens_a_step(),
            "written": self.written,
            **self.summary,
        }

    def details(self) -> dict[str, Any]:
        """Everything that is shown of it."""
        kept = ("command", "settings", "sizes", "device", "versions", "results", "fingerprint", "protocol")
        return {**self.told(), "samples": self.metrics.samples, **{name: self.facts[name] for name in kept if name in self.facts}}


class Runs:
    """All runs below a folder, kept up to date by a thread of its own.

    poll: seconds between two looks at the runs that change or are watched; the whole folder is looked through every ten of them.
    """

    def __init__(self, root: Path, limits: Limits, poll: float = 0.25) -> None:
        self.root, self.limits, self.poll = Path(os.path.realpath(root)), limits, poll
        if not self.root.is_dir():
            raise FormersError(f"{root} is no folder: give one that holds runs, such as runs/.")
        self.entries: dict[str, RunEntry] = {}
        self.version = 0
        """Changes with every run that comes, goes or changes."""
        self.progress = {"done": 0, "total": 0}
        """Runs whose metrics have been read, of how many."""
        self.ready = threading.Event()
        """Set when all metrics have been read once."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look, in a thread."""
        self._thread = threading.Thread(target=self._watch, name="formers-serve-runs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def get(self, name: str) -> RunEntry:
        """The run of a name; refused if there is none, as there is none of a path that leads elsewhere."""
        entry = self.entries.get(name)
        if entry is None:
            raise ApiError(
                404, f"there is no run {name[:100]!r}: `GET /v1/models` lists those there are.", code="model_not_found", param="model"
            )
        return entry

    def model(self, name: str) -> tuple[RunEntry, str]:
        """The run of a model's name, and which of its checkpoints is meant."""
        if name not in self.entries and name.endswith(BEST):
            return self.get(name.removesuffix(BEST)), "best"
        return self.get(name), "last"

    def scan(self) -> None:
        """Looks through the folder for runs that have come or gone."""
        found: dict[str, Path] = {}
        for path in self._folders():
            relative = os.path.relpath(path, self.root)
            found[name_of(self.root.name if relative == "." else relative, found)] = path
            if len(found) >= self.limits.runs:
                break
        gone = [name for name, entry in self.entries.items() if found.get(name) != entry.path]
        new = {
            name: RunEntry(name, path, MetricsFile(self.limits.samples))
            for name, path in found.items()
            if name not in self.entries or name in gone
        }
        if gone or new:
            kept = {name: entry for name, entry in self.entries.items() if name not in gone}
            self.entries = dict(sorted({**kept, **new}.items()))
            self.version += 1

    def refresh(self, entry: RunEntry) -> bool:
        """Reads what is new in a run; whether something was."""
        with entry.lock:
            try:
                stamp = tuple(_stamp(self._inside(entry.path / name)) for name in (RUN, CONFIG, METRICS, CHECKPOINTS))
            except OSError:
                stamp = ()
            if stamp == entry.stamp and entry.indexed:
                return False
            described = entry.stamp[:2] == stamp[:2] and bool(entry.facts)
            entry.stamp = stamp
            try:
                if not described:
                    entry.facts = _facts(entry.path)
                metrics = self._inside(entry.path / METRICS)
                if metrics is not None and metrics.is_file():
                    entry.written = metrics.stat().st_mtime
                    for _ in entry.metrics.read(metrics):
                        if self._stop.is_set():
                            return False
                entry.summary = entry.metrics.summary()
                entry.saved = bool(checkpoints(entry.path)) or (entry.path / WEIGHTS).exists()
                entry.error = None
            except FormersError as error:
                entry.error = str(error)
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                entry.error = f"{entry.name} cannot be read ({type(error).__name__}): look at its files, or take them from a copy."
            entry.indexed = True
            entry.version += 1
            self.version += 1
            return True

    def curve(self, entry: RunEntry, name: str, axis: str, points: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The points (x, y) of a run's curve against step, seconds or tokens, thinned; none where the run has no such curve or axis."""
        entry.asked = time.monotonic()
        nothing = np.zeros(0, np.float32)
        each = entry.tokens_a_step() if axis == "tokens" else 1
        known = entry.drawn.get((name, axis, points))
        if known is not None and known[0] == entry.version:
            return known[1], known[2]
        with entry.lock:
            version = entry.version
            if entry.indexed and not entry.metrics.offset and entry.summary.get("names"):  # its points were let go
                path = self._inside(entry.path / METRICS)
                if path is not None and path.is_file():
                    for _ in entry.metrics.read(path):
                        pass
            curve = entry.metrics.curves.get(name)
            if curve is None or each is None:
                return nothing, nothing
            x, y = (np.array(side, dtype=np.float64) for side in (curve.seconds if axis == "seconds" else curve.step, curve.value))
        found = thinned(x * each, y, points)
        if len(entry.drawn) >= KEPT:
            entry.drawn.clear()
        entry.drawn[name, axis, points] = version, *found
        return found

    def resolve(self, entry: RunEntry) -> Path:
        """The folder of a run for reading its model; refused if a link in it leads out of the served folder."""
        path = self._inside(entry.path)
        if path is None or not path.is_dir():
            raise ApiError(404, f"the run {entry.name!r} is gone: it was deleted or moved.", code="model_not_found", param="model")
        if any(self._inside(file) is None for file in _files(path)):
            raise ApiError(403, f"the run {entry.name!r} has a link that leads out of the folder: copy the file into the run.")
        return path

    def _inside(self, path: Path) -> Path | None:
        """A path with its links followed, None if they lead out of the folder."""
        real = Path(os.path.realpath(path))
        return real if real == self.root or self.root in real.parents else None

    def _folders(self) -> Iterator[Path]:
        """The folders that hold a run or a saved model, outermost first; what lies inside one is not looked at."""
        waiting, looked = [(self.root, 0)], 0
        seen: set[str] = set()
        while waiting and looked < FOLDERS:
            folder, deep = waiting.pop()
            real = os.path.realpath(folder)
            looked += 1
            if real in seen or self._inside(folder) is None:
                continue
            seen.add(real)
            try:
                with os.scandir(folder) as listing:
                    inner = sorted(listing, key=lambda each: each.name, reverse=True)
            except OSError:
                continue
            if any(each.name in (RUN, CONFIG) for each in inner):
                yield folder
            elif deep < DEEPEST:
                waiting += [(Path(each.path), deep + 1) for each in inner if not each.name.startswith(".") and _is_folder(each)]

    def _watch(self) -> None:
        turn = 0
        while not self._stop.is_set():
            began = time.monotonic()
            if turn % 10 == 0:
                self._safely(self.scan)
            entries = list(self.entries.values())
            fresh = [entry for entry in entries if not entry.indexed]
            if fresh:
                self.progress = {"done": len(entries) - len(fresh), "total": len(entries)}
                for entry in sorted(fresh, key=lambda each: _stamp(each.path) or 0, reverse=True):
                    if self._stop.is_set():
                        return
                    self._safely(partial(self.refresh, entry))
                    self.progress = {"done": self.progress["done"] + 1, "total": len(entries)}
                    time.sleep(0.0005)  # the event loop goes first
                self._trim()
            self.progress = {"done": len(entries), "total": len(entries)}
            self.ready.set()
            now, wall = time.monotonic(), time.time()
            for number, entry in enumerate(entries):
                # Runs that change or are watched are looked at every time, the others in turn.
                if wall - entry.written < 120 or now - entry.asked < 30 or (number + turn) % 10 == 0:
                    self._safely(partial(self.refresh, entry))
            turn += 1
            self._stop.wait(max(0.05, self.poll - (time.monotonic() - began)))

    def _trim(self) -> None:
        """Lets go of the points of runs that nobody has asked for, where all together are too many."""
        total = sum(entry.metrics.bytes for entry in self.entries.values())
        for entry in sorted(self.entries.values(), key=lambda each: each.asked):
            if total <= self.limits.columns:
                return
            with entry.lock:
                total -= entry.metrics.bytes
                entry.metrics.forget()

    @staticmethod
    def _safely(act: Callable[[], object]) -> None:
        """Does something of which a failure must not end the watching."""
        try:
            act()
        except Exception:
            log.exception("the runs could not be looked at")


def name_of(path: str, taken: dict[str, Path]) -> str:
    """The name of a run: its path, with what cannot be shown or sent written out, and a mark where two would be one."""
    plain = path.replace(os.sep, "/")
    name = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else f"\\x{ord(c):02x}" for c in plain)
    if name != plain or name in taken:
        name = f"{name}~{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"
    return name


def _facts(path: Path) -> dict[str, Any]:
    """What a run or a saved model says of itself, and what it is for."""
    if (path / RUN).exists():
        facts = read_facts(path)
        spec = facts.get("spec")
        return {**facts, "kind": RUN, "task": task_of(spec if isinstance(spec, dict) else {}, "env" in facts)}
    spec = read_config(path)["spec"]
    return {"kind": CONFIG, "member": spec.get("name"), "spec": spec, "task": task_of(spec, False)}


def task_of(spec: dict[str, Any], agent: bool) -> str:
    """What a model of a spec is for: text, translate, classify, image, episode, or nothing that the page can try."""
    head = (spec.get("head") or {}).get("kind")
    if agent or head == "PolicyValue":
        return "episode"
    if spec.get("image"):
        return "image"
    if head == "Classify":
        return "classify"
    if head in ("LanguageModel", "AdaptiveSoftmax", "Auxiliary"):
        return "translate" if spec.get("encoder") else "text"
    return "other"


def _files(path: Path) -> Iterator[Path]:
    """The files of a run that are read to load its model."""
    for folder in (path, path / CHECKPOINTS, *checkpoints(path)):
        if folder.is_dir():
            yield folder
            yield from (Path(each.path) for each in os.scandir(folder) if each.is_symlink())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _stamp(path: Path | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
