"""Log-probabilities of given tokens: what a prompt costs under a model, and how likely other tokens were.

log P(x_t | x_<t) = log softmax(logits of x_<t)[x_t], in float64. The first token has none: nothing stands before it.

A row is read in one pass, or in pieces that each go on from the state of the one before, which gives the same. A member with absolute
positions has met only so many of them: a longer row is read as evaluation reads a text, in adjacent windows of the training length,
and a token is given those before it in its window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from formers.data.batches import pad
from formers.generation.reader import limit_of
from formers.model import Model, evaluating

LOGITS = 1 << 24
"""The largest number of logits that are held at once."""


class Scored(NamedTuple):
    """A token, its log-probability, and the likeliest tokens at its place with theirs."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


def scored(logits: Tensor, tokens: Tensor, top: int) -> list[Scored]:
    """The tokens (n,) under logits (n, vocab), each with the `top` likeliest."""
    chances = logits.cpu().double().log_softmax(dim=-1)
    tokens = tokens.cpu()
    own = chances.gather(1, tokens[:, None])[:, 0].tolist()
    if top == 0:
        return [Scored(token, value, []) for token, value in zip(tokens.tolist(), own, strict=True)]
    best = chances.topk(min(top, chances.shape[1]), dim=-1)
    pairs = zip(tokens.tolist(), own, best.indices.tolist(), best.values.tolist(), strict=True)
    return [Scored(token, value, list(zip(ids, values, strict=True))) for token, value, ids, values in pairs]


def score(model: Model, rows: Sequence[Sequence[int]], top: int) -> Iterator[list[list[Scored]] | None]:
    """Scores rows of token ids; None between two passes, and at last the scores of all rows, of which the first token's is None."""
    found: list[list[Scored]] = [[] for _ in rows]
    vocab = model.spec.vocab or 1
    limit = limit_of(model)
    # A pass reads what stands before a target, so a row of n tokens is read up to its n-1st.
    alone = [i for i, row in enumerate(rows) if (limit is not None and len(row) - 1 > limit) or _pieces(model, len(row) - 1, vocab)]
    together = sorted((i for i, row in enumerate(rows) if i not in set(alone) and len(row) > 1), key=lambda i: len(rows[i]))
    while together:
        width = len(rows[together[-1]]) - 1
        count = max(1, LOGITS // (width * vocab))
        batch, together = together[-count:], together[:-count]
        with evaluating(model), torch.inference_mode():
            tokens, mask = pad([list(rows[i]) for i in batch])
            device = next(model.parameters()).device
            read = tokens[:, :-1].to(device)
            logits = model(read, mask=None if bool(mask.all()) else mask[:, 1:].to(device)).logits
            for place, i in enumerate(batch):
                n = len(rows[i]) - 1
                found[i] = scored(logits[place, :n], tokens[place, 1 : n + 1].to(device), top)
        yield None
    for i in alone:
        for part in _long(model, rows[i], top, vocab, limit):
            found[i] += part
            yield None
    yield [[Scored(row[0], None, []), *each] if row else [] for row, each in zip(rows, found, strict=True)]


def _pieces(model: Model, length: int, vocab: int) -> bool:
    """Whether a row is read in pieces: a member with a memory reads segments, and many logits do not fit into one pass."""
    return (model.spec.memory.limit is not None and length > model.spec.length) or length * vocab > LOGITS


def _long(model: Model, row: Sequence[int], top: int, vocab: int, limit: int | None) -> Iterator[list[Scored]]:
    """The scores of a long row, piece by piece."""
    device = next(model.parameters()).device
    ids = torch.tensor(list(row), device=device)
    slides = limit is not None and len(row) - 1 > limit
    width = model.spec.length if slides or model.spec.memory.limit is not None else max(1, LOGITS // vocab)
    state = None
    for start in range(0, len(row) - 1, width):
        with evaluating(model), torch.inference_mode():
            piece = ids[None, start : min(start + width, len(row) - 1)]
            if state is None or slides:
                state = model.initial_state(1)
            out = model(piece, state=state)
            state = out.state
            assert out.logits is not None
            yield scored(out.logits[0], ids[start + 1 : start + 1 + piece.shape[1]], top)
