"""Where a token must be copied from far back, some head's span grows until it reaches there, and the others shrink. Ten seconds."""

from __future__ import annotations

import torch

import formers
from learn.fitting import Batch, fit

DISTANCE, VOCAB, LENGTH = 20, 8, 64
SPAN, RAMP, INIT, HEADS = 64, 4, 0.2, 4


def copying(rows: int) -> Batch:
    """Tokens that often repeat the one before; the target is the token DISTANCE places back.

    So a key a little nearer than that tells something, too: a span that ends before the distance learns that further is better.
    """
    fresh, new = torch.randint(VOCAB, (rows, LENGTH)), torch.rand(rows, LENGTH) < 1 / 8
    tokens = fresh.gather(1, torch.where(new, torch.arange(LENGTH), 0).cummax(dim=1).values)
    targets = torch.full_like(tokens, -100)
    targets[:, DISTANCE:] = tokens[:, :-DISTANCE]
    return {"tokens": tokens, "targets": targets}


def test_one_head_grows_to_the_distance_and_others_shrink() -> None:
    torch.manual_seed(3)
    model = formers.create(
        "adaptive-span", vocab=VOCAB, dim=64, heads=HEADS, layers=1, hidden=64, length=LENGTH, span=SPAN, ramp=RAMP, init=INIT,
        span_penalty=3e-3,
    )  # fmt: skip
    assert SPAN * INIT + RAMP < DISTANCE, "at first nobody sees as far as the distance"
    fit(model, lambda: copying(16), 200, rate=1e-2)
    test = copying(64)
    with torch.no_grad():
        found = model(test["tokens"]).logits.argmax(dim=-1)
    counted = test["targets"] >= 0
    assert (found == test["targets"])[counted].double().mean() >= 0.98
    spans = model.inspect(test["tokens"][:1]).notes["span"][0].tolist()
    assert DISTANCE - RAMP < max(spans) < DISTANCE + RAMP, f"no span of {spans} ends at the distance"
    assert sorted(spans)[1] < 2.0, f"half of the spans {spans} should have shrunk to nothing"
