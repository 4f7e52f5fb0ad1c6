"""What `formers bench lsh` is made of, at small sizes."""

from __future__ import annotations

import pytest
import torch

from formers.bench import lsh
from helpers import sweep


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsh, "SIZES", dict(vocab=16, dim=32, heads=2, layers=2, hidden=48, length=256))
    monkeypatch.setattr(lsh, "CHUNK", 8)


@sweep("name", [*lsh.OURS, *lsh.PEERS])
def test_every_model_takes_a_pass(name: str) -> None:
    """And has gradients: what is timed is a training."""
    run = lsh.pass_of(name)
    run()
    model = run.args[0]  # type: ignore[attr-defined]
    grads = [weight.grad for weight in model.parameters()]
    assert sum(g is not None for g in grads) >= 0.8 * len(grads), "one of theirs has a bias that it does not use"
    assert all(g.isfinite().all() for g in grads if g is not None)


@sweep("kind", ["lsh", "all_pairs"])
def test_attention_alone(kind: str) -> None:
    lsh.alone(64, kind)()


def test_where_two_costs_cross() -> None:
    costs = {n: {"lsh": 4.0 * n, "all_pairs": n * n / 256} for n in (256, 512, 1024, 2048)}
    assert lsh.crossover(costs) == 1024
    assert lsh.crossover({n: costs[n] for n in (256, 512)}) is None, "it does not pay in what was timed"
    assert lsh.crossover({2048: costs[2048]}) == 2048, "it always has"


def test_our_models_are_the_same_but_for_whom_they_meet() -> None:
    torch.manual_seed(0)
    counts = {sum(p.numel() for p in lsh.pass_of(name).args[0].parameters()) for name in lsh.OURS}  # type: ignore[attr-defined]
    assert len(counts) == 1
