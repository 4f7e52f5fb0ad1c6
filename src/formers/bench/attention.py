"""Attention over sparse patterns compared with torch's fused kernel over all pairs, alternating in one process; and the memory of each.

A causal pattern is compared with causal attention (is_causal=True), any other with full attention. `rate` is the share of the fused
kernel's own speed per pair that the pattern allows: 1 would mean that leaving pairs out costs nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from formers.attention import attend
from formers.bench.attention_tables import NOTE, names_table, times_table
from formers.bench.curves import crossover, new_curves, save_curves
from formers.bench.memory import extra_memory
from formers.bench.progress import Advance, working
from formers.bench.timing import alternate, both_ways, ratio
from formers.inspect.measure.part_text import spell
from formers.patterns import BigBird, Blocks, Fixed, Local, LocalGrid, Pattern, Strided

HEADS, WIDTH = 4, 64
LENGTHS = (512, 1024, 2048, 4096, 8192)
CHECK_ROUNDS = 9
"""Maximum number of runs of each in a check."""
WHOLE = ("causal", "full")
"""The fused kernel's own, by name."""
AT = 8192
"""The length at which `--check` measures speed; growth and memory at twice as many tokens."""
FLOORS = {"local": 8.0, "strided": 8.0, "fixed": 4.5, "bigbird": 5.5}
"""How many times faster than all pairs each must be."""
GROWN = ("local", "bigbird")
LIMITS = {
    **{f"{name}_speedup": (floor, math.inf) for name, floor in FLOORS.items()},
    **{f"{name}_growth": (0.0, 2.3) for name in GROWN},
    **{f"{name}_memory": (0.0, 12.0) for name in FLOORS},
}
SHORT = 256
"""Tokens of the pass that loads all code before memory is measured."""
START = 10**8
"""The cost of starting a process, in pairs computed in that time: for the progress bar."""


