"""Saving and loading: weights as safetensors, everything else as JSON; nothing that can run code, nothing half-written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from formers.core import FormersError
from formers.data.tokenize import Tokenizer
from formers.model.build import build
from formers.model.model import Model
from formers.model.spec import Spec

FORMAT = "formers/1"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(model: Model, path: str | Path) -> None:
    """Writes config.json and model.safetensors into the folder `path`, each whole or not at all."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormersError(f"{folder} cannot be made a folder ({error.strerror}): give another place to save in.") from None
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    config = {
        "format": FORMAT,
        "spec": model.spec.model_dump(mode="json"),
        "tokenizer": None if model.tokenizer is None else model.tokenizer.model_dump(mode="json"),
    }
    write(folder / WEIGHTS, to_bytes(weights))
    write(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def write(path: Path, content: bytes) -> None:
    """Writes a file beside its place, then moves it there, so that a reader finds the old or the new one, never half of one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def load(path: str | Path, device: str | torch.device = "cpu") -> Model:
    """The model saved in a folder or a run, in evaluation mode, with its tokenizer."""
    folder = Path(path)
    config = _read_config(folder)
    model = build(Spec(**config["spec"]))
    if config.get("tokenizer") is not None:
        model.tokenizer = Tokenizer.read(config["tokenizer"])
    try:
        weights = load_file(folder / WEIGHTS, device="cpu")
    except FileNotFoundError:
        raise FormersError(
            f"{folder} has no {WEIGHTS}: the run has not saved yet, or is not one; give a folder that formers wrote."
        ) from None
    except (SafetensorError, OSError) as error:
        raise FormersError(f"{folder / WEIGHTS} is damaged ({error}): take it from a copy, or train again.") from None
    _check_weights(model, weights, folder)
    model.load_state_dict(weights, assign=True)  # as they were saved, in their type, too
    return model.to(device).eval()


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise FormersError(f"{folder} is not a saved model: it has no {CONFIG}; give a folder that formers wrote.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise FormersError(f"{folder / CONFIG} is not JSON: take it from a copy, or train again.") from None
    if not isinstance(config, dict) or not isinstance(config.get("spec"), dict):
        raise FormersError(f"{folder / CONFIG} has no spec: it is not a formers model; give a folder that formers wrote.")
    if config.get("format") != FORMAT:
        raise FormersError(f"{folder / CONFIG} is of format {config.get('format')!r}, not {FORMAT!r}: use the formers that wrote it.")
    return config


def _check_weights(model: Model, weights: dict[str, torch.Tensor], folder: Path) -> None:
    wanted = model.state_dict()
    for name in sorted(wanted.keys() | weights.keys()):
        have, want = weights.get(name), wanted.get(name)
        if have is None or want is None or have.shape != want.shape:
            says = [tuple(t.shape) if t is not None else "nothing" for t in (have, want)]
            raise FormersError(
                f"{folder / WEIGHTS} holds {says[0]} for {name!r} where the configuration asks for {says[1]}: the two are not of one model."
            )
