"""A training step of `decoder` compared with a minimal decoder, and the overhead of the trainer over the bare step."""

from __future__ import annotations

import io
import statistics
import time

import torch
from rich.console import Console

from formers.bench.plain import PlainDecoder
from formers.bench.timing import alternate, ratio
from formers.data import Bytes, Language
from formers.family import spec
from formers.model import build
from formers.training.config import Settings
from formers.training.log import REFRESHES, Log
from formers.training.micro_batches import MicroBatch
from formers.training.task import Task
from formers.training.trainer import StepResult, Trainer

SIZES = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024, length=256)
BATCH = 16
LIMITS = {"ours_to_plain": (0.0, 1.05), "loop_overhead": (0.0, 0.02)}


class _TimedTrainer(Trainer):
    """A trainer that records the time of each bare step; the rest of a step is overhead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.times: list[float] = []

    def train_step(self, pieces: list[MicroBatch]) -> StepResult:
        start = time.process_time()
        done = super().train_step(pieces)
        self.times.append(time.process_time() - start)
        return done


def bench_train(rounds: int) -> dict[str, float]:
    """Seconds of a step of ours and of the minimal decoder, their ratio, and the share that the trainer adds to a bare step."""
    torch.manual_seed(0)
    text = torch.randint(256, (1_000_000,), dtype=torch.uint8)
    task = Task(
        spec("decoder", preset=None, **SIZES), Bytes(), Language({"train": text, "valid": text}, SIZES["length"]), "random bytes", None
    )
    settings = Settings(steps=10**9, batch=BATCH)
    ours, looped = Trainer(build(task.spec).train(), task, settings), _TimedTrainer(build(task.spec).train(), task, settings)
    plain = PlainDecoder(**SIZES)
    optimizer = torch.optim.AdamW(plain.parameters())
    batch = ours.micro_batches()[0].batch

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
        whole = alternate({"loop": lambda: looped.step_and_log(log)}, rounds)["loop"]
    bare = looped.times[-rounds:]
    bar = REFRESHES * _seconds_to_draw()
    return {
        "plain_seconds": statistics.median(times["plain"]),
        "our_seconds": statistics.median(times["ours"]),
        "ours_to_plain": ratio(times, "ours", "plain"),
        "bare_seconds": statistics.median(bare),
        "loop_seconds": statistics.median(whole),
        "bar_share": bar,
        "loop_overhead": ratio({"loop": whole, "bare": bare}, "loop", "bare") - 1.0 + bar,
        "tokens_per_second": BATCH * SIZES["length"] / statistics.median(times["ours"]),
    }


def _seconds_to_draw() -> float:
    """CPU seconds that drawing the bar once takes, on a terminal of 120 columns."""
    with Log(None, Console(file=io.StringIO(), force_terminal=True, width=120)) as log:
        assert log.bar is not None
        log.step(1, 0.5, {"loss": 1.234, "tokens/s": 12345.0})
        log.bar.refresh()
        start = time.process_time()
        for _ in range(20):
            log.bar.refresh()
        return (time.process_time() - start) / 20
