"""Running a specimen on the test device: a subject there, one training step, one row token by token."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from accelerator.device import NAME, Counts
from contracts.specimens import Specimen, Subject, lengthened, subject
from formers import State

PADDED = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0], [1, 0, 0, 1, 1, 1, 0, 1, 1]], dtype=torch.bool)
"""Rows with padding on the left, on the right and in the middle."""
ROWS, LENGTH = PADDED.shape


def made(specimen: Specimen, dtype: torch.dtype = torch.float64, batch: int = ROWS, length: int = LENGTH, padded: bool = False) -> Subject:
    """A specimen for rows of a length, on the CPU, in evaluation mode; with `padded`, its source has padding."""
    spec = specimen.spec if length <= LENGTH else lengthened(specimen.spec, length)
    read = subject(spec, batch, dtype, source_length=LENGTH)
    return replace(read, source_mask=PADDED.flip(0)[:batch]) if padded and read.source is not None else read


def moved(read: Subject, device: str = NAME) -> Subject:
    """A copy of a subject on a device."""

    def there(given: Tensor | None) -> Tensor | None:
        return None if given is None else given.to(device)

    model = copy.deepcopy(read.model).to(device)
    model.zero_grad()
    return replace(read, model=model, source=there(read.source), source_mask=there(read.source_mask), label=there(read.label))


@dataclass(frozen=True)
class Step:
    """A training step: the loss, and the gradients by name, on the CPU; and what the device counted, by source line."""

    loss: Tensor
    gradients: dict[str, Tensor]
    waited: dict[str, int]


def train_step(read: Subject, x: Tensor, targets: Tensor, mask: Tensor | None = None, counts: Counts | None = None) -> Step:
    """The forward and the backward pass in training mode, from the same random numbers every time."""
    read.model.train()
    torch.manual_seed(5)  # some draw in training
    if counts is not None:
        counts.reset()
    loss = read(x, mask=mask, targets=targets).loss
    loss.backward()
    waited = {} if counts is None else dict(counts.waited)
    slopes = {name: p.grad.cpu() for name, p in read.model.named_parameters() if p.grad is not None}
    return Step(loss.detach().cpu(), slopes, waited)


@torch.no_grad()
def by_token(read: Subject, x: Tensor, state: State | None = None, counts: Counts | None = None) -> tuple[Tensor, State]:
    """The logits of x, read token by token, and the state at the end; raises if a token but the first makes the host wait."""
    state, logits = read.model.initial_state(read.batch) if state is None else state, []
    for t in range(x.shape[1]):
        if counts is not None:
            counts.reset()
        out = read(x[:, t : t + 1], state=state)
        state = out.state
        logits.append(out.logits)
        if counts is not None and t:
            assert not counts.waited, f"token {t} waits: {counts}"
    return torch.cat(logits, dim=1), state
