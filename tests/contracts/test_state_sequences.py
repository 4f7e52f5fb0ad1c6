"""Random sequences of operations on a state: training, evaluation, resets, files, optimiser steps; compared with a naive stream.

With a memory slot a state holds hidden states: whatever mode they were made in, their keys and values are those of the weights as they
are now, and the weights of keys and values get gradients from them. Without one a state holds keys and values, which are constants.
"""

from __future__ import annotations

from typing import Any

import torch

import formers
from contracts.cases import Case
from contracts.sequences import Sequence
from contracts.slopes import compare_slopes
from contracts.specimens import CAUSAL, Specimen, Subject, subject
from formers.memory import NoMemory
from helpers import sweep

SIZES = {"vocab": 7, "dim": 8, "heads": 2, "hidden": 6, "length": 12, "dropout": 0.0}
OPERATIONS = 13

WITH_MEMORY: dict[str, dict[str, Any]] = {
    "pre-norm": {"member": "transformer-xl", "layers": 2, "memory": 5},
    "long memory": {"member": "transformer-xl", "layers": 2, "memory": 200, "clamp": 6},
    "post-norm": {"member": "transformer-xl", "layers": 2, "memory": 3, "norm": "post", "untied": True, "head_dim": 3, "value_dim": 5},
    "same length": {"member": "transformer-xl", "layers": 2, "memory": 4, "same_length": True, "clamp": 2},
    "zeros": {"member": "transformer-xl", "layers": 2, "memory": 4, "memory_start": "zeros"},
    "reversible zeros": {"member": "transformer-xl", "layers": 2, "memory": 7, "memory_start": "zeros", "norm": "reversible"},
    "reversible": {"member": "transformer-xl", "layers": 2, "memory": 4, "norm": "reversible"},
    "adaptive softmax": {"member": "transformer-xl", "layers": 2, "memory": 4, "cutoffs": (2, 4), "division": 2},
    "no memory of any token": {"member": "transformer-xl", "layers": 2, "memory": 0},
    "span": {"member": "adaptive-span", "layers": 2, "span": 6, "ramp": 3, "init": 0.4},
    "span at its least": {"member": "adaptive-span", "layers": 2, "span": 6, "ramp": 3, "init": 0.0},
    "span at its most": {"member": "adaptive-span", "layers": 2, "span": 6, "ramp": 3, "init": 1.0},
    "reversible span": {"member": "adaptive-span", "layers": 2, "span": 6, "ramp": 3, "init": 0.4, "norm": "reversible", "memory": 9},
    "dynamic span": {"member": "adaptive-span", "layers": 2, "span": 6, "ramp": 3, "dynamic": True, "norm": "post"},
    "fixed span": {"member": "adaptive-span", "layers": 2, "span": 4, "fixed": True, "memory": 20},
    "shared": {"member": "universal-transformer", "steps": 2, "memory": 4},
    "halting": {"member": "universal-transformer", "steps": 3, "memory": 4, "act": "graves", "halt_bias": -0.5, "halt_epsilon": 0.3},
}
WITHOUT_MEMORY: dict[str, dict[str, Any]] = {
    "pre-norm": {"member": "decoder", "layers": 2, "position": "none"},
    "post-norm": {"member": "decoder", "layers": 2, "norm": "post", "value_dim": 3},
    "reversible": {"member": "decoder", "layers": 2, "norm": "reversible"},
    "span": {"member": "adaptive-span", "layers": 2, "span": 6, "ramp": 3, "init": 0.9, "without": "memory"},
    "fixed": {"member": "sparse-transformer", "layers": 2, "stride": 3, "summary": 1, "use": "heads", "pattern": "fixed", "length": 90},
    "strided": {"member": "sparse-transformer", "layers": 2, "stride": 3, "use": "interleaved", "pattern": "strided", "length": 90},
    "shared": {"member": "universal-transformer", "steps": 2},
    "halting": {"member": "universal-transformer", "steps": 3, "act": "graves", "halt_bias": -0.5, "halt_epsilon": 0.3},
}


def member(options: dict[str, Any]) -> Subject:
    """The model of a member with small options."""
    named = {name: value for name, value in options.items() if name not in ("member", "without")}
    spec = formers.spec(options["member"], **{**SIZES, **named})
    return subject(spec.replace(memory=NoMemory()) if "without" in options else spec)


@sweep("name", WITH_MEMORY)
def test_with_a_memory_the_past_is_hidden_states(name: str) -> None:
    read = member(WITH_MEMORY[name])
    for seed in range(2):
        Sequence(read, seed).run(OPERATIONS)


@sweep("name", WITHOUT_MEMORY)
def test_without_a_memory_the_past_is_a_constant(name: str) -> None:
    read = member(WITHOUT_MEMORY[name])
    for seed in range(2):
        Sequence(read, seed).run(OPERATIONS)


@sweep("specimen", CAUSAL)
def test_gradients_over_a_given_state_take_its_tensors_as_constants(specimen: Specimen) -> None:
    """Numeric derivatives with the state held fixed, for every member that can continue a stream."""
    read = subject(specimen.spec)
    x = read.input(8)
    with torch.no_grad():
        state = read(x[:, :5]).state
    case = Case(read, x[:, 5:], read.targets(3), seed=3)
    compare_slopes(case, {specimen.member: case.slopes(state=state)}, state=state)
