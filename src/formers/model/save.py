"""Saving and loading: weights as safetensors, everything else as JSON; files cannot contain code, and writes are atomic."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from formers.core import FormersError
from formers.core.paths import given_path
from formers.data.tokenize import Tokenizer
from formers.model.build import build
from formers.model.check import check
from formers.model.files import CHECKPOINTS, MANIFEST, TRAINING, best, fault, manifest, newest, to_json, write
from formers.model.model import Model
from formers.model.spec import Spec
from formers.model.weights import current_names, mismatch
from formers.residual.norm import NormResidual

log = logging.getLogger(__name__)

FORMAT = "formers/1"
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODEL = (CONFIG, WEIGHTS, TOKENIZER, TRAINING)
"""The files of a checkpoint that are needed to load its model."""
TRAIN_ONLY = "auxiliary."
"""The prefix of the names of weights that only training needs."""
DEFINITION = "definition"
"""The field of a tokenizer that is saved as a separate file, which other libraries can read."""


def save(model: Model, path: str | Path) -> None:
    """Writes config.json, model.safetensors and their manifest into the folder `path`; each write is atomic.

    A model that formers saved there is replaced; raises FormersError if files of these names were not written by formers.
    """
    folder = given_path("path", path, "the folder to save the model in")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormersError(f"{folder} cannot be created as a folder ({error.strerror}): give another folder.") from None
    files = contents(model, deployed=True)
    files[MANIFEST] = manifest(files)
    foreign = [] if _is_ours(folder) else [name for name in (CONFIG, *files) if (folder / name).exists()]
    if foreign:
        raise FormersError(f"{folder / foreign[0]} was not written by formers and would be replaced: give another folder.")
    for name, content in files.items():
        write(folder / name, content)


def _is_ours(folder: Path) -> bool:
    """Whether a folder contains a model saved by formers, by the format in its config.json."""
    try:
        return str(json.loads((folder / CONFIG).read_bytes())["format"]).startswith(f"{FORMAT.partition('/')[0]}/")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def contents(model: Model, deployed: bool = False) -> dict[str, bytes]:
    """The files of a saved model, by name; deployed: without what only training needs."""
    _check_norms(model)
    spec = model.spec.deployed() if deployed else model.spec
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    if deployed:
        weights = {name: value for name, value in weights.items() if not name.startswith(TRAIN_ONLY)}
    config: dict[str, Any] = {"format": FORMAT, "spec": spec.model_dump(mode="json"), "tokenizer": None, "labels": model.labels}
    files = {WEIGHTS: to_bytes(weights)}
    if model.tokenizer is not None:
        config["tokenizer"] = model.tokenizer.model_dump(mode="json")
        if DEFINITION in config["tokenizer"]:
            files[TOKENIZER] = config["tokenizer"].pop(DEFINITION).encode()
    return {**files, CONFIG: to_json(config)}


def _check_norms(model: Model) -> None:
    """Raises FormersError for norms whose epsilon is not the spec's: only the spec is saved, so that loading would change the model."""
    for side, spec in (("stack", model.spec), ("encoder", model.spec.encoder)):
        epsilon = None if spec is None else getattr(spec.residual, "epsilon", None)
        if epsilon is None:
            continue
        stack = model.get_submodule(side)
        norms = {f"{name}.norm": part.norm for name, part in stack.named_modules() if isinstance(part, NormResidual)}
        for name, norm in {**norms, "final": stack.final}.items():
            if isinstance(norm, torch.nn.LayerNorm) and norm.eps != epsilon:
                raise FormersError(
                    f"{side}.{name} has eps={norm.eps} but the spec has epsilon={epsilon}, and only the spec is saved: "
                    f"build the model from a spec whose residual has epsilon={norm.eps}."
                )


def load(path: str | Path, device: str | torch.device = "cpu", checkpoint: Literal["last", "best"] = "last") -> Model:
    """The model saved in a folder, or in the last or best checkpoint of a run, in evaluation mode, with its tokenizer.

    It does not include what only training needs; the checkpoints of a run keep it for resuming.
    """
    place = given_path("path", path, "the folder of a saved model or of a run")
    folder = find(place, checkpoint)
    try:
        return _load(place, folder, device)
    except FormersError:
        if folder == place or folder.exists():
            raise
        return load(path, device, checkpoint)  # deleted meanwhile by a running training


