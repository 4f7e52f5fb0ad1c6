"""Records the specs of all members, so that a change of the recipes' code can be compared with them.

    PYTHONPATH=src:tests python tests/family/recorded_specs.py    # writes tests/family/recorded_specs.json anew

A record holds the types and defaults of each member's options, its default spec as a flat table of paths and values, and for each preset
and each changed option the paths that differ from it. A field that is added to all specs with one default therefore changes no record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import formers
from formers.core import FormersError
from formers.family import MEMBERS

FILE = Path(__file__).with_suffix(".json")

BASE: dict[str, dict[str, Any]] = {
    "image-transformer": {},
    "act-rnn": {"features": 4, "classes": 3},
}
"""The options of each member's default spec; {"vocab": 300} for those that are not here."""

VALUES: dict[str, list[Any]] = {
    "vocab": [17],
    "source_vocab": [19],
    "features": [6],
    "fact": [3],
    "classes": [5],
    "pool": ["first"],
    "places": [2],
    "causal": [False, True],
    "decoder_layers": [2],
    "encoder_layers": [3],
    "decoder_steps": [2],
    "dim": [96],
    "heads": [2, 1],
    "head_dim": [24],
    "value_dim": [40],
    "layers": [3],
    "hidden": [200],
    "length": [64, 4096],
    "dropout": [0.25],
    "attention_dropout": [0.15],
    "activation_dropout": [0.35],
    "norm": ["pre", "post", "bare", "reversible"],
    "position": ["sinusoidal", "learned", "none", "axial", "relative"],
    "offset": [7],
    "activation": ["relu", "gelu", "tanh"],
    "label_smoothing": [0.05],
    "tied": [False, True],
    "embedding_scale": ["input", "output", "none"],
    "cutoffs": [[20, 60]],
    "division": [2],
    "loss_chunk": [32],
    "norm_epsilon": [1e-6],
    "final_norm": [True, False],
    "output_bias": [True],
    "memory": [32, 0],
    "memory_start": ["zeros"],
    "clamp": [20],
    "same_length": [True, False],
    "untied": [True, False],
    "gate": ["sum", "highway"],
    "gate_bias": [0.5],
    "span": [100],
    "ramp": [8],
    "span_penalty": [1e-4],
    "init": [0.5],
    "dynamic": [True],
    "fixed": [True],
    "pattern": ["strided", "fixed"],
    "stride": [16],
    "summary": [4],
    "subblocks": [2],
    "use": ["interleaved", "heads"],
    "height": [12],
    "width": [16],
    "channels": [3],
    "levels": [16],
    "head": ["mixture"],
    "mixtures": [5],
    "layout": ["2d"],
    "query_block": [8],
    "memory_block": [16],
    "condition": ["small", "grey"],
    "labels": [10],
    "factor": [2],
    "attention_bias": [True],
    "rank": [16],
    "sharing": ["none", "headwise"],
    "projection": ["conv"],
    "block": [16],
    "window": [5],
    "global_blocks": [1],
    "random_blocks": [2],
    "extra": [4],
    "pattern_seed": [3],
    "attention": [["local", "lsh"], "full,separate"],
    "rounds": [4],
    "evaluation_rounds": [8],
    "chunk": [32],
    "buckets": [16, [4, 8]],
    "reach": ["chunk"],
    "duplicates": [True],
    "across_buckets": [True],
    "itself": ["always"],
    "wrap": ["rounds"],
    "scaled": [True],
    "key_epsilon": [1e-6],
    "hash_seed": [5],
    "local_chunk": [16],
    "ff_chunk": [None, 128],
    "ends": ["concat", "sum"],
    "shape": [[16, 32]],
    "dims": [[32, 96]],
    "cell": ["gru", "lstm"],
    "alignment": ["none", "multiplicative"],
    "feeding": [False],
    "bidirectional": [False],
    "steps": [4],
    "act": ["graves", "t2t", "none"],
    "halt_epsilon": [0.05],
    "ponder": [0.5],
    "halt_bias": [0.0],
    "transition": ["conv"],
    "step_signal": ["learned"],
    "auxiliary": [False],
    "intermediate": ["decay"],
    "targets": [3],
}
"""What each option is set to, by itself; an option that is not here is not recorded."""

TOGETHER: dict[str, list[dict[str, Any]]] = {
    "reformer": [{"decoder_layers": 2, "dim": 64, "norm": "pre", "tied": False}, {"classes": 4, "dropout": 0.2, "length": 100}],
    "bigbird": [{"decoder_layers": 2, "extra": 4, "hidden": 99}, {"classes": 3, "pool": "first"}],
    "universal-transformer": [{"decoder_steps": 3, "act": "graves", "dim": 64}, {"causal": False, "classes": 2, "transition": "conv"}],
    "image-transformer": [{"condition": "class", "labels": 10}, {"condition": "small", "factor": 4, "channels": 3, "head": "mixture"}],
    "sparse-transformer": [{"height": 8, "width": 8, "channels": 3, "heads": 2}, {"pattern": "fixed", "use": "heads", "length": 256}],
    "transformer-xl": [{"memory": 64, "same_length": True, "length": 32}],
    "gtrxl": [{"norm": "post", "dim": 32}, {"gate": "sum", "hidden": 50}],
    "act-rnn": [{"vocab": 9, "features": None, "classes": None, "layers": 2}],
}
"""Several options at once."""


def cases(name: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The presets and options of a member whose specs are recorded."""
    for preset in MEMBERS[name].presets:
        yield preset, {}
    for option in MEMBERS[name].options:
        for value in VALUES.get(option, []):
            yield None, {option: value}
    for options in TOGETHER.get(name, []):
        yield None, options


def made(name: str, preset: str | None, options: dict[str, Any]) -> dict[str, Any] | None:
    """The flat spec of a member with options; None where they are refused."""
    try:
        spec = formers.spec(name, preset=preset, **{**BASE.get(name, {"vocab": 300}), **options})
    except FormersError:
        return None
    return flat(spec.model_dump(mode="json"))


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Paths and plain values of nested dicts and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) and value else None
    if inner is None:
        return {path[1:]: value}
    return {at: each for key, one in inner for at, each in flat(one, f"{path}.{key}").items()}


def changes(spec: dict[str, Any] | None, default: dict[str, Any]) -> dict[str, Any] | str:
    """The paths of a spec whose values differ from those of the default spec; "gone" where it lacks one; or "refused"."""
    if spec is None:
        return "refused"
    gone = {path: "gone" for path in default if path not in spec}
    return {path: value for path, value in spec.items() if path not in default or default[path] != value} | gone


def options_of(name: str) -> dict[str, list[str]]:
    """The type and the default of each option of a member, as text."""
    return {
        option: [str(parameter.annotation), "required" if parameter.default is parameter.empty else repr(parameter.default)]
        for option, parameter in MEMBERS[name].parameters.items()
    }


def record(name: str) -> dict[str, Any]:
    """The options of a member, its default spec, and what presets and options change in it."""
    default = made(name, None, {})
    assert default is not None
    changed = [[preset, options, changes(made(name, preset, options), default)] for preset, options in cases(name)]
    return {"options": options_of(name), "default": default, "cases": changed}


if __name__ == "__main__":
    members = ",\n".join(f"{json.dumps(name)}: {json.dumps(record(name))}" for name in MEMBERS)
    FILE.write_text(f"{{\n{members}\n}}\n", encoding="utf-8")
