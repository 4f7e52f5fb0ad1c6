"""Masked keys do not matter: NaN, infinity or huge numbers there change nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from contracts.attention_cases import attempt
from contracts.specimens import SPECIMENS, Specimen, Subject, subject
from formers.attention import EXECUTORS
from formers.attention.executors import flex, flex_kernel
from formers.heads import Classify
from formers.inputs import Features
from formers.memory import NoMemory
from formers.patterns import BigBird, Causal, Full, Local, Pattern
from helpers import close, gradients

PATTERNS: tuple[Pattern, ...] = (Full(), Causal(), Local(window=3), Local(window=2, causal=False), BigBird(block=2, window=1))
FILLS = (float("nan"), float("inf"), float("-inf"), 1e38)
N = 13


@pytest.fixture
def eager_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention without a compiled kernel: the same operator over the full matrix, in a fraction of the time."""
    monkeypatch.setattr(flex_kernel, "compiled", flex_kernel.CompiledKernel("eager"))


def outcome(how: str, inputs: list[Tensor], mask: Tensor, fill: float, pattern: Pattern, learns: bool) -> tuple[Tensor, ...] | None:
    """The output, and the gradients of q, k, v and the bias where there are some, with `fill` at masked keys."""
    q, k, v, *bias = inputs
    shut = ~mask[:, None, :, None]
    made = [q, k.masked_fill(shut, fill), v.masked_fill(shut, fill), *(b.masked_fill(shut.mT, fill) for b in bias)]
    made = [t.detach().requires_grad_(learns) for t in made]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FlexAttention says that it is not compiled
        found = attempt(how, *made[:3], pattern, mask=mask, **({"bias": made[3]} if bias else {}))
    if found is None:
        return None
    if not learns:
        return (found,)
    slopes = gradients(found, made)
    assert all((slope.masked_select(shut) == 0).all() for slope in slopes[1:3]), "a masked key has a gradient"
    return found, *slopes


@pytest.mark.usefixtures("eager_flex")
@pytest.mark.parametrize("how", [*EXECUTORS, "auto"])
def test_masked_keys_hold_anything(how: str) -> None:
    """Outputs and gradients are bit for bit those with zeros at masked keys; the last row has no key at all."""
    ran = 0
    for seed, dtype in enumerate((torch.float32, torch.float64)):
        torch.manual_seed(seed)
        for pattern in PATTERNS[:2] if how == "flex" else PATTERNS:
            for queries in (N, 1):
                mask = torch.rand(3, N) < 0.6
                mask[2] = False
                inputs = [torch.randn(3, 2, n, width, dtype=dtype) for n, width in ((queries, 4), (N, 4), (N, 3))]
                for bias in ([], [torch.randn(3, 2, queries, N, dtype=dtype)]):
                    for learns in (False, True):
                        wanted = outcome(how, [*inputs, *bias], mask, 0.0, pattern, learns)
                        if wanted is None:
                            continue
                        ran += 1
                        assert all(t.isfinite().all() for t in wanted)
                        assert (wanted[0][2] == 0).all()
                        for fill in FILLS:
                            found = outcome(how, [*inputs, *bias], mask, fill, pattern, learns)
                            assert found is not None
                            for one, other in zip(found, wanted, strict=True):
                                assert torch.equal(one, other), f"{pattern!r}, {dtype}, {fill}: {(one != other).sum()} numbers differ"
    refuses_masks = how == "distances"
    no_kernels = how == "flex" and flex.compiler() is None
    assert (ran == 0) == (refuses_masks or no_kernels)


def with_features(specimen: Specimen) -> Subject:
    """The specimen as a classifier of vectors; an encoder-decoder reads a source of vectors."""
    spec = specimen.spec
    if spec.image is not None:
        return subject(spec, batch=4)
    if spec.encoder is None:
        return subject(spec.replace(vocab=None, features=4, input=Features(), memory=NoMemory(), head=Classify(classes=3)), batch=4)
    read = subject(spec.replace(encoder=spec.encoder.replace(vocab=None, features=4)), batch=4)
    return replace(read, source=torch.randn(4, N, 4, dtype=torch.float64))


def filled(read: Subject, x: Tensor, mask: Tensor, fill: float) -> dict[str, Tensor]:
    """The logits at real tokens and every gradient, with `fill` in the features of padding."""
    if read.source is not None:
        read = replace(read, source=read.source.masked_fill(~mask[:, :, None], fill), source_mask=mask)
    else:
        x = x.masked_fill(~mask[:, :, None], fill)
    read.model.zero_grad()
    logits = read(x, mask=mask).logits
    logits = logits if logits.dim() == 2 else logits[mask]
    (logits**2).sum().backward()
    return {"logits": logits.detach(), **{name: p.grad.clone() for name, p in read.model.named_parameters() if p.grad is not None}}


def test_features_of_padding_hold_anything() -> None:
    """Every member that reads vectors, as its input or as its source: outputs and gradients are as if padding were 0."""
    torch.manual_seed(0)
    mask = torch.rand(4, N) < 0.6
    mask[2] = False
    for specimen in SPECIMENS:
        if specimen.spec.image is not None and (specimen.spec.encoder is not None or not specimen.spec.input.vectors):
            continue  # channel values are no vectors
        read = with_features(specimen)
        x = read.input(N)
        wanted = filled(read, x, mask, 0.0)
        for fill in FILLS[:2]:
            found = filled(read, x, mask, fill)
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                assert value.isfinite().all(), f"{specimen}: {name}"
                close(found[name], value)