def _load(path: Path, folder: Path, device: str | torch.device) -> Model:
    """The model saved in a folder; `path` is the path given by the user."""
    config = read_config(folder)
    spec, tokenizer = Spec(**config["spec"]).deployed(), load_tokenizer(config, folder)  # their errors name a wrong field
    check(spec)
    if folder == path and (folder / MANIFEST).exists():  # a run's checkpoint has already been checked
        wrong = fault(folder, MODEL)
        if wrong is not None:
            raise FormersError(
                f"{folder} is damaged ({wrong}): take it from a copy, or delete its {MANIFEST} if you changed the folder yourself."
            )
    model = build(spec)
    model.tokenizer = tokenizer
    model.labels = None if config.get("labels") is None else tuple(config["labels"])
    load_weights(model, folder, assign=True, but=TRAIN_ONLY)  # in the dtype in which they were saved
    return model.to(device).eval()


def find(path: Path, checkpoint: str = "last") -> Path:
    """The folder with a model: the path itself, or for a run the requested checkpoint."""
    if checkpoint not in ("last", "best"):
        raise FormersError(f"checkpoint={checkpoint!r} is unknown: use last or best.")
    if not (path / CHECKPOINTS).is_dir():
        return path
    last = newest(path, log.warning, MODEL)
    if last is None:
        raise FormersError(f"{path} has not saved a model yet: train it with `formers resume {path}`.")
    return last if checkpoint == "last" else best(path, last, MODEL)


def load_weights(model: Model, folder: Path, assign: bool = False, but: str | None = None) -> None:
    """Loads the weights of a folder into a model of the same shapes; with assign they keep the dtype in which they were saved.

    but: the prefix of the names of weights that are not loaded.
    """
    try:
        weights = current_names(load_file(folder / WEIGHTS, device="cpu"))
    except FileNotFoundError:
        raise FormersError(
            f"{folder} has no {WEIGHTS}: the run has not saved yet, or it is not a run; give a folder that formers wrote."
        ) from None
    except (SafetensorError, OSError) as error:
        raise FormersError(f"{folder / WEIGHTS} is damaged ({error}): take it from a copy, or train again.") from None
    if but is not None:
        unchanged = {name: value for name, value in model.state_dict().items() if name.startswith(but)}
        weights = {**{name: value for name, value in weights.items() if not name.startswith(but)}, **unchanged}
    _check_weights(model, weights, folder)
    if assign:  # aligned copies: the rounding of some kernels depends on the address
        weights = {name: value.clone() for name, value in weights.items()}
    model.load_state_dict(weights, assign=assign)


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of a saved folder's config.json."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FormersError(f"{folder} is not a saved model: it has no {CONFIG}; give a folder that formers wrote.") from None
    except (ValueError, RecursionError):
        raise FormersError(f"{folder / CONFIG} is not JSON: take it from a copy, or train again.") from None
    if not isinstance(config, dict) or not isinstance(config.get("spec"), dict):
        raise FormersError(f"{folder / CONFIG} has no spec: it is not a formers model; give a folder that formers wrote.")
    if config.get("format") != FORMAT:
        raise FormersError(f"{folder / CONFIG} has the format {config.get('format')!r}, not {FORMAT!r}: use the formers that wrote it.")
    return config


def load_tokenizer(config: dict[str, Any], folder: Path) -> Tokenizer | None:
    """The tokenizer of a saved folder; None if it has none."""
    saved, file = config.get("tokenizer"), folder / TOKENIZER
    if saved is None:
        return None
    return Tokenizer.read({**saved, DEFINITION: file.read_text(encoding="utf-8")} if file.exists() else saved)


def _check_weights(model: Model, weights: dict[str, torch.Tensor], folder: Path) -> None:
    wrong = mismatch(weights, model.state_dict())
    if wrong is not None:
        raise FormersError(
            f"{folder / WEIGHTS} has {wrong.have} for {wrong.name!r}, but {CONFIG} needs {wrong.want}: "
            "the two files are of different models; take both from one saved folder."
        )
