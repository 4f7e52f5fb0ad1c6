"""What was there before attention learns what it can, and no more: a state carries parity on, a window ends, thinking costs. Seconds."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Model
from learn.fitting import Batch, fit


def odd(n: int, length: int) -> Batch:
    """Bits, and after each whether the ones so far are odd: all is lost with one bit that was not carried on."""
    bits = torch.randint(2, (n, length))
    return {"tokens": bits, "targets": bits.cumsum(dim=1) % 2}


def echoes(n: int, lag: int) -> Batch:
    """Random symbols, each to be predicted `lag` tokens later."""
    symbols = torch.randint(10, (n, 24))
    ignored = torch.full((n, lag), -100)
    return {"tokens": symbols, "targets": torch.cat([ignored, symbols[:, :-lag]], dim=1)}


@torch.no_grad()
def accuracy(model: Model, batch: Batch) -> float:
    """The share of targets that are predicted right, token by token from the state."""
    tokens, state, right = batch["tokens"], model.initial_state(len(batch["tokens"])), []
    for t in range(tokens.shape[1]):
        out = model(tokens[:, t : t + 1], state=state)
        state = out.state
        right.append(out.logits.argmax(dim=-1) == batch["targets"][:, t : t + 1])
    return torch.cat(right, dim=1)[batch["targets"] >= 0].float().mean().item()


@pytest.mark.parametrize("cell", ["tanh", "gru", "lstm"])
def test_a_state_carries_parity_five_times_as_far_as_it_was_learned(cell: str) -> None:
    torch.manual_seed(0)
    model = formers.create("rnn", cell=cell, vocab=2, dim=32, layers=1, length=8, dropout=0.0)
    fit(model, lambda: odd(32, 8), steps=400, rate=1e-2)
    assert accuracy(model, odd(200, 40)) > 0.98


@pytest.mark.parametrize(("lag", "least", "most"), [(4, 0.99, 1.0), (5, 0.0, 0.15)])
def test_two_windows_of_two_see_four_tokens_back_and_not_five(lag: int, least: float, most: float) -> None:
    torch.manual_seed(0)
    model = formers.create("word-window", vocab=10, dim=32, layers=2, window=2, length=24, dropout=0.0)
    fit(model, lambda: echoes(32, lag), steps=200, rate=5e-3)
    assert least <= accuracy(model, echoes(200, lag)) <= most


def test_whoever_pays_for_thinking_learns_to_think_no_longer_than_it_must() -> None:
    """One step is enough for parity bit by bit. Halting starts near four, and only the gradient of the cost says less.

    Of six seeds all who pay tell all bits and take 1.05 steps at the most; who does not pay takes more than 5.7, and learns more slowly.
    """
    found, test = {}, odd(200, 40)
    for ponder in (0.05, 0.0):
        torch.manual_seed(0)
        model = formers.create("act-rnn", cell="lstm", vocab=2, dim=24, steps=6, halt_bias=-1.0, ponder=ponder, length=8)
        fit(model, lambda: odd(32, 8), steps=300, rate=1e-2)
        steps = model.inspect(test["tokens"]).notes["ponder steps"][0].float().mean().item()
        found[ponder] = accuracy(model, test), steps
    assert found[0.05][0] > 0.98
    assert found[0.05][1] < 1.2
    assert found[0.0][1] > 3.0
