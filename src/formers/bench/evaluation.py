"""The evaluation speeds of Transformer-XL (Dai et al., 2019, section 4.5) at our scale: a memory beside a window that slides.

The weights are the same, and both sides read one stream, one row at a time. With a memory, a segment of 128 tokens is read after the
cached tokens of the attention length; the window is recomputed for every token, as `formers eval --protocol sliding` does.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from rich.table import Table

from formers.bench.progress import working
from formers.bench.timing import alternate, ratio
from formers.data import Language
from formers.evaluation.protocol import Protocol, apply_protocol
from formers.family import spec
from formers.inspect.draw.tables import add_row, new_table
from formers.model import Model, build

SIZES = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024)
SEGMENT = 128
SEGMENTS = 8
"""How many segments a timing reads, one after the other: a memory that moves on is copied now and then."""
LENGTHS = (400, 800, 1800, 2800)
CHECKED = (800, 1800)
LIMITS = {"speedup_800": (300.0, float("inf")), "speedup_1800": (700.0, float("inf"))}


@torch.no_grad()
def bench_evaluation(lengths: Sequence[int] = LENGTHS, rounds: int = 5) -> dict[str, float]:
    """CPU seconds of a token, with a memory and by a sliding window, at each attention length, and how many times faster the memory is."""
    lengths = tuple(dict.fromkeys(lengths))
    torch.manual_seed(0)
    model = build(spec("transformer-xl", preset=None, **SIZES, length=SEGMENT, memory=SEGMENT)).eval()
    things: dict[str, Callable[[], object]] = {}
    for n in lengths:
        things[f"memory_{n}"], things[f"sliding_{n}"] = _remembering(model, n), _sliding(model, n)
    with working("timing", len(things) * (rounds + 1)) as advance:
        times = alternate(things, rounds, warmup=1, tick=lambda: advance(1))
    tokens = SEGMENT * SEGMENTS
    figures: dict[str, float] = {}
    for n in lengths:
        figures[f"memory_{n}_seconds"] = statistics.median(times[f"memory_{n}"]) / tokens
        figures[f"sliding_{n}_seconds"] = statistics.median(times[f"sliding_{n}"])
        figures[f"speedup_{n}"] = tokens * ratio(times, f"sliding_{n}", f"memory_{n}")
    return figures


def check_evaluation(rounds: int = 5) -> dict[str, float]:
    """The figures that limits are of."""
    return bench_evaluation(CHECKED, rounds)


def tables(results: Mapping[str, float]) -> tuple[Table]:
    """What is printed of the results: a line for each attention length."""
    table = new_table("attention length", "memory, ms a token", "sliding, ms a token", "times faster", right=3)
    for n in (int(name.removeprefix("speedup_")) for name in figures(results)):
        milliseconds = [f"{1000 * results[f'{how}_{n}_seconds']:.3f}" for how in ("memory", "sliding")]
        add_row(table, f"{n:,}", *milliseconds, f"{results[f'speedup_{n}']:,.0f}")
    return (table,)


def figures(results: Mapping[str, float]) -> dict[str, float]:
    """How many times faster the memory is."""
    return {name: value for name, value in results.items() if name.startswith("speedup")}


def _remembering(model: Model, n: int) -> Callable[[], object]:
    """Evaluates some segments with a full memory of n tokens."""
    full = -(-n // SEGMENT)
    text = torch.randint(256, ((full + SEGMENTS) * SEGMENT + 1,))
    read = apply_protocol(Protocol(kind="memory", attention_length=n, segment=SEGMENT), model, Language({"valid": text}, SEGMENT))
    batches = [(batch["tokens"], batch["targets"]) for batch in read.batches.eval_batches(1)]
    state = read.model.initial_state(1)
    for tokens, targets in batches[:full]:
        state = read.model(tokens, targets=targets, state=state).state

    def evaluate() -> None:
        now = state
        for tokens, targets in batches[full:]:
            out = read.model(tokens, targets=targets, state=now)
            now = out.state
            float(out.loss)

    return evaluate


def _sliding(model: Model, n: int) -> Callable[[], object]:
    """Evaluates one token by a window of the n tokens before it."""
    text = torch.randint(256, (n + 2,))
    read = apply_protocol(Protocol(kind="sliding", attention_length=n), model, Language({"valid": text}, SEGMENT))
    _, window = read.batches.eval_batches(1, stride=read.stride)  # the first one evaluates all its tokens

    def evaluate() -> None:
        float(read.model(window["tokens"], targets=window["targets"]).loss)

    return evaluate
