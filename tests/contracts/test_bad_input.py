"""Invalid inputs of any member are one-sentence errors that name the value."""

from __future__ import annotations

import torch

import formers
from contracts.specimens import SPECIMENS, VOCAB, Specimen, Subject, built, subject
from formers.heads import Classify, PixelMixture, Tag
from helpers import refused, sweep

SWEPT = sweep("specimen", SPECIMENS)
TOKENS = sweep("specimen", [s for s in SPECIMENS if s.spec.vocab is not None])
PAIRS = sweep("specimen", [s for s in SPECIMENS if s.spec.encoder is not None and not s.spec.encoder.input.vectors])
GRADIENTS = sweep("mode", [torch.enable_grad, torch.no_grad])


@TOKENS
def test_tokens_that_are_none(specimen: Specimen) -> None:
    read = built(specimen.spec)
    shape = "(batch, length)" if specimen.spec.fact is None else f"(batch, facts, {specimen.spec.fact})"
    with refused("torch.float64", "int64"):
        read(torch.zeros(3, 4, dtype=torch.float64))
    with refused("torch.bool", "int64"):
        read(torch.zeros(3, 4, dtype=torch.bool))
    with refused("(3,)", shape):
        read(torch.zeros(3, dtype=torch.int64))
    with refused("(3, 4, 1)", shape):
        read(torch.zeros(3, 4, 1, dtype=torch.int64))


@TOKENS
@GRADIENTS
@sweep("wrong", [-1, -100, VOCAB, 10**9])
def test_ids_out_of_range(specimen: Specimen, mode: type, wrong: int) -> None:
    read = built(specimen.spec)
    x = read.input(4)
    x[1, 2] = wrong
    with mode(), refused(f"id {wrong}", f"vocab={VOCAB}", f"0 ... {VOCAB - 1}"):
        read(x)


@sweep("dtype", [torch.int32, torch.int16, torch.uint8])
def test_smaller_integers_are_tokens_too(dtype: torch.dtype) -> None:
    read = subject(next(s for s in SPECIMENS if s.spec.vocab is not None).spec)
    x = read.input(4)
    assert torch.equal(read(x.to(dtype)).logits, read(x).logits)


def test_features_that_do_not_fit() -> None:
    read = subject(formers.spec("encoder", features=4, classes=2, dim=16, heads=2, layers=1))
    for wrong in (torch.zeros(3, 5, 3).double(), torch.zeros(3, 4).double(), torch.zeros(3, 5, 4).long()):
        with refused("features are", "(batch, length, 4)"):
            read(wrong)


@SWEPT
def test_no_tokens_at_all(specimen: Specimen) -> None:
    read = built(specimen.spec)
    with refused("no tokens", "at least one"):
        read(read.input(4)[:, :0])


@SWEPT
def test_masks_that_do_not_fit(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x = read.input(4)
    for wrong in (torch.ones(3, 4), torch.ones(3, 5).bool(), torch.ones(4).bool(), torch.ones(3, 4).long(), torch.ones(1, 4).bool()):
        with refused("mask is", "(3, 4)", "True = a real token"):
            read(x, mask=wrong)


def wrong_targets(read: Subject) -> list[torch.Tensor]:
    good = read.targets(4)
    return [good.float(), good.int(), good[:2], good[..., None], good[0]]


@SWEPT
def test_targets_of_another_shape_or_type(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x, mask = read.input(4), torch.tensor([[True, True, False, False]] * 3)
    for wrong in wrong_targets(read):
        for given in (None, mask):
            with refused("targets are", str(tuple(wrong.shape)), "-100 = ignored"):
                read(x, targets=wrong, mask=given)


@SWEPT
@sweep("training", [True, False])
@sweep("wrong", [-1, -99, 10**6])
def test_targets_out_of_range(specimen: Specimen, training: bool, wrong: int) -> None:
    read = built(specimen.spec)
    targets = read.targets(4)
    targets.view(-1)[1] = wrong
    head = specimen.spec.head
    classes = head.classes if isinstance(head, Classify | Tag) else head.levels if isinstance(head, PixelMixture) else specimen.spec.vocab
    read.model.train(training)
    try:
        with refused(f"target {wrong}", f"0 ... {classes - 1}", "-100"):
            read(read.input(4), targets=targets)
    finally:
        read.model.eval()


@sweep("specimen", [s for s in SPECIMENS if type(s.spec.position).__name__ == "Learned"])
@torch.no_grad()
def test_more_tokens_than_the_learned_table_holds(specimen: Specimen) -> None:
    read = built(specimen.spec)
    length = specimen.spec.length
    read(read.input(length))
    with refused(f"{length + 1} tokens", f"length={length}", "position=sinusoidal"):
        read(read.input(length + 1))
    if specimen.spec.is_causal:
        state = read(read.input(length)).state
        with refused(f"{length + 1} tokens", f"length={length}"):
            read(read.input(1), state=state)


@PAIRS
def test_a_source_that_is_none(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x, vocab = read.input(4), specimen.spec.encoder.vocab or specimen.spec.vocab
    with refused("neither a source"):
        read.model(None, x)
    with refused("source has 2 rows", "target 3"):
        read.model(read.source[:2], x)
    with refused("torch.float32"):
        read.model(read.source.float(), x)
    with refused(f"id {vocab}", f"vocab={vocab}"):
        read.model(torch.full_like(read.source, vocab), x)
    with refused("no tokens"):
        read.model(read.source[:, :0], x)
    with refused("mask is", "(3, 5)"):
        read.model(read.source, x, source_mask=torch.ones(3, 4, dtype=torch.bool))
