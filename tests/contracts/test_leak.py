"""No leak: changing token t changes no output before t, bit for bit."""

from __future__ import annotations

import pytest
import torch

from contracts.specimens import CAUSAL, SPECIMENS, Specimen, patterns, subject
from formers import Spec
from formers.heads import Classify, Tag
from formers.patterns import Pattern

LENGTH = 9
DECODER = next(s for s in CAUSAL if s.member == "decoder").spec


def no_leak(spec: Spec, mask: torch.Tensor | None) -> None:
    read = subject(spec, dtype=torch.float32)
    x = read.input(LENGTH)
    before = read(x, mask=mask)
    for t in range(LENGTH):
        changed = x.clone()
        changed[:, t] = x[:, t] + 1 if spec.vocab is None else (x[:, t] + 1) % spec.vocab
        after = read(changed, mask=mask)
        assert torch.equal(before.logits[:, :t], after.logits[:, :t]), f"token {t} reaches logits before it"
        assert torch.equal(before.hidden[:, :t], after.hidden[:, :t]), f"token {t} reaches hidden states before it"
        real = torch.ones(read.batch, dtype=torch.bool) if mask is None else mask[:, t]
        moved = (before.hidden[:, t] != after.hidden[:, t]).any(dim=-1)
        assert torch.equal(moved, real), f"token {t} must reach its own output, unless it is padding"


@pytest.mark.parametrize("specimen", CAUSAL, ids=str)
@torch.no_grad()
def test_every_causal_member(specimen: Specimen) -> None:
    no_leak(specimen.spec, None)
    no_leak(specimen.spec, torch.rand(3, LENGTH) < 0.7)


@pytest.mark.parametrize("pattern", [p for p in patterns() if p.is_causal], ids=repr)
@torch.no_grad()
def test_every_causal_pattern(pattern: Pattern) -> None:
    no_leak(DECODER.model_copy(update={"pattern": pattern}), None)


@pytest.mark.parametrize("specimen", [s for s in SPECIMENS if s not in CAUSAL], ids=str)
@torch.no_grad()
def test_the_others_do_look_ahead(specimen: Specimen) -> None:
    """The test above can fail: a member that sees all tokens at once fails it."""
    read = subject(specimen.spec, dtype=torch.float32)
    x = read.input(LENGTH)
    changed = x.clone()
    changed[:, -1] = x[:, 0]
    assert not torch.equal(read(x).hidden[:, :-1], read(changed).hidden[:, :-1])
    assert isinstance(specimen.spec.head, Classify | Tag) or read(x).logits.shape == (3, LENGTH, specimen.spec.vocab)
