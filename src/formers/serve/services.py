"""What the handlers of requests share: the runs, the models, the worker, and the places of open streams."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from formers.serve.bodies import string
from formers.serve.errors import ApiError
from formers.serve.limits import Limits
from formers.serve.look import Looks
from formers.serve.models import Models
from formers.serve.runs import Runs
from formers.serve.worker import Worker

READERS = ("text", "translate", "classify", "other")
"""The tasks of runs that read text."""


class StreamSlot:
    """A place among the open streams."""

    def __init__(self, services: Services) -> None:
        self._services, self._held = services, True

    def release(self) -> None:
        """Gives the place back, once."""
        if self._held:
            self._held = False
            self._services.streams -= 1


@dataclass
class Services:
    """Everything that answers requests."""

    limits: Limits
    runs: Runs
    worker: Worker
    models: Models
    looks: Looks
    closing: threading.Event = field(default_factory=threading.Event)
    """Set when the server has been told to end."""
    streams: int = 0
    """Event streams that are open."""

    def open_stream(self) -> StreamSlot:
        """A place for a stream; refused where too many are open."""
        if self.streams >= self.limits.streams:
            raise ApiError(
                429, f"{self.streams} streams are open, as many as the server holds: close a page.", "rate_limit_error",
                code="too_many_streams", headers={"retry-after": "5"},
            )  # fmt: skip
        self.streams += 1
        return StreamSlot(self)

    def default_model(self, fields: dict[str, Any]) -> str:
        """The model that is named, or the only one there is that reads text."""
        if fields.get("model") is None:
            readers = [entry.name for entry in self.runs.entries.values() if entry.saved and entry.facts.get("task") in READERS]
            if len(readers) == 1:
                return readers[0]
            raise ApiError(400, f"{len(readers)} runs here read text: name one as model, or serve one run alone.", param="model")
        name = string(fields, "model")
        self.runs.model(name)
        return name

    def length(self, name: str) -> int | None:
        """The training length of a model, as its run says."""
        entry, _ = self.runs.model(name)
        length = (entry.facts.get("spec") or {}).get("length")
        return length if isinstance(length, int) else None
