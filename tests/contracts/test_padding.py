"""A padded row equals the row alone, wherever its padding is; rows of only padding stay finite and do not affect others."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from contracts.specimens import SPECIMENS, Specimen, Subject, subject
from formers.heads import Classify
from helpers import close, sweep

LENGTH = 7
SWEPT = sweep("specimen", SPECIMENS)
# Left, right, in the middle, none, one token only.
MASK = torch.tensor(
    [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0]], dtype=torch.bool
)
ROWS = len(MASK)


def padded(specimen: Specimen, **kind: torch.dtype) -> Subject:
    """A subject of five rows; a source is padded in other places than the target."""
    read = subject(specimen.spec, batch=ROWS, source_length=LENGTH, **kind)
    return read if read.source is None else replace(read, source_mask=MASK.flip(0, 1))


def real(read: Subject, logits: Tensor, mask: Tensor) -> Tensor:
    """The logits that stand for real tokens: all of a classifier's."""
    return logits if isinstance(read.model.spec.head, Classify) else logits[mask]


@SWEPT
@torch.no_grad()
def test_logits_of_a_padded_row_equal_the_row_alone(specimen: Specimen) -> None:
    read = padded(specimen)
    x = read.input(LENGTH)
    out = read(x, mask=MASK)
    for row in range(ROWS):
        alone = read.alone(row)(x[row : row + 1, MASK[row]])
        close(real(read, out.logits[row], MASK[row]), real(read, alone.logits[0], MASK[row][MASK[row]]))
        close(out.hidden[row, MASK[row]], alone.hidden[0])


@SWEPT
def test_loss_and_gradients_of_a_padded_row_equal_the_row_alone(specimen: Specimen) -> None:
    read = padded(specimen)
    x, targets = read.input(LENGTH), read.targets(LENGTH)
    for row in range(ROWS):
        here = [row]
        goal = targets[here] if targets.dim() == 1 else targets[here][:, MASK[row]]
        both = []
        for one, tokens, mask, wanted in (
            (read.rows(here), x[here], MASK[here], targets[here]),
            (read.alone(row), x[here][:, MASK[row]], None, goal),
        ):
            torch.manual_seed(5)  # some draw in training
            read.model.train().zero_grad()  # some losses are of training alone
            loss = one(tokens, mask=mask, targets=wanted).loss
            loss.backward()
            both.append((loss.detach(), {name: p.grad.clone() for name, p in read.model.named_parameters()}))
        close(both[0][0], both[1][0])
        for name, slope in both[0][1].items():
            close(slope, both[1][1][name])


@SWEPT
@torch.no_grad()
def test_what_stands_under_the_padding_does_not_matter(specimen: Specimen) -> None:
    read = padded(specimen, dtype=torch.float32)
    x, y = read.input(LENGTH), read.input(LENGTH)
    y = torch.where(MASK if x.dim() == 2 else MASK[..., None], x, y)
    other = read
    if read.source is not None:
        kept = read.source_mask if read.source.dim() == 2 else read.source_mask[..., None]
        other = replace(read, source=torch.where(kept, read.source, (read.source + 1) % 7))
    assert not torch.equal(x, y)
    assert torch.equal(real(read, read(x, mask=MASK).logits, MASK), real(read, other(y, mask=MASK).logits, MASK))


@SWEPT
@sweep("dtype", [torch.float64, torch.float32])
@sweep("nobody", [False, True])
def test_rows_of_padding_alone_stay_finite(specimen: Specimen, dtype: torch.dtype, nobody: bool) -> None:
    read = padded(specimen, dtype=dtype)
    mask = MASK.clone()
    mask[slice(None) if nobody else 1] = False
    if read.source is not None:
        read = replace(read, source_mask=mask.flip(1))
    x, targets = read.input(LENGTH), read.targets(LENGTH)
    out = read(x, mask=mask, targets=targets)
    out.loss.backward()
    logits = read(x, mask=mask).logits if out.logits is None else out.logits
    assert logits.isfinite().all()
    assert out.loss.isfinite()
    for name, p in read.model.named_parameters():
        assert p.grad is None or p.grad.isfinite().all(), name
    if nobody and targets.dim() == 2:
        assert out.losses["cross_entropy"] == 0, "what weights cost by themselves may remain"
    if not nobody:
        others = [0, 2, 3, 4]
        same = read.rows(others)(x[others], mask=mask[others])
        tolerance = 1e-10 if dtype == torch.float64 else 1e-4
        close(real(read, logits[others], mask[others]).detach(), real(read, same.logits, mask[others]).detach(), tolerance)


@sweep("specimen", [s for s in SPECIMENS if s.spec.encoder is not None])
@torch.no_grad()
def test_a_padded_source_is_padding_after_the_first_step_too(specimen: Specimen) -> None:
    read = padded(specimen)
    x = read.input(LENGTH)
    whole, first = read(x).logits, read(x[:, :1])
    state, logits = first.state, [first.logits]
    for t in range(1, LENGTH):
        out = read(x[:, t : t + 1], state=state)
        state = out.state
        logits.append(out.logits)
    close(torch.cat(logits, dim=1), whole)


@sweep("specimen", [each for each in SPECIMENS if each.spec.features is not None])
def test_features_of_padding_may_be_no_numbers(specimen: Specimen) -> None:
    read = padded(specimen)
    x = read.input(LENGTH)
    found = []
    for fill in (0.0, torch.nan):
        read.model.zero_grad()
        out = read(x.masked_fill(~MASK[:, :, None], fill), mask=MASK)
        (real(read, out.logits, MASK) ** 2).sum().backward()
        found.append((out.logits, {name: p.grad for name, p in read.model.named_parameters() if p.grad is not None}))
    (logits, slopes), (others, again) = found
    close(real(read, others, MASK), real(read, logits, MASK))
    for name, slope in slopes.items():
        close(again[name], slope)
