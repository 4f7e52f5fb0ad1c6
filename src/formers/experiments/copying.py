"""The duplication task of the Reformer (Kitaev et al., 2020, table 2) at our scale: rounds in training beside rounds in evaluation.

A row is 0 w 0 w; what is judged is the share of the second word's tokens that are told right, each from all before it. One layer of
`reformer` learns it with attention over all pairs, or by hashing with some rounds of rotations, drawn anew in each step; the same
weights are then judged with all pairs and with more and fewer rounds, whose rotations are fixed.

"full" is shared-QK attention: keys are queries of length 1, and a token looks at itself only where it sees no other. Both are what hashing
with ever more rounds tends to, so that weights learnt by hashing stay good under it. In the paper's table they fall to 0.8 %, chance,
which a dense attention without one of the two explains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from formers.bench.progress import working
from formers.data.tasks import duplication, told
from formers.experiments.learning import Course
from formers.experiments.learning import learn as lesson
from formers.family import spec
from formers.inspect.draw.curves import Curve, Panel, save_panels
from formers.model import Model, Spec, evaluating
from formers.model.respecify import respecified

FULL = 0
"""All pairs, where others are numbers of rounds."""
TRAINED = (FULL, 4, 2, 1)
JUDGED = (FULL, 8, 4, 2, 1)
LIMITS = {"lsh_8": (0.99, 1.0), "full": (0.99, 1.0), "least_step": (-0.001, 1.0), "least_gain": (0.005, 1.0)}
"""With 8 rounds every model that learnt by hashing is right; twice the rounds are never worse, and 8 are better than 1."""
ROWS = 128
"""How many rows are judged."""
PIECE = 32
"""How many of them at a time."""


def named(rounds: int) -> str:
    """What a column or a row is called."""
    return "full" if rounds == FULL else str(rounds)


COLUMNS = tuple(named(rounds) for rounds in JUDGED)
"""What the columns of the table are called."""
NOTE = (
    "Lines: the rounds of hashing in training; full is dense attention with queries as keys. Columns: those in evaluation.\n"
    'other: the rounds of the training (1 for full) with reach "{other}". seconds: CPU time.'
)


@dataclass(frozen=True)
class Copying:
    """The task, the model and its training."""

    words: int = 127
    symbols: int = 64
    dim: int = 64
    heads: int = 4
    chunk: int = 16
    reach: Literal["chunk", "bucket"] = "bucket"
    steps: int = 900
    batch: int = 8
    rate: float = 3e-3
    warmup: int = 100
    seed: int = 0

    limits: ClassVar[dict[str, tuple[float, float]]] = LIMITS
    titles: ClassVar[tuple[str, ...]] = ("trained with", *(f"{name:>7}" for name in COLUMNS), "  other", "seconds")

    def names(self) -> list[str]:
        """What the first column of the table has."""
        return [named(rounds) for rounds in TRAINED]

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """A row of the table."""
        shares = [*(row["accuracy"][name] for name in COLUMNS), row["other"]]
        return [row["trained"], *(f"{share:.2%}" for share in shares), f"{row['seconds']:,.0f}"]

    def run(self, seeds: int = 1, row: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
        """The table and its figures, of the one seed `seed`; `row` is given each row as it is found."""
        return bench_copying(self, row)

    def save(self, results: dict[str, Any], path: Path) -> Path:
        """Writes the picture."""
        return save_copying(results, path)

    def closing(self, results: Mapping[str, Any]) -> tuple[str, ...]:
        """What is printed after the last row."""
        return (NOTE.format(other=results["other_reach"]),)

    @property
    def length(self) -> int:
        """The tokens that are read: all of a row but the last."""
        return 2 * (self.words + 1) - 1

    def spec(self, rounds: int, reach: Literal["chunk", "bucket"] | None = None) -> Spec:
        """The model with attention over all pairs or by hashing; weights are the same whatever the rounds are.

        Positions are learned: those of a word and of its copy must come to point the same way. Small embeddings, which the head shares,
        let Adam turn them in some dozens of steps; keys of length 1 want scores that are not scaled down as well.
        """
        return spec(
            "reformer", vocab=self.symbols + 1, dim=self.dim, heads=self.heads, layers=1, hidden=self.dim, length=self.length,
            attention=("full",) if rounds == FULL else ("lsh",), rounds=rounds or 1, chunk=min(self.chunk, self.length),
            reach=reach or self.reach, scaled=False, norm="pre", position="learned", embedding_scale="none", hash_seed=self.seed,
        )  # fmt: skip


def bench_copying(task: Copying, row: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
    """Trains a model for each row of the table and judges it for each column; `row` is given each as it is found."""
    duplication(task.words, task.symbols, 1, task.seed)  # what is wrong with the task is told before anything is trained
    other: Literal["chunk", "bucket"] = "bucket" if task.reach == "chunk" else "chunk"
    rows = []
    for rounds in TRAINED:
        start = time.process_time()
        with working(f"learning with {words_for(rounds)}", task.steps) as advance:
            model, losses = learn(task, rounds, partial(advance, 1))
        found = {
            "trained": named(rounds),
            "accuracy": {named(r): judge(task, respecified(model, task.spec(r))) for r in JUDGED},
            # "other" is the other reach, with the rounds of the training
            "other": judge(task, respecified(model, task.spec(max(rounds, 1), other))),
            "seconds": time.process_time() - start,
            "losses": losses,
        }
        rows.append(found)
        row(found)
    return {"setting": asdict(task), "length": task.length + 1, "other_reach": other, "rows": rows, **claims(rows)}


def words_for(rounds: int) -> str:
    """Such rounds in words."""
    return "all pairs" if rounds == FULL else f"{rounds} round{'s' if rounds > 1 else ''}"


def claims(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that `LIMITS` are of, from the rows of a table.

    lsh_8: the least accuracy with 8 rounds of what learnt by hashing. full: of all pairs, learnt and judged. least_step: what twice the
    rounds add at least, anywhere in the table. least_gain: what 8 rounds add to 1 at least.
    """
    rising = [[row["accuracy"][named(r)] for r in sorted(JUDGED) if r != FULL] for row in rows]
    return {
        "lsh_8": min(row["accuracy"]["8"] for row in rows if row["trained"] != "full"),
        "full": next(row["accuracy"]["full"] for row in rows if row["trained"] == "full"),
        "least_step": min(more - less for line in rising for less, more in pairwise(line)),
        "least_gain": min(line[-1] - line[0] for line in rising),
    }


