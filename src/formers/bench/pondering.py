"""What halting saves, and what one block in depth costs.

- a pass of `universal-transformer` in evaluation, as an encoder and as a decoder, with tokens that halt at different steps, half of the
  most in the mean, beside the same model with all steps computed for all tokens (nothing skipped), and beside one without halting, with
  the same weights and as many steps;
- a training step of `universal-transformer` with 6 steps beside one of a 6-layer `decoder` of the same width.

The weights are random. The bias of the halting unit is found by halving, so that tokens take half of the steps in the mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from formers.bench.progress import working
from formers.bench.timing import alternate, ratio
from formers.core import FormersError, Watch
from formers.depth import Adaptive
from formers.depth.adaptive import AdaptiveBlocks
from formers.depth.halting import STEPS
from formers.family import create, spec
from formers.model import Model, Spec, StackModel, build, evaluating
from formers.recurrent.act import HaltingLayer

VOCAB, HEADS, ROWS, LENGTH = 256, 4, 8, 128
MOST, DIMS, CAUSAL = 12, (256, 512), {"encoder": False, "decoder": True}
SPREAD = 0.05
"""The standard deviation of the halting unit's weights."""
TRAINED = dict(vocab=VOCAB, dim=256, heads=HEADS, hidden=1024, length=LENGTH, norm="post", activation="relu", dropout=0.0)
LAYERS = 6
LIMITS = {
    **{f"{kind}_{dim}_{other}": (1.5, math.inf) for kind in CAUSAL for dim in DIMS for other in ("masked", "shared")},
    "training": (0.0, 1.1),
}
"""At least so many times faster than without skipping, and than without halting; at most so many times a stack's training step."""


def bench_pondering(rounds: int) -> dict[str, Any]:
    """Seconds of a pass and how many times faster skipping is, for each kind and width; and the training steps, side by side."""
    made: dict[str, Any] = {}
    for kind, causal in CAUSAL.items():
        for dim in DIMS:
            made |= {f"{kind}_{dim}_{name}": value for name, value in skipping(causal, dim, rounds).items()}
    return {**made, **training(rounds)}


def skipping(causal: bool, dim: int, rounds: int) -> dict[str, float]:
    """Seconds with skipping, and how many times longer passes take that skip nothing, or know of no halting."""
    torch.manual_seed(0)
    sizes = dict(vocab=VOCAB, dim=dim, heads=HEADS, steps=MOST, hidden=4 * dim, length=LENGTH, dropout=0.0)
    plain = spec("universal-transformer", preset=None, causal=causal, **sizes)
    model, tokens = halting_model(plain, MOST), torch.randint(VOCAB, (ROWS, LENGTH))
    mean, different = set_mean(model, tokens, MOST / 2)
    shared = build(plain)
    shared.load_state_dict({name: value for name, value in model.state_dict().items() if name in shared.state_dict()})
    ways = {"skipped": partial(read, model, tokens, True), "masked": partial(read, model, tokens, False)}
    ways["shared"] = partial(read, shared, tokens, True)
    with evaluating(model), evaluating(shared), working("timing", (rounds + 2) * len(ways)) as advance:
        times = alternate(ways, rounds, tick=partial(advance, 1))
    return {
        "steps": mean,
        "different_steps": different,
        "seconds": statistics.median(times["skipped"]),
        "masked": ratio(times, "masked", "skipped"),
        "shared": ratio(times, "shared", "skipped"),
    }


def training(rounds: int) -> dict[str, float]:
    """Seconds of a training step of one block in 6 steps and of 6 layers, and how many times longer the first takes."""
    torch.manual_seed(0)
    tokens, targets = (torch.randint(VOCAB, (ROWS, LENGTH)) for _ in range(2))
    models = {
        "universal": create("universal-transformer", preset=None, **TRAINED, steps=LAYERS),
        "stacked": create("decoder", preset=None, **TRAINED, layers=LAYERS),
    }
    steps = {name: training_step(model.train(), tokens, targets) for name, model in models.items()}
    with working("timing", (rounds + 2) * len(steps)) as advance:
        times = alternate(steps, rounds, tick=partial(advance, 1))
    seconds = {f"{name}_training_seconds": statistics.median(each) for name, each in times.items()}
    return {**seconds, "training": ratio(times, "universal", "stacked")}


def halting_model(plain: Spec, most: int) -> StackModel:
    """A model of random weights whose tokens halt at different steps."""
    model = build(plain.replace(depth=Adaptive(layers=most)))
    assert isinstance(model, StackModel)
    with torch.no_grad():
        unit(model).weight.normal_(std=SPREAD)
    return model


def set_mean(model: StackModel, tokens: Tensor, wanted: float, tolerance: float = 0.05) -> tuple[float, int]:
    """Sets the bias of the halting unit so that tokens take so many steps in the mean; that mean, and how many different N there are."""
    low, high, taken = -12.0, 4.0, torch.zeros(())
    for _ in range(40):
        bias = (low + high) / 2
        with torch.no_grad():
            unit(model).bias.fill_(bias)
        watch = Watch(only=STEPS)
        with evaluating(model), torch.no_grad():
            model(tokens, watch=watch)
        taken = watch.notes[STEPS][0]
        mean = float(taken.mean())
        if abs(mean - wanted) <= tolerance:
            return mean, len(taken.unique())
        low, high = (bias, high) if mean > wanted else (low, bias)
    raise FormersError(f"no bias of the halting unit makes tokens take {wanted:g} steps in the mean: use other weights.")


def unit(model: StackModel) -> torch.nn.Linear:
    """The halting unit of a model."""
    depth = model.stack.depth
    assert isinstance(depth, AdaptiveBlocks)
    return depth.unit


def read(model: Model, tokens: Tensor, skips: bool) -> None:
    """A pass without gradients, in which what has halted is skipped or not."""
    with torch.no_grad(), skipping_is(model, skips):
        model(tokens)


@contextmanager
def skipping_is(model: Model, on: bool) -> Iterator[None]:
    """Within it a model skips what has halted, or not."""
    depths = [part for part in model.modules() if isinstance(part, AdaptiveBlocks | HaltingLayer)]
    for depth in depths:
        depth.skipping = on
    try:
        yield
    finally:
        for depth in depths:
            depth.skipping = True


def training_step(model: Model, tokens: Tensor, targets: Tensor) -> Callable[[], None]:
    """A step: forward with the loss, backward, and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(model(tokens, targets=targets).loss)
        optimizer.step()

    return step
