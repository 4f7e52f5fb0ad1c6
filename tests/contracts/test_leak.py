"""No leak: changing token t changes no output before t, bit for bit.

Where tokens that have halted are left out of a product of matrices, how many are left in it depends on later ones, too, and a product of
another size may be rounded otherwise. So adaptive depth keeps the promise bit for bit with nothing left out, and else to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from contracts.specimens import CAUSAL, SPECIMENS, Specimen, Subject, patterns, subject
from formers import Spec
from formers.bench.pondering import skipping_is
from formers.depth import Adaptive
from formers.heads import Classify, Tag
from formers.patterns import Pattern
from helpers import EXACT, sweep

LENGTH = 9
DECODER = next(s for s in CAUSAL if s.member == "decoder").spec


def no_leak(spec: Spec, mask: torch.Tensor | None, skipping: bool = False) -> None:
    read = subject(spec, dtype=torch.float64 if skipping else torch.float32)
    with skipping_is(read.model, skipping):
        _no_leak(read, spec, mask, partial(torch.allclose, rtol=0.0, atol=EXACT) if skipping else torch.equal)


def _no_leak(read: Subject, spec: Spec, mask: torch.Tensor | None, same: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    x = read.input(LENGTH)
    before = read(x, mask=mask)
    for t in range(LENGTH):
        changed = x.clone()
        changed[:, t] = x[:, t] + 1 if spec.vocab is None else (x[:, t] + 1) % spec.vocab
        after = read(changed, mask=mask)
        assert same(before.logits[:, :t], after.logits[:, :t]), f"token {t} reaches logits before it"
        assert same(before.hidden[:, :t], after.hidden[:, :t]), f"token {t} reaches hidden states before it"
        real = torch.ones(read.batch, dtype=torch.bool) if mask is None else mask[:, t]
        if getattr(spec.input, "shifted", False):  # what is given first in a row is ignored: nothing comes before the first cell
            real = real & (real if mask is None else mask[:, :t].any(dim=1)) & (t > 0)
        moved = (before.hidden[:, t] != after.hidden[:, t]).any(dim=-1)
        assert torch.equal(moved, real), f"token {t} must reach its own output, unless it is padding"


@sweep("specimen", CAUSAL)
@torch.no_grad()
def test_every_causal_member(specimen: Specimen) -> None:
    for skipping in (False, True) if isinstance(specimen.spec.depth, Adaptive) else (False,):
        no_leak(specimen.spec, None, skipping)
        no_leak(specimen.spec, torch.rand(3, LENGTH) < 0.7, skipping)


@sweep("pattern", [p for p in patterns() if p.is_causal])
@torch.no_grad()
def test_every_causal_pattern(pattern: Pattern) -> None:
    no_leak(DECODER.model_copy(update={"pattern": pattern}), None)


@sweep("specimen", [s for s in SPECIMENS if s not in CAUSAL])
@torch.no_grad()
def test_the_others_do_look_ahead(specimen: Specimen) -> None:
    """The test above can fail: a member that sees all tokens at once fails it."""
    read = subject(specimen.spec, dtype=torch.float32)
    x = read.input(LENGTH)
    changed = x.clone()
    changed[:, -1] = x[:, 0]
    assert not torch.equal(read(x).hidden[:, :-1], read(changed).hidden[:, :-1])
    assert isinstance(specimen.spec.head, Classify | Tag) or read(x).logits.shape == (3, LENGTH, specimen.spec.vocab)
