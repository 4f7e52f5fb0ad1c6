"""Members trained by a loop that is not ours: every number equals that of a model rebuilt from the same weights.

Whatever a user does to weights (fused optimisers, moving averages written through `.data`, other parameters), a model may keep nothing
that was computed from older ones. The reference keeps nothing at all: it is built anew from the state dict for every comparison, and
runs dense attention.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

import formers
from contracts.specimens import SPECIMENS, Specimen, Subject, subject
from formers import Output, State
from formers.attention.attend import only
from formers.memory import NoMemory
from formers.score import NoScore
from helpers import EXACT, close, sweep

LENGTH = 6
BATCH = 2
STEPS = 3
HALF = 0.05
"""How far bfloat16 may be from bfloat16 by another executor: some of its last bits, 2^-8 each, of numbers of about 1."""


def swept() -> list[Specimen]:
    """The first specimen of every member, and all that have a score, of whose weights tables are kept."""
    first = {specimen.member: specimen for specimen in reversed(SPECIMENS)}
    return [s for s in SPECIMENS if first[s.member] is s or not isinstance(s.spec.score, NoScore)]


SWEPT = sweep("specimen", swept())


def call(read: Subject, x: Tensor, state: State | None = None, targets: Tensor | None = None) -> Output:
    """A forward pass; some members draw from torch's generator in training, so that both sides begin with the same numbers."""
    torch.manual_seed(11)
    return read(x, state=state, targets=targets)


def rebuilt(read: Subject, model: nn.Module | None = None) -> Subject:
    """The same weights in a new model, which has seen nothing."""
    model = read.model if model is None else model
    fresh = formers.build(read.model.spec).to(next(model.parameters()).dtype)
    fresh.load_state_dict({name: weight.clone() for name, weight in model.state_dict().items()})
    return replace(read, model=fresh.train(model.training))


@torch.no_grad()
def check_evaluation(read: Subject, x: Tensor, tolerance: float = EXACT) -> None:
    """Fails unless the model evaluates x as a rebuilt one does; modes stay as they are."""
    found = call(read, x).hidden
    with only("dense"):
        close(found, call(rebuilt(read), x).hidden, tolerance)


def check_gradients(read: Subject, fresh: Subject, tolerance: float = EXACT) -> None:
    """Fails unless both models have the same gradients."""
    wanted = dict(fresh.model.named_parameters())
    for name, parameter in read.model.named_parameters():
        other = wanted[name].grad
        assert (parameter.grad is None) == (other is None), name
        if other is not None:
            close(parameter.grad, other, tolerance)


@SWEPT
def test_a_plain_loop(specimen: Specimen) -> None:
    """Accumulated gradients, an evaluation between backward and step, with and without eval(), and a moving average of the weights.

    Steps are taken by AdamW, fused and not, in turn.
    """
    read = subject(specimen.spec, batch=BATCH)
    model = read.model.train()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused) for fused in (True, False)]
    average = replace(read, model=copy.deepcopy(model))
    carries = not isinstance(specimen.spec.memory, NoMemory)
    state = model.initial_state(BATCH) if carries else None
    held = read.input(LENGTH)
    for step in range(STEPS):
        model.zero_grad()
        fresh = rebuilt(read)
        for _ in range(2):
            x, y = read.input(LENGTH), read.targets(LENGTH)
            out = call(read, x, state, y)
            out.loss.backward()
            with only("dense"):
                wanted = call(fresh, x, state, y)
                wanted.loss.backward()
            close(out.loss.detach(), wanted.loss.detach())
            state = out.state if carries else None
        model.train(step > 0)
        check_evaluation(read, held)
        model.train()
        check_gradients(read, fresh)
        optimizers[step % 2].step()
        check_evaluation(read, held)
        torch._foreach_lerp_([p.data for p in average.model.parameters()], [p.data for p in model.parameters()], 0.3)
        check_evaluation(average, held)


@SWEPT
def test_autocast(specimen: Specimen) -> None:
    """bfloat16, evaluated between backward and step, against the same by dense attention."""
    read = subject(specimen.spec, batch=BATCH, dtype=torch.float32)
    model = read.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        x, y, fresh = read.input(LENGTH), read.targets(LENGTH), rebuilt(read)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(read, x, None, y).loss
            with only("dense"):
                wanted = call(fresh, x, None, y).loss
            with torch.no_grad():
                call(read, x)
        loss.backward()
        wanted.backward()
        close(loss.detach(), wanted.detach(), HALF)
        slopes = [torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]) for m in (model, fresh.model)]
        assert torch.cosine_similarity(*slopes, dim=0) > 0.99
        optimizer.step()
        check_evaluation(read, x, 1e-4)


@SWEPT
@torch.no_grad()
def test_weights_that_are_changed_between_two_evaluations(specimen: Specimen) -> None:
    """Through `.data`, by load_state_dict, by functional_call and by new parameters: no evaluation ever uses old ones."""
    read = subject(specimen.spec, batch=BATCH)
    model, x = read.model, read.input(LENGTH)
    call(read, x)
    for parameter in model.parameters():
        parameter.data.mul_(0.9)
    check_evaluation(read, x)

    other = {name: weight * 1.1 for name, weight in model.state_dict().items()}
    model.load_state_dict(other)
    check_evaluation(read, x)
    model.load_state_dict({name: weight * 0.9 for name, weight in other.items()}, assign=True)
    check_evaluation(read, x)

    inputs = (x,) if read.source is None else (read.source, x)
    for factor in (1.0, 1.3):
        given = {name: weight * factor for name, weight in other.items()}
        for _ in range(2):
            found = torch.func.functional_call(model, given, inputs).hidden
            loaded = rebuilt(read)
            loaded.model.load_state_dict(given)
            with only("dense"):
                close(found, call(loaded, x).hidden)
            for weight in given.values():
                weight.data.mul_(0.95)
    check_evaluation(read, x)

    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter * 1.05))
    check_evaluation(read, x)