def patterns(length: int) -> dict[str, Pattern]:
    """The timed patterns, by name; the image is the squarest one with `length` pixels."""
    height = max(h for h in range(1, math.isqrt(length) + 1) if length % h == 0)
    return {
        "local": Local(window=256),
        "both-sides": Local(window=256, causal=False),
        "blocks": Blocks(query=256, memory=256),
        "grid": LocalGrid(height=height, width=length // height, query=(8, 16), memory=(8, 8)),
        "strided": Strided(stride=128),
        "fixed": Fixed(stride=128, summary=16),
        "bigbird": BigBird(block=64, window=3, global_blocks=2, random_blocks=3),
    }


class Pass(NamedTuple):
    """The two passes of a way to attend, over the same tokens."""

    forward: Callable[[], object]
    """Without gradients, as in evaluation."""
    both: Callable[[], object]
    """Forward and backward, as in training."""


def passes(length: int) -> dict[str, Pass]:
    """The passes of the fused kernel over all pairs, and of every pattern by pieces, by name."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    g = torch.randn(1, HEADS, length, WIDTH)
    ways: dict[str, Callable[[], Tensor]] = {
        name: partial(scaled_dot_product_attention, q, k, v, is_causal=name == "causal") for name in WHOLE
    }
    ways |= {name: partial(attend, q, k, v, pattern, "blocked") for name, pattern in patterns(length).items()}
    return {name: Pass(torch.no_grad()(way), partial(both_ways, way, (q, k, v), g)) for name, way in ways.items()}


def bench_attention(lengths: Sequence[int] = LENGTHS, rounds: int = 15) -> dict[str, Any]:
    """Every pattern at every length, as rows; where each becomes faster than all pairs; and peak memory at the largest length."""
    lengths = sorted(set(lengths))
    names = [*WHOLE, *patterns(lengths[-1])]
    turns = {n: _turns(rounds, n) for n in lengths}
    work = sum(2 * len(names) * (turns[n] + 1) * n * n for n in lengths) + len(names) * (START + lengths[-1] ** 2)
    rows: list[dict[str, Any]] = []
    with working("timing attention", work) as advance:
        for n in lengths:
            rows += _rows(n, turns[n], partial(advance, n * n))
        memory = _memory(names, lengths[-1], advance)
    return {
        **_setting(lengths[-1]),
        "caption": (
            f"Attention over n tokens, {HEADS} heads of {WIDTH}, float32, one thread. "
            "A point: from this length on the pattern is faster than all pairs."
        ),
        "rows": rows,
        "faster_from": {
            name: crossover(lengths, [row["speedup"] for row in rows if row["pattern"] == name]) for name in names if name not in WHOLE
        },
        "memory_length": lengths[-1],
        "memory": memory,
    }


def tables(results: Mapping[str, Any]) -> tuple[Table | str, ...]:
    """What is printed of the results."""
    return times_table(results), names_table(results), NOTE


def figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that limits are of, where they were measured."""
    return {name: results[name] for name in LIMITS if name in results}


def check_picture(out: Path, lengths: Sequence[int] = LENGTHS, rounds: int = 15) -> None:
    """Raises if the figure could not be drawn."""
    new_curves(out, lengths)


def save(results: Mapping[str, Any], out: Path) -> Path:
    """Writes time against length as a picture."""
    return save_curves(new_curves(out, [row["length"] for row in results["rows"]]), out, results)


def check_attention(rounds: int = CHECK_ROUNDS) -> dict[str, Any]:
    """Only the figures of LIMITS, and as rows the times they come from."""
    rounds = min(rounds, CHECK_ROUNDS)
    twice = 2 * AT
    here, there = passes(AT), passes(twice)
    things = {name: here[name].both for name in (*WHOLE, *FLOORS)} | {f"{name} twice": there[name].both for name in GROWN}
    work = (rounds + 1) * len(things) * AT * AT + len(FLOORS) * (START + twice**2)
    with working("timing attention", work) as advance:
        times = alternate(things, rounds, warmup=1, tick=partial(advance, AT * AT))
        memory = _memory(FLOORS, twice, advance)
    rows = [_row(name, AT, times) for name in (*WHOLE, *FLOORS)]
    rows += [{**_blank(name, twice), "seconds": statistics.median(times[f"{name} twice"]) if name in GROWN else None} for name in FLOORS]
    return {
        **_setting(AT),
        "rows": rows,
        "memory_length": twice,
        "memory": memory,
        **{f"{row['pattern']}_speedup": row["speedup"] for row in rows if row["pattern"] in FLOORS and row["length"] == AT},
        **{f"{name}_growth": ratio(times, f"{name} twice", name) for name in GROWN},
        **{f"{name}_memory": memory[name] for name in FLOORS},
    }


def beside(pattern: Pattern) -> str:
    """The fused kernel's pattern that a pattern is compared with."""
    # An image is generated block after block; in that order the pattern is causal, so with sorted tokens causal attention would do.
    return "causal" if pattern.is_causal or isinstance(pattern, LocalGrid) else "full"


def allowed(pattern: Pattern, length: int) -> float:
    """The number of pairs that a pattern allows, the mean over heads, counted a few queries at a time."""
    pattern = pattern.of(length)
    heads = HEADS if pattern.by_head else 1
    here, head = torch.arange(length), torch.arange(heads)[:, None, None]
    total = 0
    for i in torch.split(here, 512):
        seen = torch.as_tensor(pattern.allows(i[:, None], here[None, :], head))
        total += int(seen.expand(heads, len(i), length).sum())
    return total / heads


def memory_pass(name: str, length: int) -> Callable[[], object]:
    """The forward and backward pass of a name, after a short one that has loaded the code; for a separate process."""
    torch.set_num_threads(1)
    passes(SHORT)[name].both()
    return passes(length)[name].both


def _memory(names: Sequence[str] | Mapping[str, object], length: int, advance: Advance) -> dict[str, float | None]:
    """Peak extra memory of forward and backward by name, in multiples of q, k and v together."""
    inputs = 3 * HEADS * length * WIDTH * torch.float32.itemsize
    found: dict[str, float | None] = {}
    for name in names:
        extra = extra_memory(memory_pass, name, length)
        found[name] = None if extra is None else extra / inputs
        advance(START + length**2)
    return found


def _rows(length: int, rounds: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """The rows of a length: both passes of all names in turn."""
    made = passes(length)
    both = {name: each.both for name, each in made.items()}
    times = alternate({**both, **{f"{name} forward": each.forward for name, each in made.items()}}, rounds, warmup=1, tick=tick)
    return [_row(name, length, times) for name in made]


def _row(name: str, length: int, times: Mapping[str, list[float]]) -> dict[str, Any]:
    """The figures of a name at a length; of the forward pass if it was timed."""
    row = _blank(name, length)
    whole = row["beside"]
    row |= {"seconds": statistics.median(times[name]), "speedup": ratio(times, whole, name), "rate": 1.0}
    if name not in WHOLE:
        pairs = length * (length + 1) / 2 if whole == "causal" else length * length
        row["rate"] = row["speedup"] * allowed(patterns(length)[name], length) / pairs
    if f"{name} forward" in times:
        row["forward_seconds"] = statistics.median(times[f"{name} forward"])
        row["forward_speedup"] = ratio(times, f"{whole} forward", f"{name} forward")
    return row


def _blank(name: str, length: int) -> dict[str, Any]:
    """A row without measurements."""
    whole = name if name in WHOLE else beside(patterns(length)[name])
    known = dict.fromkeys(("forward_seconds", "seconds", "forward_speedup", "speedup", "rate"))
    return {"pattern": name, "length": length, "beside": whole, **known}


def _setting(length: int) -> dict[str, Any]:
    """The setup that every figure depends on."""
    return {"heads": HEADS, "head_dim": WIDTH, "patterns": {name: spell(pattern) for name, pattern in patterns(length).items()}}


def _turns(rounds: int, length: int) -> int:
    """Fewer rounds for long runs: from 2,048 tokens on a third, but at least five if that many are requested."""
    return max(min(rounds, 5), rounds * 2048 // max(2048, length))
