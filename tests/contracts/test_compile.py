"""torch.compile sees the whole step of every member: one graph, the same loss and the same gradients.

What a member can break is the graph and its derivative, which the backend "aot_eager" makes in a second; the C++ that inductor
then writes takes a minute on a cold cache, so that it is asked for: FORMERS_COMPILE=inductor pytest tests/contracts/test_compile.py
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from contracts.specimens import FIRST, Specimen, subject
from helpers import close

BACKEND = os.environ.get("FORMERS_COMPILE", "aot_eager")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("specimen", [pytest.param(s, id=str(s), marks=[] if s.member == "decoder" else pytest.mark.slow) for s in FIRST])
def test_every_step_is_one_graph(specimen: Specimen) -> None:
    """Training on padded rows, evaluation, and one more token from the state that evaluation left."""
    small = specimen.spec.model_copy(update={"depth": type(specimen.spec.depth)(1)})
    read = subject(small, batch=2, dtype=torch.float32)
    x, targets, mask = read.input(6), read.targets(6), torch.tensor([[True] * 6, [False] + [True] * 3 + [False] * 2])
    if read.source is not None:
        read = replace(read, source_mask=torch.tensor([[True] * 5, [True] * 2 + [False] * 3]))
    compiled = replace(read, model=torch.compile(read.model, fullgraph=True, backend=BACKEND))
    found = []
    for run in (read, compiled):
        read.model.train().zero_grad()
        torch.manual_seed(0)  # some draw anew in each step
        loss = run(x, targets=targets, mask=mask).loss
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in read.model.parameters()]))
    close(found[1][0], found[0][0], 1e-4)
    for slope, wanted in zip(found[1][1], found[0][1], strict=True):
        close(slope, wanted, 1e-4)

    read.model.eval()
    with torch.no_grad():
        once, wanted = compiled(x, targets=targets), read(x, targets=targets)
        close(once.loss, wanted.loss, 1e-4)
        if small.is_causal:
            close(compiled(x[:, :1], state=once.state).logits, read(x[:, :1], state=wanted.state).logits, 1e-4)
