"""Makes a spec that violates a property smaller, as long as it violates the same property in the same way."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from contracts.properties import Fault, examine
from contracts.random_parts import Fields

SIMPLE: dict[str, list[Fields]] = {
    "position": [{"kind": "NoPosition"}],
    "pattern": [{"kind": "Causal"}, {"kind": "Full"}],
    "attention": [{"kind": "DotProduct"}],
    "score": [{"kind": "NoScore"}],
    "memory": [{"kind": "NoMemory"}],
    "residual": [{"kind": "Plain"}, {"kind": "PreNorm"}],
    "depth": [{"kind": "Stacked", "layers": 1}, {"kind": "Stacked", "layers": 2}],
    "feedforward": [{"kind": "NoFeedForward"}],
    "head": [{"kind": "NoHead"}, {"kind": "LanguageModel"}],
}
"""The simplest parts of every slot, the simplest first."""
NEEDED = ("kind", "dim", "heads", "length", *SIMPLE)
Path = tuple[str | int, ...]


def shrink(fields: Fields, seed: int, fault: Fault, tries: int = 300) -> tuple[Fields, Fault]:
    """The smallest spec that a bounded search finds with the same fault, and what that says."""
    left = tries
    found = True
    while found:
        found = False
        for smaller in candidates(fields):
            if left == 0:
                return fields, fault
            left -= 1
            same = [f for f in examine(smaller, seed, (fault.name,)).faults if (f.name, f.kind) == (fault.name, fault.kind)]
            if same:
                fields, fault, found = smaller, same[0], True
                break
    return fields, fault


def candidates(fields: Fields) -> Iterator[Fields]:
    """Specs that are a little simpler, those that lose most first."""
    for name in [name for name in fields if name not in NEEDED]:
        yield {key: value for key, value in fields.items() if key != name}
    for slot, parts in SIMPLE.items():
        if slot in fields and fields[slot] in parts:
            parts = parts[: parts.index(fields[slot])]
        yield from ({**fields, slot: part} for part in parts)
    if "encoder" in fields:
        yield from ({**fields, "encoder": smaller} for smaller in candidates(fields["encoder"]))
    for path in paths({name: value for name, value in fields.items() if name != "encoder"}):
        value = at(fields, path)
        yield from (put(fields, path, other) for other in simpler(value))


def simpler(value: Any) -> Iterator[Any]:
    """Values that are a little simpler than one in a spec."""
    if isinstance(value, dict) and "kind" in value:
        inside = [v for each in value.values() for v in (each if isinstance(each, list) else [each]) if isinstance(v, dict)]
        yield from inside
        yield from ({key: v for key, v in value.items() if key != name} for name in value if name != "kind")
    elif isinstance(value, list) and len(value) > 1:
        yield from (value[:i] + value[i + 1 :] for i in range(len(value)))
    elif isinstance(value, int) and not isinstance(value, bool) and value > 1:
        yield from sorted({1, 2, value // 2, value - 1} - {value, 0})


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where all parts, lists and numbers stand within the fields of a spec, the outer before the inner."""
    if path:
        yield path
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        if not isinstance(each, str):
            yield from paths(each, (*path, name))


def at(fields: Any, path: Path) -> Any:
    """What stands at a path."""
    for name in path:
        fields = fields[name]
    return fields


def put(fields: Fields, path: Path, value: Any) -> Fields:
    """The fields with another value at a path."""
    changed = copy.deepcopy(fields)
    at(changed, path[:-1])[path[-1]] = value
    return changed


def reproduction(fields: Fields, seed: int, fault: Fault) -> str:
    """Python code that shows the violation, to be run with PYTHONPATH=src:tests."""
    return (
        f"# {fault.text}\n"
        "import formers\n"
        "from contracts.properties import check\n\n"
        f"fields = {fields!r}\n"
        "spec = formers.Spec(**fields)\n"
        f"check({fault.name!r}, fields, seed={seed})\n"
    )
