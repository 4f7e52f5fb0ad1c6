"""What the memory is for: a token that stands further back than the segment is recalled with it, and guessed without it."""

from __future__ import annotations

import torch
from torch import Tensor

import formers
from formers import State
from learn.fitting import Batch, fit

VOCAB, SEGMENT, BACK = 8, 8, 13
"""The target is the token BACK places before: in the last segment or the one before that, never in this one."""


class Lanes:
    """Random tokens in lanes, a segment at a time, each with the memory of the segment before."""

    def __init__(self, rows: int) -> None:
        self.past, self.state = torch.randint(VOCAB, (rows, BACK)), None

    def segment(self) -> tuple[Tensor, Tensor]:
        """The next tokens, and the tokens that stood BACK before each."""
        tokens = torch.randint(VOCAB, (len(self.past), SEGMENT))
        both = torch.cat([self.past, tokens], dim=1)
        self.past = both[:, SEGMENT:]
        return tokens, both[:, :SEGMENT]


def recall(memory: int) -> float:
    """The share of tokens recalled after training with a memory."""
    torch.manual_seed(0)
    model = formers.create(
        "transformer-xl", vocab=VOCAB, dim=32, heads=2, layers=1, hidden=64, length=SEGMENT, memory=memory, dropout=0.0, tied=False
    )
    lanes = Lanes(32)
    last: list[State] = [model.initial_state(32)]
    model.register_forward_hook(lambda _, __, out: last.append(out.state))

    def batch() -> Batch:
        tokens, targets = lanes.segment()
        return {"tokens": tokens, "targets": targets, "state": last.pop()}

    fit(model, batch, steps=250, rate=1e-2)
    lanes, right = Lanes(200), []
    last[:] = [model.initial_state(200)]
    with torch.no_grad():
        for i in range(12):
            tokens, targets = lanes.segment()
            out = model(tokens, state=last.pop())
            if i >= 3:  # until then the memory is still being filled
                right.append((out.logits.argmax(dim=-1) == targets).float().mean())
    return torch.stack(right).mean().item()


def test_with_a_memory_that_reaches_as_far():
    assert recall(memory=16) >= 0.99


def test_without_a_memory_and_with_one_that_is_too_short():
    assert recall(memory=0) <= 1.5 / VOCAB
    assert recall(memory=5) <= 0.3  # the last token of the segment sees 12 back, one too few
