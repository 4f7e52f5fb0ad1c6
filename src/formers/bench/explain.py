"""What `formers explain` predicts, beside what real tensors take: profiled FLOPs, the allocator's own numbers, a real state's bytes.

torch's profiler counts matrix products by itself and knows nothing of fused attention, so that for counting a forward pass runs on torch's
plain kernel, whose products are the same. A fused backward pass computes the scores once more: that, only FlopCounterMode knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

from formers.core import State
from formers.family import spec
from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.measure.costs import Costs, example
from formers.inspect.measure.counting import counting
from formers.model import Model, build, evaluating

MEMBERS = ("transformer", "encoder", "decoder")
LENGTHS = (64, 256, 1024)
LIMITS = {"smallest_ratio": (0.95, 1.05), "largest_ratio": (0.95, 1.05)}
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
BACKWARD = "the backward pass begins"


def bench_explain(lengths: Sequence[int] = LENGTHS, batch: int = 1) -> dict[str, Any]:
    """Predicted and measured figures of the vanilla members at lengths, with their ratios, and the smallest and largest of these."""
    rows, ratios = [], []
    for name in MEMBERS:
        chosen = spec(name, vocab=256)
        costs, model = Costs(chosen, batch), build(chosen)
        for length in lengths:
            found = measured(model, batch, length)
            for what, figure in predicted(costs, length).items():
                ratios.append(figure / found[what])
                rows.append(dict(member=name, length=length, what=what, predicted=figure, measured=found[what], ratio=ratios[-1]))
    return {"rows": rows, "smallest_ratio": min(ratios), "largest_ratio": max(ratios)}


def tables(results: Mapping[str, Any]) -> tuple[Table]:
    """What is printed of the results: a line for each figure of each member and length."""
    table = new_table("member", "length", "what", "predicted", "measured", "ratio")
    for row in results["rows"]:
        numbers = (f"{row['predicted']:,}", f"{row['measured']:,}", f"{row['ratio']:.4f}")
        add_row(table, row["member"], f"{row['length']:,}", row["what"], *numbers)
    for column in (1, 3, 4, 5):
        table.columns[column].justify = "right"
    return (table,)


def figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest and the largest ratio."""
    return {name: results[name] for name in LIMITS}


def predicted(costs: Costs, length: int) -> dict[str, int]:
    """What is predicted of rows of a length, by name."""
    cost = costs.at(length)
    assert cost.training is not None
    figures = {
        "forward FLOPs": cost.forward.total,
        "training FLOPs": cost.training.total,
        "activations": cost.training.activations,
        "training peak": cost.training.peak,
    }
    if cost.decoding is not None and cost.state is not None:
        figures |= {"decoding FLOPs": cost.decoding.total, "state": cost.state}
    return figures


def measured(model: Model, batch: int, length: int) -> dict[str, int]:
    """The same figures of a real model."""
    inputs, targets = example(model.spec, batch, length)

    def train() -> None:
        out = model(**inputs, targets=targets)
        with record_function(BACKWARD):
            pass
        out.loss.backward()

    model.train()
    activations, peak = allocated(model, train)
    model.zero_grad()
    with counting() as counter:
        train()
    figures = {"training FLOPs": counter.get_total_flops(), "activations": activations, "training peak": peak}
    with evaluating(model), torch.no_grad():
        figures["forward FLOPs"] = multiplied(lambda: model(**inputs))
        state = model(**inputs).state
        if state is not None:
            one = {**example(model.spec, batch, 1)[0], **({} if model.spec.encoder is None else {"source": None})}
            figures |= {"decoding FLOPs": multiplied(lambda: model(**one, state=state)), "state": state_bytes(state)}
    return figures


def multiplied(run: Callable[[], object]) -> int:
    """FLOPs of the matrix products of a run, as torch's profiler counts them."""
    with sdpa_kernel(SDPBackend.MATH), profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiler:
        run()
    return sum(event.flops for event in profiler.events() if event.name in PRODUCTS)


def allocated(model: Model, train: Callable[[], object]) -> tuple[int, int]:
    """Bytes that a training step has allocated when its backward pass begins, and at its peak; gradients are new, tables are not."""
    train()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    now = peak = activations = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
        elif event.name() == BACKWARD:
            activations = now
    return activations, peak


def state_bytes(state: State) -> int:
    """Bytes of the tensors of a state, of which a memory holds hidden states, and keys and values beside them."""
    found: list[int] = []
    state.map(lambda t: found.append(t.nbytes) or t)  # type: ignore[func-returns-value]
    return sum(found)
