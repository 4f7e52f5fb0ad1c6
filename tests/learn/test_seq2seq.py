"""The recurrent encoder-decoder learns to reverse by looking at the symbol that it is about to write. A few seconds."""

from __future__ import annotations

import torch

import formers
from learn.fitting import fit, greedy
from learn.test_transformer import LONGEST, SYMBOLS, reversals


def test_an_aligned_decoder_learns_to_reverse() -> None:
    model = formers.create("seq2seq", vocab=2 + SYMBOLS, length=LONGEST, dim=48, dropout=0.0, alignment="multiplicative", feeding=False)
    fit(model, lambda: reversals(32, unseen=False), steps=400, rate=5e-3)
    test = reversals(300, unseen=True)
    real, wanted = test["mask"], test["targets"]
    with torch.no_grad():
        first = model(test["source"], test["target"][:, :1], source_mask=test["source_mask"])
    written = greedy(model, first.logits, first.state, LONGEST)
    assert (written == wanted)[real].float().mean() > 0.93, "what it writes by itself, from its state"
    (weights,) = model.inspect(test["source"], test["target"], source_mask=test["source_mask"], mask=real).cross
    mirrored = real.sum(dim=1, keepdim=True) - 1 - torch.arange(LONGEST)
    assert (weights[:, 0].argmax(dim=-1) == mirrored)[real].float().mean() > 0.9, "by chance 0.14 would"
