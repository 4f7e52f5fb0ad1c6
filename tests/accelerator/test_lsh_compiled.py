"""LSH attention of accelerators under torch.compile: torch's own FlexAttention takes its masks, and few graphs serve all lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from accelerator.flex_equation import equation
from formers.attention import LSH
from formers.attention.executors.flex_kernel import ScoreMod, use_kernel
from formers.attention.lsh import batched
from formers.attention.lsh.hashing import hashes, in_order, rotations
from formers.attention.lsh.reference import Rules
from formers.core import Context, Range, Sizes
from formers.core.compiler import compiler
from formers.core.devices import Capabilities, assume_capabilities
from formers.patterns import Causal
from helpers import close, sweep


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="torch needs a C++ compiler for its CPU kernel")
@torch.no_grad()
def test_torchs_own_kernel_computes_the_equation() -> None:
    """On a CPU torch's kernel has neither gradients nor log-sums, and one kernel per length: the log-sums are those of the equation."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def kernel(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None) -> tuple[Tensor, Tensor]:
        return compiled(q, k, v, block_mask=block_mask, scale=scale), equation(q, k, v, block_mask, scale, score_mod)[1]

    q, v = torch.randn(2, 2, 500, 16), torch.randn(2, 2, 500, 16)
    hashed = in_order(hashes(q, rotations(2, 16, 2, 4, 0, 0), (8,)))
    for rules in (Rules(True, 64), Rules(False, 64, "chunk"), Rules(True, 64, "chunk", across_buckets=True)):
        for dropout in (0.0, 0.2):
            both = []
            for each in (kernel, equation):
                torch.manual_seed(1)
                with use_kernel("cpu", each):
                    both.append(batched.attend(q, v, hashed, rules, 1.0, None, dropout))
            close(*both, 1e-5)


@pytest.mark.slow
@sweep("flex", [True, False])
@sweep("part", [LSH(reach="chunk"), LSH(reach="chunk", across_buckets=True), LSH()])
def test_two_graphs_serve_all_lengths(flex: bool, part: LSH) -> None:
    """The first is for the sizes of the first batch, the second for all others, also where lengths are whole blocks."""
    graphs = []

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward  # type: ignore[no-any-return]

    sizes = Sizes(dim=32, heads=2, head_dim=16, value_dim=16, length=512, depth_steps=1, dropout=0.0, attention_dropout=0.0)
    layer = part.build(sizes, Causal()).eval()

    def run(x: Tensor) -> Tensor:
        y: Tensor = layer(x, Context(Range(0, x.shape[1])), None, 0)[0]
        return y

    torch._dynamo.reset()
    with assume_capabilities("cpu", Capabilities(flex=flex)), use_kernel("cpu", equation):
        compiled = torch.compile(run, fullgraph=True, backend=backend)
        for batch, n in ((2, 500), (3, 612), (4, 640), (2, 512), (5, 513)):
            x = torch.randn(batch, n, 32)
            close(compiled(x), run(x), 1e-5)
    torch._dynamo.reset()
    assert len(graphs) == 2
