"""What the parts of factorised attention are for: a column finds a period, and summaries carry a token to any distance. Seconds each."""

from __future__ import annotations

import math

import torch

import formers
from formers.patterns import Blocks, Local, Pattern
from learn.fitting import Batch, fit

VOCAB = 8
SMALL = {"vocab": VOCAB, "dim": 32, "heads": 2, "layers": 2, "hidden": 64, "dropout": 0.0}


# (a) Random tokens that repeat, so that what comes next stands exactly a stride back: the first cell of the column, and the first one
# that a window of the same size does not hold.

STRIDE, REPEATS = 8, 4


def repeated(n: int) -> Batch:
    """Rows of random tokens that repeat every STRIDE + 1 tokens: what comes next stands exactly STRIDE back."""
    period = torch.randint(VOCAB, (n, STRIDE + 1))
    rows = period.repeat(1, REPEATS)
    targets = rows[:, 1:].clone()
    targets[:, :STRIDE] = -100  # nothing foretells the first period
    return {"tokens": rows[:, :-1], "targets": targets}


def periodic(pattern: Pattern | None) -> float:
    """The loss after training, with strided attention or another pattern."""
    torch.manual_seed(0)
    spec = formers.spec("sparse-transformer", length=(STRIDE + 1) * REPEATS, stride=STRIDE, pattern="strided", **{**SMALL, "layers": 1})
    model = formers.build(spec if pattern is None else spec.replace(pattern=pattern))
    fit(model, lambda: repeated(32), steps=200 if pattern is None else 100, rate=1e-2)
    with torch.no_grad():
        return model(**repeated(200)).loss.item()


def test_strided_finds_a_period_that_local_attention_does_not_reach() -> None:
    assert periodic(None) < 0.05
    assert periodic(Local(window=STRIDE)) > 0.95 * math.log(VOCAB), "the key STRIDE back is one beyond its window"


# (b) The first token of a row is asked for in all later blocks; what counts is the end of the row.

BLOCK, BLOCKS = 4, 12


def remembered(n: int, since: int) -> Batch:
    """Rows of random tokens whose first one is the target from some place on."""
    rows = torch.randint(VOCAB, (n, BLOCK * BLOCKS))
    targets = torch.full_like(rows, -100)
    targets[:, since:] = rows[:, :1]
    return {"tokens": rows, "targets": targets}


def recalled(pattern: Pattern | None) -> float:
    """The loss at the end of rows after training, with fixed attention by turns or another pattern."""
    torch.manual_seed(0)
    spec = formers.spec("sparse-transformer", length=BLOCK * BLOCKS, stride=BLOCK, summary=1, use="interleaved", **SMALL)
    model = formers.build(spec if pattern is None else spec.replace(pattern=pattern))
    fit(model, lambda: remembered(64, since=BLOCK), steps=250 if pattern is None else 100, rate=5e-3)
    with torch.no_grad():
        return model(**remembered(200, since=BLOCK * (BLOCKS - 1))).loss.item()


def test_fixed_carries_a_token_through_its_summaries() -> None:
    assert recalled(None) < 0.05
    assert recalled(Blocks(query=BLOCK, memory=0)) > 0.95 * math.log(VOCAB), "nothing leaves a block"
