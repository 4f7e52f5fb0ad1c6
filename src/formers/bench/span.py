"""Short spans beside spans at their maximum: the attention sublayers alone, and a whole training step, alternating in one process.

Both sides are the same model with the same memory of S tokens, which is full. Only the spans differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from formers.bench.timing import alternate, both_ways, ratio
from formers.core import Context, HiddenMemory, Range, State
from formers.family import create
from formers.model import Model
from formers.score.span import SpanScore

SEGMENT, MOST, SHORT, BATCH = 512, 2048, 64, 2
SIZES: dict[str, Any] = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024, length=SEGMENT, span=MOST, ramp=32)
LIMITS = {"attention_speedup": (6.0, float("inf")), "step_speedup": (2.5, float("inf"))}
"""With spans near 64 of at most 2,048."""


def bench_span(rounds: int) -> dict[str, float]:
    """Seconds of the four attention sublayers, forward and backward, and of a training step, with short and long spans."""
    torch.manual_seed(0)
    models = {"short": _model(SHORT / MOST), "long": _model(1.0)}
    x, memory = torch.randn(BATCH, SEGMENT, SIZES["dim"]), torch.randn(BATCH, MOST, SIZES["dim"])
    things: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        things[f"{name}_attention"] = _attention(model, x, memory)
        things[f"{name}_step"] = _step(model)
    times = alternate(things, rounds, warmup=1)
    return {
        "span": SHORT,
        "maximum": MOST,
        **{f"{name}_seconds": statistics.median(t) for name, t in times.items()},
        "attention_speedup": ratio(times, "long_attention", "short_attention"),
        "step_speedup": ratio(times, "long_step", "short_step"),
    }


def _model(share: float) -> Model:
    """A model whose heads all look back a share of the maximum."""
    return create("adaptive-span", init=share, **SIZES).train()


def _attention(model: Model, x: Tensor, memory: Tensor) -> Callable[[], object]:
    """A forward and a backward pass of each attention sublayer over a segment and a full memory."""
    layers = [block.get_submodule("attention") for block in model.get_submodule("stack.depth.blocks").children()]
    assert all(isinstance(layer.score, SpanScore) for layer in layers)
    x = x.clone().requires_grad_()
    weight = torch.randn_like(x)
    context, past = Context(Range(MOST, SEGMENT)), HiddenMemory(memory, Range(0, MOST))

    def passes() -> None:
        for layer in layers:
            both_ways(partial(_first, layer, x, context, past), (x, *layer.parameters()), weight)

    return passes


def _first(layer: Any, x: Tensor, context: Context, past: HiddenMemory) -> Tensor:
    y: Tensor = layer(x, context, past, 0)[0]
    return y


def _step(model: Model) -> Callable[[], object]:
    """A training step on a segment, with the memory that the segments before it filled."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)  # the spans stay
    state: State = model.initial_state(BATCH)
    for _ in range(MOST // SEGMENT):
        state = model(torch.randint(SIZES["vocab"], (BATCH, SEGMENT)), state=state).state
    tokens = torch.randint(SIZES["vocab"], (BATCH, SEGMENT + 1))

    def step() -> None:
        optimizer.zero_grad()
        model(tokens[:, :-1], targets=tokens[:, 1:], state=state).loss.backward()
        optimizer.step()

    return step
