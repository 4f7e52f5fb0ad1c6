"""The Transformer family in one library: exact, fast, composable, resumable and drawable.

import formers
model = formers.create("decoder", vocab=256)
out = model(tokens, targets)
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# OpenMP's threads spin for milliseconds while they wait, which costs most of the speed on a machine with anything else to do. It is
# read when torch is loaded: whoever loads torch first sets it himself.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# Where each public name lives. They are imported when first used, so that the command line answers before torch is loaded.
_HOMES = {
    "members": "formers.family",
    "spec": "formers.family",
    "create": "formers.family",
    "build": "formers.model",
    "load": "formers.model",
    "Spec": "formers.model",
    "Model": "formers.model",
    "Output": "formers.model",
    "State": "formers.core",
    "FormersError": "formers.core",
    "attend": "formers.attention",
    "explain": "formers.attention",
    "classify": "formers.generation",
    "generate": "formers.generation",
    "sample_images": "formers.generation",
    "stream": "formers.generation",
    "translate": "formers.generation",
    "train": "formers.training",
    "resume": "formers.training",
    **dict.fromkeys(
        ("attention", "depth", "feedforward", "heads", "layers", "memory", "patterns", "position", "recurrent", "residual", "rl", "score"),
        "",
    ),
}

if TYPE_CHECKING:
    from formers import attention as attention
    from formers import depth as depth
    from formers import feedforward as feedforward
    from formers import heads as heads
    from formers import layers as layers
    from formers import memory as memory
    from formers import patterns as patterns
    from formers import position as position
    from formers import recurrent as recurrent
    from formers import residual as residual
    from formers import score as score
    from formers.attention import attend as attend
    from formers.attention import explain as explain
    from formers.core import FormersError as FormersError
    from formers.core import State as State
    from formers.family import create as create
    from formers.family import members as members
    from formers.family import spec as spec
    from formers.generation import classify as classify
    from formers.generation import generate as generate
    from formers.generation import sample_images as sample_images
    from formers.generation import stream as stream
    from formers.generation import translate as translate
    from formers.model import Model as Model
    from formers.model import Output as Output
    from formers.model import Spec as Spec
    from formers.model import build as build
    from formers.model import load as load
    from formers.training import resume as resume
    from formers.training import train as train


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'formers' has no attribute {name!r}")
    home = _HOMES[name]
    found = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"formers.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return ["__version__", *sorted(_HOMES)]
