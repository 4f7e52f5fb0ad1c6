"""Models under torch.compile use FlexAttention off the CPU with ready lists of blocks, and two graphs at most for any length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from accelerator.flex_equation import equation
from accelerator.forced import BLOCK, Counting, cpu_gradients, forced
from formers.attention import EXECUTORS
from formers.attention.executors import flex_lists
from formers.attention.executors.flex_kernel import CompiledKernel, Kernel
from formers.patterns import BigBird, Column, Fixed, Globals, Local, Pattern, PerHead, Strided
from helpers import close, sweep

LENGTHS = (60, 64, 90, 100, 128)
TORCH = CompiledKernel("eager")


def sparse(pattern: Pattern, member: str = "decoder", **options: Any) -> torch.nn.Module:
    given = {"vocab": 11, "dim": 32, "heads": 2, "layers": 2, "length": 200, "dropout": 0.0} | options
    return formers.build(formers.spec(member, **given).replace(pattern=pattern)).double()


def compared(model: torch.nn.Module, kernel: Kernel, padded: bool = False, backend: Any = None) -> int:
    """The number of graphs over some lengths; fails where the compiled model differs from the plain one, or does not use `flex`."""
    counting = Counting() if backend is None else backend
    with forced(kernel), cpu_gradients():
        torch._dynamo.reset()
        fast = torch.compile(model, backend=counting, fullgraph=True)
        for n in LENGTHS:
            tokens, mask = torch.randint(11, (2, n)), torch.arange(n) < torch.tensor([[n], [n - 9]])
            options = {"mask": mask} if padded else {}
            found, wanted = fast(tokens, **options).hidden, model(tokens, **options).hidden
            close(found, wanted)
            for one, other in zip(slopes(found, model), slopes(wanted, model), strict=True):
                close(one, other, 1e-9)
    return 0 if backend is not None else len(counting.graphs)


def slopes(y: Tensor, model: torch.nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(y.square().sum(), list(model.parameters()), allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("kernel", [equation, TORCH], ids=["equation", "torch"])
def test_a_compiled_model_has_two_graphs(kernel: Kernel) -> None:
    assert compared(sparse(Local(window=9)), kernel) <= 2


OTHERS: list[tuple[Pattern, str, bool]] = [
    (Strided(stride=8), "decoder", False),
    (Fixed(stride=8, summary=2), "decoder", False),
    (PerHead(Local(window=5), Column(stride=4)), "decoder", False),
    (BigBird(block=8, window=1), "encoder", False),
    (BigBird(block=8, window=1), "encoder", True),
    (Globals(tokens=2) | BigBird(block=8, window=1), "encoder", False),
    (Local(window=9, causal=False), "encoder", True),
]


@pytest.mark.slow
@sweep(("pattern", "member", "padded"), OTHERS)
def test_other_patterns_have_two_graphs(pattern: Pattern, member: str, padded: bool) -> None:
    assert compared(sparse(pattern, member), TORCH, padded) <= 2


@pytest.mark.slow
@sweep("pattern", [Local(window=9), PerHead(Local(window=5), Column(stride=4))])
def test_graphs_of_both_passes(pattern: Pattern) -> None:
    """Forward and backward graphs, as a compiler for GPUs gets them."""
    compared(sparse(pattern), TORCH, backend="aot_eager")


@pytest.mark.slow
def test_relative_scores_have_two_graphs() -> None:
    model = formers.create("transformer-xl", vocab=11, dim=32, heads=2, layers=2, length=200, memory=0, dropout=0.0).double()
    assert compared(model, TORCH) <= 2


def test_a_compiled_model_runs_flex_and_evaluates_its_pattern_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One length is scanned once, whatever number of passes follows; no graph contains the evaluation of all pairs."""
    scanned: list[int] = []

    def scan(pattern: Pattern, queries: Any, *rest: Any) -> Any:
        scanned.append(queries.length)
        return original(pattern, queries, *rest)

    original = flex_lists._scan
    monkeypatch.setattr(flex_lists, "_scan", scan)
    monkeypatch.setitem(EXECUTORS, "dense", EXECUTORS["dense"]._replace(run=fails))
    monkeypatch.setitem(EXECUTORS, "sdpa", EXECUTORS["sdpa"]._replace(run=fails))
    model, backend = sparse(Local(window=11)), Counting()
    with forced(), torch.no_grad():
        torch._dynamo.reset()
        fast = torch.compile(model, backend=backend, fullgraph=True)
        for n in (60, 64, 60, 90, 57, 60, 64):
            fast(torch.randint(11, (2, n)))
    assert sorted(scanned) == [64, 96]
    assert 96 % BLOCK == 0
    names = [str(node.target) for graph in backend.graphs for node in graph.graph.nodes]
    assert any("flex_marks" in name for name in names)


def fails(*_: Any) -> Tensor:
    raise AssertionError("all pairs are computed")
