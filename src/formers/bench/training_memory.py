"""The memory of a training step against depth and against length: plain residuals, activation checkpointing, reversible layers.

A plain stack keeps the activations of every layer for its backward pass; a checkpointed one each layer's input; a reversible one those of
the layer it is at. Each step is measured in a separate process, beyond what that holds before: the weights and the optimiser's averages.
The gradients come during the step. They are as many bytes as the weights, whatever the way, and are taken off. At the peak of a plain or a
checkpointed step not all of them are there yet, so that what is left is, if anything, too little for these two.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
from rich.console import Console
from rich.table import Table

from formers.bench.memory import held_memory
from formers.bench.progress import working
from formers.core import FormersError, nearest
from formers.core.allocator import release_memory
from formers.family import spec as member_spec
from formers.inspect.draw.curves import Curve, Panel, draw_curves, save_panels
from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.measure.parameters import weightless
from formers.inspect.measure.units import in_bytes
from formers.model import Spec, build
from formers.residual import PreNorm, Reversible

Way = Literal["plain", "checkpointing", "reversible"]
WAYS: tuple[Way, ...] = get_args(Way)
SIZES: dict[str, Any] = dict(vocab=256, dim=256, heads=4, hidden=1024)
DEPTHS, DEPTH = (1, 2, 4, 8, 16, 24), 6
LENGTHS, LENGTH = (512, 1024, 2048, 4096, 8192), 1024
"""The default measurements: depths at one length, and lengths at one depth."""
WARM = 64
"""Tokens of the step before the one that is measured, which makes the optimiser's averages."""
DEEP, DEEP_LENGTH = (6, 24), 4096
LONG_MEMBER, LONG_LAYERS, LONG = "reformer", 6, 65_536
LIMITS = {"depth_ratio": (0.0, 1.3), "long_gigabytes": (0.0, 10.0)}
"""24 reversible layers need at most so many times what 6 need, at 4,096 tokens; a step of a long row ends within so many GB in all."""
MIB, GB = 1 << 20, 10**9
Row = dict[str, Any]

NOTE = (
    "The peak of a training step over one row, on one thread, each in a separate process: beside the weights, the optimiser's averages "
    "and the gradients; these gradients; and the whole process with all of it."
)


def bench_memory(
    member: str = "decoder",
    options: Mapping[str, Any] = MappingProxyType({}),
    depths: Sequence[int] = (),
    lengths: Sequence[int] = (),
    ways: Sequence[str] = WAYS,
) -> dict[str, Any]:
    """The bytes of a training step, each way: at several depths of the first length, and at several lengths of the last depth."""
    for word in ways:
        if word not in WAYS:
            raise FormersError(f"--way {word} is unknown: {nearest(word, WAYS)}")
    depth, length = (depths[-1] if depths else DEPTH), (lengths[0] if lengths else LENGTH)
    places = [(d, length) for d in sorted(set(depths or DEPTHS))] + [(depth, n) for n in sorted(set(lengths or LENGTHS))]
    cases = [(way, d, n) for d, n in dict.fromkeys(places) for way in WAYS if way in ways]
    for way, d, n in cases:  # raises for bad cases before measuring
        weightless(spec_of(way, member, options, d, n))
    with working("measuring", sum(d * n for _, d, n in cases)) as advance:
        rows = []
        for way, d, n in cases:
            rows.append(row_of(way, member, options, d, n))
            advance(d * n)
    return {"member": member, "options": {**_sizes(member), **options}, "depth": depth, "length": length, "rows": rows}


def check_memory() -> dict[str, Any]:
    """Only the figures of LIMITS: how much more 24 reversible layers need than 6, and the total memory of a step over a long row."""
    few, many = (row_of("reversible", "decoder", {}, d, DEEP_LENGTH) for d in DEEP)
    long = row_of("reversible", LONG_MEMBER, {}, LONG_LAYERS, LONG)
    known = few["bytes"] is not None
    return {
        "rows": [few, many, long],
        "depth_ratio": many["bytes"] / few["bytes"] if known else None,
        "long_gigabytes": long["process_bytes"] / GB if known else None,
    }


def tables(results: Mapping[str, Any]) -> tuple[Table | str, ...]:
    """What is printed of the results: a line for each step, and the curves."""
    console = Console()
    drawn = panels(results) if "member" in results else []
    return _memory_table(results["rows"]), NOTE, *(draw_curves(panel, console.width, console.encoding) for panel in drawn)


def figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that limits are of, where they were measured."""
    return {name: results[name] for name in LIMITS if name in results}


def check_picture(
    out: Path,
    member: str = "decoder",
    options: Mapping[str, Any] = MappingProxyType({}),
    depths: Sequence[int] = DEPTHS,
    lengths: Sequence[int] = LENGTHS,
    ways: Sequence[str] = WAYS,
) -> None:
    """Raises for a figure with one point."""
    if max(len(set(depths)), len(set(lengths))) < 2:
        raise FormersError(f"{out.name!r} would show one depth and one length: give --depth or --length at least twice.")


def save(results: Mapping[str, Any], out: Path) -> Path:
    """Writes memory against depth and length as a picture."""
    return save_panels(panels(results), out, caption(results))


def row_of(way: Way, member: str, options: Mapping[str, Any], depth: int, length: int) -> Row:
    """What a step takes: beyond weights, averages and gradients; these; and the whole process. None if the system does not report it."""
    gradients = weightless(spec_of(way, member, options, depth, length)).parameter_count() * 4
    held = held_memory(fresh_step, way, member, dict(options), depth, length)
    return {
        "way": way,
        "member": member,
        "layers": depth,
        "length": length,
        "bytes": None if held is None else max(held.peak - held.before - gradients, 0),
        "gradients_bytes": gradients,
        "process_bytes": None if held is None else held.peak,
    }


def spec_of(way: Way, member: str, options: Mapping[str, Any], depth: int, length: int) -> Spec:
    """A member of the bench's sizes with the residual of a way."""
    made = member_spec(member, preset=None, **{**_sizes(member), **options, "layers": depth, "length": length})
    if made.encoder is not None or made.vocab is None or not made.head.per_position:
        raise FormersError(f"a step of {member} is measured on one text, and it predicts no token of one: use decoder or reformer.")
    if way == "reversible":
        return made if isinstance(made.residual, Reversible) else made.replace(residual=Reversible())
    return made.replace(residual=PreNorm())


def fresh_step(way: Way, member: str, options: Mapping[str, Any], depth: int, length: int) -> Callable[[], object]:
    """A training step of one row, after a short one that has created the optimiser state; both on one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(spec_of(way, member, options, depth, length)).train()
    assert model.spec.vocab is not None
    if way == "checkpointing":
        model.checkpointing()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens, targets = (torch.randint(model.spec.vocab, (1, length)) for _ in range(2))

    def step(count: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens[:, :count], targets[:, :count]).loss
        assert loss is not None
        torch.autograd.backward(loss)
        del loss
        optimizer.step()

    step(min(WARM, length))
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    release_memory()
    return partial(step, length)


def panels(results: Mapping[str, Any]) -> list[Panel]:
    """Memory against depth and against length, where there are several."""
    rows = results["rows"]
    found = [
        _panel((row for row in rows if row["length"] == results["length"]), "layers", f"layers, at length {results['length']:,}"),
        _panel((row for row in rows if row["layers"] == results["depth"]), "length", f"tokens, of {results['depth']} layers"),
    ]
    return [panel for panel in found if panel is not None]


def caption(results: Mapping[str, Any]) -> str:
    """What the picture shows."""
    sizes = ", ".join(f"{name}={value}" for name, value in results["options"].items())
    return (
        f"The memory of a training step of {results['member']} ({sizes}) over one row, beside weights, gradients and the optimiser's "
        "averages; each measured in a separate process."
    )


def _sizes(member: str) -> dict[str, Any]:
    from formers.family.members import member as find

    return {name: value for name, value in SIZES.items() if name in find(member).options}


def _panel(rows: Iterable[Row], name: str, across: str) -> Panel | None:
    """A line for each way; None where there is one point alone, or nothing was measured."""
    points: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["bytes"] is not None:
            points.setdefault(row["way"], {})[float(row[name])] = row["bytes"] / MIB
    if not points or min(len(line) for line in points.values()) < 2:
        return None
    lines = [Curve(way, sorted(line), [line[x] for x in sorted(line)]) for way, line in points.items()]
    return Panel(lines, across, "MiB of a training step", scale="linear")


def _memory_table(rows: list[dict[str, Any]]) -> Table:
    """A line for each step."""
    table = new_table("member", "way", "layers", "tokens", "a step", "gradients", "process")
    for row in rows:
        sizes = ["" if row[name] is None else in_bytes(row[name]) for name in ("bytes", "gradients_bytes", "process_bytes")]
        add_row(table, row["member"], row["way"], f"{row['layers']:,}", f"{row['length']:,}", *sizes)
    for column in range(2, 7):
        table.columns[column].justify = "right"
    return table
