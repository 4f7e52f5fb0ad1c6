"""Every member on the test device: it trains, evaluates, decodes, saves and loads there as on the CPU, and never makes the host wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import formers
from accelerator.device import NAME, use_test_device
from accelerator.specimen_runs import LENGTH, PADDED, ROWS, Step, by_token, made, moved, train_step
from contracts.specimens import CAUSAL, FIRST, SPECIMENS, Specimen
from formers.core.serialise import pack, unpack
from helpers import close, sweep

LONG = 520
"""Rows so long that the executors for long rows are chosen."""
OTHERS = [s for s in SPECIMENS if s not in FIRST]
QUICK = [s for s in CAUSAL if s in FIRST]


def same_step(found: Step, wanted: Step, tolerance: float = 1e-10) -> None:
    """Fails unless losses and gradients agree."""
    close(found.loss, wanted.loss, tolerance)
    assert found.gradients.keys() == wanted.gradients.keys()
    for name, slope in wanted.gradients.items():
        close(found.gradients[name], slope, tolerance)


def train_there(specimen: Specimen, padded: bool, length: int = LENGTH) -> None:
    """Fails unless a training step there equals that of the CPU, without a wait."""
    rows = ROWS if length == LENGTH else 2
    read = made(specimen, batch=rows, length=length, padded=padded)
    x, targets = read.input(length), read.targets(length)
    mask = None
    if padded:
        mask = torch.ones(rows, length, dtype=torch.bool)
        mask[:, -LENGTH:] = PADDED[:rows]
    with use_test_device() as counts:
        there = moved(read)
        own = None if mask is None else mask.to(NAME)
        found = train_step(there, x.to(NAME), targets.to(NAME), own, counts)
    same_step(found, train_step(read, x, targets, mask))
    assert not found.waited, f"the host waits: {found.waited}"


@sweep("specimen", FIRST)
def test_a_step_of_training_equals_that_of_the_cpu_and_never_waits(specimen: Specimen) -> None:
    train_there(specimen, padded=False)
    train_there(specimen, padded=True)


@pytest.mark.slow
@sweep("specimen", OTHERS)
def test_a_step_of_training_of_all_others(specimen: Specimen) -> None:
    train_there(specimen, padded=False)
    train_there(specimen, padded=True)


@pytest.mark.slow
@sweep("specimen", SPECIMENS)
def test_a_step_of_training_on_long_rows(specimen: Specimen) -> None:
    train_there(specimen, padded=True, length=LONG)


def train_in(specimen: Specimen, precision: torch.dtype, tolerance: float) -> None:
    """Fails unless the loss under autocast is near that in float32, and all gradients are finite."""
    if specimen.member == "reformer":
        tolerance = max(tolerance, 0.02)  # a rounded vector may fall into another bucket
    read = made(specimen, torch.float32, padded=True)
    x, targets = read.input(LENGTH), read.targets(LENGTH)
    wanted = train_step(read, x, targets, PADDED)
    with use_test_device() as counts, torch.autocast(NAME, dtype=precision):
        found = train_step(moved(read), x.to(NAME), targets.to(NAME), PADDED.to(NAME), counts)
    assert found.loss.dtype == torch.float32
    close(found.loss, wanted.loss, tolerance * max(1.0, wanted.loss.abs().item()))
    for name, slope in found.gradients.items():
        assert slope.isfinite().all(), name
        assert slope.dtype == torch.float32, name
    assert not found.waited, f"the host waits: {found.waited}"


@sweep(("precision", "tolerance"), [(torch.bfloat16, 0.005), (torch.float16, 0.001)])
@sweep("specimen", [s for s in FIRST if s.member in ("decoder", "transformer-xl", "universal-transformer", "rnn")])
def test_it_trains_in_half_precision(specimen: Specimen, precision: torch.dtype, tolerance: float) -> None:
    train_in(specimen, precision, tolerance)


@pytest.mark.slow
@sweep(("precision", "tolerance"), [(torch.bfloat16, 0.005), (torch.float16, 0.001)])
@sweep("specimen", SPECIMENS)
def test_every_member_trains_in_half_precision(specimen: Specimen, precision: torch.dtype, tolerance: float) -> None:
    train_in(specimen, precision, tolerance)


@torch.no_grad()
def evaluate_there(specimen: Specimen) -> None:
    """Fails unless logits there equal those of the CPU, with and without padding, without a wait."""
    for mask in (None, PADDED):
        read = made(specimen, padded=mask is not None)
        x = read.input(LENGTH)
        wanted = read(x, mask=mask).logits
        with use_test_device() as counts:
            there, x, own = moved(read), x.to(NAME), None if mask is None else mask.to(NAME)
            counts.reset()
            found = there(x, mask=own).logits
            assert not counts.waited, str(counts)
            found = found.cpu()
        if mask is not None and wanted.dim() > 2:
            found, wanted = found[mask], wanted[mask]
        close(found, wanted)


@sweep("specimen", FIRST)
def test_evaluation_equals_that_of_the_cpu_and_never_waits(specimen: Specimen) -> None:
    evaluate_there(specimen)


@pytest.mark.slow
@sweep("specimen", OTHERS)
def test_evaluation_of_all_others(specimen: Specimen) -> None:
    evaluate_there(specimen)


@torch.no_grad()
def decode_there(specimen: Specimen, length: int = LENGTH) -> None:
    """Fails unless tokens one by one equal the whole row, also after a padded prompt, and no token waits."""
    read = made(specimen, length=3 * length)
    prompt, x = read.input(LENGTH), read.input(length)
    wanted = read(x).logits
    after = by_token(read, x, read(prompt, mask=PADDED).state)[0]
    with use_test_device() as counts:
        there = moved(read)
        close(by_token(there, x.to(NAME), counts=counts)[0].cpu(), wanted)
        state = there(prompt.to(NAME), mask=PADDED.to(NAME)).state
        close(by_token(there, x.to(NAME), state, counts)[0].cpu(), after)


@sweep("specimen", QUICK)
def test_token_by_token_equals_the_whole_row_and_never_waits(specimen: Specimen) -> None:
    decode_there(specimen)


@pytest.mark.slow
@sweep("specimen", [s for s in CAUSAL if s not in QUICK])
def test_token_by_token_of_all_others(specimen: Specimen) -> None:
    decode_there(specimen)


@torch.no_grad()
def save_there(specimen: Specimen, folder: Path) -> None:
    """Fails unless a model that is saved there and loaded on either device computes the same, and a state continues on either."""
    read = made(specimen, torch.float32)
    x = read.input(LENGTH)
    wanted = read(x).logits
    path = folder / specimen.member / str(SPECIMENS.index(specimen))
    with use_test_device():
        there = moved(read)
        there.model.save_pretrained(path)
        here = replace(read, model=formers.load(path))
        assert torch.equal(here(x).logits, wanted)
        again = replace(there, model=formers.load(path, NAME))
        close(again(x.to(NAME)).logits.cpu(), wanted, 1e-4)
        close(moved(moved(read), "cpu")(x).logits, wanted, 1e-6)
        if not specimen.spec.is_causal:
            return
        state, more = there(x.to(NAME)).state, read.input(3)
        wanted = read(more, state=read(x).state).logits
        tensors: dict[str, torch.Tensor] = {}
        packed = pack(state, tensors)
        saved = {name: value.cpu().clone() for name, value in tensors.items()}
        for one, device, begun in (
            (there, NAME, unpack(packed, saved, NAME)),
            (read, "cpu", unpack(packed, saved)),
            (read, "cpu", state.to("cpu")),
            (there, NAME, state.to("cpu").to(NAME)),
        ):
            close(one(more.to(device), state=begun).logits.cpu(), wanted, 1e-4)


@sweep("specimen", [s for s in FIRST if s.member in ("decoder", "transformer-xl", "gtrxl", "seq2seq", "act-rnn", "linformer")])
def test_it_saves_loads_and_moves(specimen: Specimen, tmp_path: Path) -> None:
    save_there(specimen, tmp_path)


@pytest.mark.slow
@sweep("specimen", SPECIMENS)
def test_every_member_saves_loads_and_moves(specimen: Specimen, tmp_path: Path) -> None:
    save_there(specimen, tmp_path)


def run_without_float64(specimen: Specimen, length: int = LENGTH) -> None:
    """Fails unless a device without float64 and FlexAttention trains and decodes in float32 as the CPU does."""
    rows = ROWS if length == LENGTH else 2
    read = made(specimen, torch.float32, rows, length, padded=True)
    x, targets, mask = read.input(length), read.targets(length), torch.ones(rows, length, dtype=torch.bool)
    mask[:, -LENGTH:] = PADDED[:rows]
    wanted = train_step(read, x, targets, mask)
    read.model.eval()
    with use_test_device(float64=False, flex=False) as counts:
        there = moved(read)
        found = train_step(there, x.to(NAME), targets.to(NAME), mask.to(NAME), counts)
        assert not found.waited, f"the host waits: {found.waited}"
        close(found.loss, wanted.loss, 1e-4)
        for name, slope in wanted.gradients.items():
            close(found.gradients[name], slope, 1e-3 * max(1.0, slope.abs().max().item()))
        if specimen.spec.is_causal and length == LENGTH:
            there.model.eval()
            with torch.no_grad():
                whole = read(x).logits
            close(by_token(there, x.to(NAME), counts=counts)[0].cpu(), whole, 1e-3)


@sweep("specimen", [s for s in FIRST if s.member in ("decoder", "transformer-xl", "image-transformer", "seq2seq")])
def test_without_float64_it_trains_and_decodes(specimen: Specimen) -> None:
    run_without_float64(specimen)


@pytest.mark.slow
@sweep("specimen", SPECIMENS)
def test_without_float64_every_member_trains_and_decodes(specimen: Specimen) -> None:
    run_without_float64(specimen)


@pytest.mark.slow
@sweep("specimen", [s for s in SPECIMENS if s.member in ("transformer-xl", "adaptive-span", "sparse-transformer", "bigbird", "reformer")])
def test_without_float64_long_rows_train(specimen: Specimen) -> None:
    run_without_float64(specimen, LONG)
