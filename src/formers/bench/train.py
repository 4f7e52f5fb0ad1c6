"""A training step of `decoder` against the plainest one, and the loop's overhead over its own bare step."""

from __future__ import annotations

import statistics

import torch

from formers.bench.plain import PlainDecoder
from formers.bench.timing import alternate, ratio
from formers.data import Bytes, Language
from formers.family import spec
from formers.model import build
from formers.training.config import Settings
from formers.training.log import Log
from formers.training.loop import Loop, take_step
from formers.training.task import Task

SIZES = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024, length=256)
BATCH = 16
LIMITS = {"ours_to_plain": (0.0, 1.05), "loop_overhead": (-1.0, 0.02)}


def bench_train(rounds: int) -> dict[str, float]:
    """Seconds of a step of ours and of the plainest decoder, their ratio, and the share that the loop adds to a bare step."""
    torch.manual_seed(0)
    text = torch.randint(256, (1_000_000,), dtype=torch.uint8)
    task = Task(spec("decoder", preset=None, **SIZES), Bytes(), Language(text, text, SIZES["length"]), "random bytes", None)
    settings = Settings(steps=10**9, batch=BATCH)
    ours, looped = (Loop(build(task.spec).train(), task, settings) for _ in range(2))
    plain = PlainDecoder(**SIZES)
    optimizer = torch.optim.AdamW(plain.parameters())
    batch = ours.batch()

    def plain_step() -> None:
        optimizer.zero_grad()
        plain(**batch).backward()
        optimizer.step()

    def our_step() -> None:
        ours.optimizer.zero_grad()
        ours.model(**batch).loss.backward()
        ours.optimizer.step()

    times = alternate({"plain": plain_step, "ours": our_step}, rounds)
    with Log(None, quiet=True) as log:
        inside = alternate({"bare": lambda: ours.learn(batch), "loop": lambda: take_step(looped, log)}, rounds)
    return {
        "plain_seconds": statistics.median(times["plain"]),
        "our_seconds": statistics.median(times["ours"]),
        "ours_to_plain": ratio(times, "ours", "plain"),
        "bare_seconds": statistics.median(inside["bare"]),
        "loop_seconds": statistics.median(inside["loop"]),
        "loop_overhead": ratio(inside, "loop", "bare") - 1.0,
        "tokens_per_second": BATCH * SIZES["length"] / statistics.median(times["ours"]),
    }
