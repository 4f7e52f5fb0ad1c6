"""The duplication task of the Reformer (Kitaev et al., 2020, table 2) at a small scale: hashing rounds in training and in evaluation.

A row is 0 w 0 w; the metric is the share of tokens of the second word that are predicted right, each from all before it. One layer of
`reformer` is trained with attention over all pairs, or by hashing with some rounds of rotations, drawn again in each step; the same
weights are then evaluated with all pairs and with more and fewer rounds, with fixed rotations.

"full" is shared-QK attention: keys are normalised queries, and a token attends to itself only if it sees no other. Hashing with more
and more rounds converges to both, so weights trained by hashing stay good under it. In the paper's table they fall to 0.8 %, chance,
which dense attention without one of the two explains.
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
from formers.data.tasks import duplication, token_accuracy
from formers.experiments.learning import TrainingSettings
from formers.experiments.learning import train_model as train_spec
from formers.family import spec
from formers.inspect.draw.curves import Curve, Panel, save_panels
from formers.model import Model, Spec, evaluating
from formers.model.respecify import respecified

FULL = 0
"""Attention over all pairs; other values are numbers of rounds."""
TRAINED = (FULL, 4, 2, 1)
EVALUATED = (FULL, 8, 4, 2, 1)
LIMITS = {"lsh_8": (0.99, 1.0), "full": (0.99, 1.0), "least_step": (-0.001, 1.0), "least_gain": (0.005, 1.0)}
"""With 8 rounds every model trained by hashing is right; twice the rounds are never worse, and 8 are better than 1."""
ROWS = 128
"""Number of rows evaluated."""
PIECE = 32
"""Number of rows evaluated at a time."""


def named(rounds: int) -> str:
    """The name of a column or a row."""
    return "full" if rounds == FULL else str(rounds)


COLUMNS = tuple(named(rounds) for rounds in EVALUATED)
"""The columns of the table."""
NOTE = (
    "Rows: the hashing rounds in training; full is dense attention with queries as keys. Columns: the rounds in evaluation.\n"
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
    device: str = "cpu"

    limits: ClassVar[dict[str, tuple[float, float]]] = LIMITS
    titles: ClassVar[tuple[str, ...]] = ("trained with", *(f"{name:>7}" for name in COLUMNS), "  other", "seconds")

    def names(self) -> list[str]:
        """The first column of the table."""
        return [named(rounds) for rounds in TRAINED]

    def cells(self, row: Mapping[str, Any]) -> list[str]:
        """A row of the table."""
        shares = [*(row["accuracy"][name] for name in COLUMNS), row["other"]]
        return [row["trained"], *(f"{share:.2%}" for share in shares), f"{row['seconds']:,.0f}"]

    def run(self, seeds: int = 1, row: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
        """The table and its figures, for the seed `seed`; `row` is called with each row."""
        return bench_copying(self, row)

    def save(self, results: dict[str, Any], path: Path) -> Path:
        """Writes the picture."""
        return save_copying(results, path)

    def closing(self, results: Mapping[str, Any]) -> tuple[str, ...]:
        """Lines printed after the last row."""
        return (NOTE.format(other=results["other_reach"]),)

    @property
    def length(self) -> int:
        """The number of input tokens: all of a row but the last."""
        return 2 * (self.words + 1) - 1

    def spec(self, rounds: int, reach: Literal["chunk", "bucket"] | None = None) -> Spec:
        """The model with attention over all pairs or by hashing; its weights do not depend on the rounds.

        Positions are learned: those of a word and of its copy must become parallel. Small embeddings, which the head shares,
        let Adam rotate them in some dozens of steps; unit keys also need scores that are not scaled down.
        """
        return spec(
            "reformer", vocab=self.symbols + 1, dim=self.dim, heads=self.heads, layers=1, hidden=self.dim, length=self.length,
            attention=("full",) if rounds == FULL else ("lsh",), rounds=rounds or 1, chunk=min(self.chunk, self.length),
            reach=reach or self.reach, scaled=False, norm="pre", position="learned", embedding_scale="none", hash_seed=self.seed,
        )  # fmt: skip


def bench_copying(task: Copying, row: Callable[[dict[str, Any]], None] = lambda found: None) -> dict[str, Any]:
    """Trains a model for each row of the table and evaluates it for each column; `row` is called with each row."""
    duplication(task.words, task.symbols, 1, task.seed)  # raises for a bad task before training
    other: Literal["chunk", "bucket"] = "bucket" if task.reach == "chunk" else "chunk"
    rows = []
    for rounds in TRAINED:
        start = time.process_time()
        with working(f"training with {words_for(rounds)}", task.steps) as advance:
            model, losses = train_model(task, rounds, partial(advance, 1))
        found = {
            "trained": named(rounds),
            "accuracy": {named(r): copy_accuracy(task, respecified(model, task.spec(r))) for r in EVALUATED},
            # "other" is the other reach, with the rounds of the training
            "other": copy_accuracy(task, respecified(model, task.spec(max(rounds, 1), other))),
            "seconds": time.process_time() - start,
            "losses": losses,
        }
        rows.append(found)
        row(found)
    return {"setting": asdict(task), "length": task.length + 1, "other_reach": other, "rows": rows, **claims(rows)}


def words_for(rounds: int) -> str:
    """A number of rounds as text."""
    return "all pairs" if rounds == FULL else f"{rounds} round{'s' if rounds > 1 else ''}"


def claims(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that `LIMITS` bound, from the rows of a table.

    lsh_8: the lowest accuracy with 8 rounds of models trained by hashing. full: trained and evaluated with all pairs. least_step: the
    smallest gain of twice the rounds, anywhere in the table. least_gain: the smallest gain of 8 rounds over 1.
    """
    rising = [[row["accuracy"][named(r)] for r in sorted(EVALUATED) if r != FULL] for row in rows]
    return {
        "lsh_8": min(row["accuracy"]["8"] for row in rows if row["trained"] != "full"),
        "full": next(row["accuracy"]["full"] for row in rows if row["trained"] == "full"),
        "least_step": min(more - less for line in rising for less, more in pairwise(line)),
        "least_gain": min(line[-1] - line[0] for line in rising),
    }


def train_model(task: Copying, rounds: int, tick: Callable[[], None] = lambda: None) -> tuple[Model, list[float]]:
    """The model trained with these rounds, and the loss of each step."""
    training = TrainingSettings(task.steps, task.batch, task.rate, task.warmup, task.device)
    return train_spec(task.spec(rounds), training, task.seed, partial(duplication, task.words, task.symbols, task.batch, task.seed), tick)


@torch.no_grad()
def copy_accuracy(task: Copying, model: Model) -> float:
    """The share of tokens of the second words that a model predicts right, on held-out rows."""
    batch = duplication(task.words, task.symbols, ROWS, task.seed, part="valid")
    with evaluating(model):
        tokens = batch["tokens"].to(next(model.parameters()).device)
        logits = torch.cat([model(some).logits for some in torch.split(tokens, PIECE)]).cpu()
    return token_accuracy(logits, batch["targets"])


def save_copying(results: dict[str, Any], path: Path) -> Path:
    """Writes a figure of the accuracy by rounds in evaluation, and of the training losses."""
    rounds = sorted(r for r in EVALUATED if r != FULL)
    names = [f"trained with {words_for(r)}" for r in TRAINED]
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
