"""Judging a model on held-out data: loss, bits per byte or perplexity, and exact matches of what it writes.

bits per byte = cross-entropy / ln 2, where a token is a byte                      E21
"""

from __future__ import annotations

import math
import time
from itertools import islice

import torch

from formers.core import FormersError
from formers.data import Pairs
from formers.data.batches import IGNORED, Batches
from formers.generation import answer
from formers.heads import LanguageModel, MaskedLM
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
    elif isinstance(model.spec.head, LanguageModel) and not isinstance(model, Seq2Seq):
        results["bits_per_byte"] = loss / math.log(2)  # E21
    return results


@torch.no_grad()
def exact_match(model: Seq2Seq, pairs: Pairs, size: int = 64, limit: int | None = None) -> float:
    """The share of held-out sources whose whole target the model writes, greedily."""
    right = seen = 0
    for start in range(0, len(pairs.valid[:limit]), size):
        chunk = pairs.valid[:limit][start : start + size]
        written = answer(model, [a for a, _ in chunk], max_new_tokens=2 * max(len(b) for _, b in chunk) + 8)
        right += sum(mine == theirs for mine, (_, theirs) in zip(written, chunk, strict=True))
        seen += len(chunk)
    return right / max(seen, 1)
