"""Masked evaluation: which tokens are hidden, and what is shown instead, does not depend on the batch size or on the processes."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.core import IGNORED
from formers.data import Bytes, Masked
from formers.evaluation.evaluate import evaluate

MASKING = Bytes(specials=("mask",))
TEXT = torch.randint(32, 127, (16 * 50 + 5,), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
SIZES = (1, 3, 16)


def masked(length=16):
    return Masked({"train": TEXT, "valid": TEXT}, length, MASKING)


def flat(batches):
    """Inputs and targets of all windows in their order, each as one row of tokens."""
    found = list(batches)
    return [torch.cat([batch[name].flatten() for batch in found]) for name in ("tokens", "targets")]


def test_every_batch_size_masks_the_same_tokens_in_the_same_way():
    shown, targets = flat(masked().eval_batches(SIZES[0]))
    for size in SIZES[1:]:
        tokens, others = flat(masked().eval_batches(size))
        assert others.equal(targets)
        assert tokens.equal(shown)
    chosen = targets != IGNORED
    assert targets[chosen].equal(TEXT[chosen].long())
    assert shown[~chosen].equal(TEXT[~chosen].long())


def test_every_window_has_a_target_and_the_shares_are_those_of_the_paper():
    stream = torch.full((60_000,), 65, dtype=torch.uint8)
    shown, targets = flat(Masked({"valid": stream}, 200, MASKING).eval_batches(16))
    chosen = targets != IGNORED
    assert chosen.float().mean() == pytest.approx(0.15, abs=0.01)
    assert (shown[chosen] == MASKING.special("mask")).float().mean() == pytest.approx(0.8, abs=0.02)
    assert (shown[chosen] == 65).float().mean() == pytest.approx(0.1, abs=0.02)
    others = shown[chosen & (shown != 65) & (shown != MASKING.special("mask"))]
    assert len(others.unique()) > 200
    assert all((batch["targets"] != IGNORED).any(dim=1).all() for batch in masked(2).eval_batches(7))


def test_the_figures_are_those_of_any_batch_size_and_number_of_processes():
    torch.manual_seed(0)
    model = formers.create("encoder", vocab=MASKING.vocab, dim=16, heads=2, layers=1, length=16).eval()
    figures = [evaluate(model, masked(), MASKING, size) for size in SIZES]
    for other in figures[1:]:
        assert other["targets"] == figures[0]["targets"]
        assert other["loss"] == pytest.approx(figures[0]["loss"], abs=1e-6)
        assert other["masked_accuracy"] == figures[0]["masked_accuracy"]
    parts = [evaluate(model, masked(), MASKING, 3, share=(rank, 2)) for rank in range(2)]
    assert sum(part["targets"] for part in parts) == figures[0]["targets"]
    nats = sum(part["loss"] * part["targets"] for part in parts)
    assert nats / figures[0]["targets"] == pytest.approx(figures[0]["loss"], abs=1e-6)


def test_training_masks_are_those_of_the_step_whichever_rows_are_read():
    data = masked()
    whole = data.train_batch(8, seed=1, step=7)
    for cuts in ([8], [3, 8], [1, 2, 6, 8]):
        pieces = [data.train_batch(8, 1, 7, slice(start, stop)) for start, stop in zip([0, *cuts], cuts, strict=False)]
        assert all(torch.cat([piece[name] for piece in pieces]).equal(whole[name]) for name in whole)
    assert not data.train_batch(8, 1, 8)["targets"].equal(whole["targets"])
