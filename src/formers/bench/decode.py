"""Decoding with the cache against recomputing the whole context for every token."""

from __future__ import annotations

import statistics

import torch

from formers.bench.timing import alternate, ratio
from formers.family import create

TOKENS = 32
"""How many tokens are written one after the other from the same context."""
LIMITS = {"speedup": (10.0, float("inf")), "largest_difference": (0.0, 1e-4)}


@torch.inference_mode()
def bench_decode(context: int, rounds: int) -> dict[str, float]:
    """Seconds per token with and without the cache after `context` tokens, their ratio, and the largest difference of the logits."""
    torch.manual_seed(0)
    model = create("decoder", vocab=256, dim=256, heads=4, layers=4, hidden=1024, length=context + 1).eval()
    tokens = torch.randint(256, (1, context + 1))
    read = model(tokens[:, :context]).state
    cached = model(tokens[:, context:], state=read).logits
    whole = model(tokens).logits[:, -1:]

    def write() -> None:
        state = read
        for _ in range(TOKENS):
            state = model(tokens[:, context:], state=state).state

    times = alternate({"cached": write, "recomputed": lambda: model(tokens)}, rounds)
    return {
        "context": context,
        "cached_seconds": statistics.median(times["cached"]) / TOKENS,
        "recomputed_seconds": statistics.median(times["recomputed"]),
        "speedup": TOKENS * ratio(times, "recomputed", "cached"),
        "largest_difference": float((cached - whole).abs().max()),
    }
