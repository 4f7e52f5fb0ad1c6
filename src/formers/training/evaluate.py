"""Judging a model on held-out data: loss, bits per byte or perplexity, and exact matches of what it writes.

bits per byte = cross-entropy / ln 2, where a token is a byte                      E21
"""

from __future__ import annotations

import math
import time
from itertools import islice

import torch

from formers.core import IGNORED, FormersError
from formers.data import Pairs
from formers.data.batches import Batches
from formers.generation import answer
from formers.heads import MaskedLM
from formers.model import Model, Seq2Seq, evaluating


@torch.no_grad()
def evaluate(model: Model, batches: Batches, size: int = 16, limit: int | None = None) -> dict[str, float]:
    """Mean loss per target over the held-out batches (the first `limit` of them) and the figures that follow from it."""
    device = next(model.parameters()).device
    total, count, start = 0.0, 0, time.perf_counter()
    with evaluating(model):
        for batch in islice(batches.eval_batches(size), limit):
            out = model(**{name: value.to(device) for name, value in batch.items()})
            n = int((batch["targets"] != IGNORED).sum())
            total += float(out.losses["cross_entropy"]) * n
            count += n
    if count == 0:
        raise FormersError("the held-out data have nothing to predict: give more data.")
    loss = total / count
    results = {"loss": loss, "targets": count, "tokens_per_second": count / (time.perf_counter() - start)}
    if isinstance(model.spec.head, MaskedLM):
        results["masked_bits_per_byte"] = loss / math.log(2)
    elif model.spec.head.writes and not isinstance(model, Seq2Seq):
        results["bits_per_byte"] = loss / math.log(2)  # E21
    return results


@torch.no_grad()
def exact_match(model: Seq2Seq, pairs: Pairs, size: int = 64, limit: int | None = None) -> float:
    """The share of held-out sources whose whole target the model writes, greedily."""
    judged, right = pairs.valid[:limit], 0
    with evaluating(model):
        for start in range(0, len(judged), size):
            chunk = judged[start : start + size]
            written = answer(model, [a for a, _ in chunk], max_new_tokens=2 * max(len(b) for _, b in chunk) + 8)
            right += sum(mine == theirs for mine, (_, theirs) in zip(written, chunk, strict=True))
    return right / max(len(judged), 1)


def judge(model: Model, batches: Batches, size: int, matches: int | None = None) -> dict[str, float]:
    """All figures of the held-out data; of pairs also the exact matches, of the first `matches` of them."""
    results = evaluate(model, batches, size)
    if isinstance(model, Seq2Seq) and isinstance(batches, Pairs):
        results["exact_match"] = exact_match(model, batches, limit=matches)
    return results
