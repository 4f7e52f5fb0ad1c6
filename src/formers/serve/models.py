"""Models in memory, and what they do for the page: all that `serve` asks of the library's models is in this file.

The worker's thread alone loads and uses models. A run that goes on training is loaded again when it has saved a newer checkpoint.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from formers.core import FormersError
from formers.data import Bytes, Tokenizer
from formers.generation import sample_images, tokenizer_of
from formers.generation.images import cells_of, image_shape, levels_of
from formers.inspect.draw.images import to_rgb
from formers.model import Model, load
from formers.model.files import CHECKPOINTS, checkpoints
from formers.model.save import find, load_tokenizer, read_config
from formers.rl import open_agent
from formers.rl.play import Played
from formers.rl.play import play as play_episode
from formers.serve.errors import ApiError
from formers.serve.limits import Limits
from formers.serve.runs import Runs

SIDE = 320
"""Pixels of the longer side of an episode's picture."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and the checkpoint that it was read from."""

    model: Model
    checkpoint: str


class Models:
    """The models of runs, loaded when they are asked for; those not asked for longest make room."""

    def __init__(self, runs: Runs, limits: Limits, device: str = "cpu") -> None:
        self.runs, self.limits, self.device = runs, limits, device
        self._loaded: OrderedDict[tuple[str, str], LoadedModel] = OrderedDict()
        self._tokenizers: OrderedDict[tuple[Path, str], Tokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> Model:
        """The model of a name; called by the worker's thread."""
        entry, checkpoint = self.runs.model(name)
        path = self.runs.resolve(entry)
        newest, key = _newest(path), (name, checkpoint)
        known = self._loaded.get(key)
        if known is None or known.checkpoint != newest:
            self._loaded.pop(key, None)
            while len(self._loaded) >= self.limits.models:
                self._loaded.popitem(last=False)
            known = self._loaded[key] = LoadedModel(load(path, self.device, cast(Literal["last", "best"], checkpoint)), newest)
        self._loaded.move_to_end(key)
        return known.model

    def tokenizer(self, name: str) -> Tokenizer:
        """The tokenizer of a model, without its weights."""
        entry, checkpoint = self.runs.model(name)
        path = self.runs.resolve(entry)
        key = (path, f"{checkpoint} {_newest(path)}")
        with self._lock:
            if key not in self._tokenizers:
                folder = find(path, checkpoint)
                config = read_config(folder)
                found = load_tokenizer(config, folder)
                if found is None:
                    if config["spec"].get("vocab") != 256 or config["spec"].get("image"):
                        raise FormersError(f"{name} has no tokenizer: it reads no text, or token ids alone.")
                    found = Bytes()
                self._tokenizers[key] = found
                if len(self._tokenizers) > 2 * self.limits.models:
                    self._tokenizers.popitem(last=False)
            return self._tokenizers[key]


def _newest(path: Path) -> str:
    """The name of the newest checkpoint; of a saved model that is no run, when it was written."""
    if (path / CHECKPOINTS).is_dir():
        return next((folder.name for folder in checkpoints(path)), "")
    try:
        return str((path / "model.safetensors").stat().st_mtime_ns)
    except OSError:
        return ""


def check_text(model: Model, name: str) -> Tokenizer:
    """The tokenizer of a model that reads text; others are refused."""
    if model.spec.image is not None or model.spec.features is not None:
        raise ApiError(400, f"{name} reads no text: choose a run that was trained on text.", param="model")
    return tokenizer_of(model)


def image_facts(model: Model) -> dict[str, Any]:
    """What a model of images draws: its size, levels, labels, and what it is conditioned on."""
    spec, cells = model.spec, cells_of(model.spec)
    height, width, channels = image_shape(spec)
    source = None if spec.encoder is None else list(image_shape(spec.encoder))
    labels = list(model.labels or map(str, range(spec.labels))) if spec.labels is not None else None
    return {
        "height": height, "width": width, "channels": channels, "levels": levels_of(spec), "labels": labels, "source": source,
        "block": None if cells.raster.block is None else list(cells.raster.block),
    }  # fmt: skip


def draw_images(
    model: Model,
    samples: int,
    label: int | None,
    given: Any,
    rows: int,
    source: Any,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    told: Callable[[int, int], None],
) -> tuple[NDArray[np.uint8], float | None]:
    """Images (n, height, width, 3) as bytes, and their mean nats; `given` keeps its first rows. `told(done, total)` may raise to stop."""
    facts = image_facts(model)
    shape = (facts["height"], facts["width"], facts["channels"])
    keep = None
    if given is not None:
        keep = torch.zeros(shape[0], shape[1], dtype=torch.bool)
        keep[:rows] = True
    total = cells_of(model.spec).raster.cells
    drawn = sample_images(
        model, samples, label=label, given=None if given is None else _levels(given, shape), keep=keep,
        source=None if source is None else _levels(source, tuple(facts["source"] or ())), temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed, show=lambda done, _: told(done, total),
    )  # fmt: skip
    return to_rgb(drawn.images, facts["levels"]), None if drawn.nats is None else float(drawn.nats.mean())


def _levels(values: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A flat list of levels as an image (1, height, width, channels)."""
    size = int(np.prod(shape)) if shape else 0
    if not isinstance(values, list) or len(values) != size or not all(type(v) is int and 0 <= v < 1 << 16 for v in values):
        raise ApiError(400, f"an image of this model has {size:,} levels: give them as a list of integers, row after row.", param="image")
    return torch.tensor(values).view(1, *shape)


def episode(path: Path, checkpoint: str, seed: int, number: int, sampled: bool) -> dict[str, Any]:
    """An episode of an agent, ready for JSON but for its pictures and weights, which are bytes."""
    model, environments = open_agent(path, 1, None, cast(Literal["last", "best"], checkpoint), drawn=True)
    try:
        played: Played = play_episode(model, environments, seed=seed, episode=number, sample=sampled)
    finally:
        environments.close()
    attention = played.attention
    total = np.cumsum(played.rewards).tolist()
    return {
        "env": played.env,
        "success": played.success,
        "frames": ["\n".join(frame) for frame in played.frames],
        "actions": played.actions,
        "rewards": played.rewards,
        "returns": total,
        "values": played.values,
        "shape": list(attention.shape),
        "weights": np.round(255 * np.sqrt(attention)).astype(np.uint8).tobytes(),
        "pictures": [_small(picture) for picture in played.pictures],
    }


def _small(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture with every so many pixels left out, so that its longer side is short."""
    step = -(-max(picture.shape[:2]) // SIDE)
    return np.ascontiguousarray(picture[::step, ::step, :3])
