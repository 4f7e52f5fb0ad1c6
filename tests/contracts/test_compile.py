"""torch.compile sees the whole step of every member: one graph, the same loss and the same gradients.

What a member can break is the graph and its derivative, which the backend "aot_eager" makes in a second; the C++ that inductor
then writes takes a minute on a cold cache, so that it is asked for: FORMERS_COMPILE=inductor pytest tests/contracts/test_compile.py
"""

from __future__ import annotations

import os

import pytest
import torch

from contracts.specimens import FIRST, Specimen, subject
from helpers import close

BACKEND = os.environ.get("FORMERS_COMPILE", "aot_eager")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("specimen", FIRST, ids=str)
def test_training_and_evaluation_in_one_graph(specimen: Specimen) -> None:
    small = specimen.spec.model_copy(update={"depth": type(specimen.spec.depth)(1)})
    read = subject(small, batch=2, dtype=torch.float32)
    x, targets = read.input(6), read.targets(6)
    tokens = (x,) if read.source is None else (read.source, x)
    found, compiled = {}, torch.compile(read.model, fullgraph=True, backend=BACKEND)
    for name, run in (("eager", read.model), ("compiled", compiled)):
        read.model.train().zero_grad()
        loss = run(*tokens, targets=targets).loss
        loss.backward()
        found[name] = (loss.detach(), {n: p.grad.clone() for n, p in read.model.named_parameters()})
    close(found["compiled"][0], found["eager"][0], 1e-4)
    for name, slope in found["compiled"][1].items():
        close(slope, found["eager"][1][name], 1e-4)

    read.model.eval()
    with torch.no_grad():
        close(compiled(*tokens, targets=targets).loss, read.model(*tokens, targets=targets).loss, 1e-4)