def learn(task: Copying, rounds: int, tick: Callable[[], None] = lambda: None) -> tuple[Model, list[float]]:
    """The model that a training with such rounds makes, and the loss of each step."""
    course = Course(task.steps, task.batch, task.rate, task.warmup)
    return lesson(task.spec(rounds), course, task.seed, partial(duplication, task.words, task.symbols, task.batch, task.seed), tick)


@torch.no_grad()
def judge(task: Copying, model: Model) -> float:
    """The share of the second words' tokens that a model tells right, on rows of its own."""
    batch = duplication(task.words, task.symbols, ROWS, task.seed, part="valid")
    with evaluating(model):
        logits = torch.cat([model(tokens).logits for tokens in torch.split(batch["tokens"], PIECE)])
    return told(logits, batch["targets"])


def save_copying(results: dict[str, Any], path: Path) -> Path:
    """Writes how accuracy rises with the rounds of evaluation, and how each training went, as a picture."""
    rounds = sorted(r for r in JUDGED if r != FULL)
    names = [f"learnt with {words_for(r)}" for r in TRAINED]
    right, losses = [], []
    for name, row in zip(names, results["rows"], strict=True):
        right.append(Curve(name, [float(r) for r in rounds], [row["accuracy"][named(r)] for r in rounds]))
        losses.append(Curve(name, [step + 1.0 for step in range(len(row["losses"]))], row["losses"]))
    panels = [
        Panel(right, "rounds in evaluation", "share of the copied tokens that are right"),
        Panel(losses, "training step", "loss, nats per token"),
    ]
    setting = results["setting"]
    caption = f"0w0w, rows of {results['length']} tokens, {setting['symbols']} symbols, {setting['steps']} steps, seed {setting['seed']}"
    return save_panels(panels, path, caption)
