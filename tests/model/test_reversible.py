"""Reversible stacks: the values of plain half steps to the bit, their gradients to rounding, and memory independent of the depth."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

import formers
from contracts.specimens import VOCAB, subject
from formers.attention.lsh.decisions import decide_once
from formers.core import Watch
from formers.depth import Shared
from formers.inspect.measure.costs import Costs
from formers.model import reversible
from helpers import close, sweep

EXACT = 1e-9
SMALL = {"vocab": VOCAB, "dim": 16, "heads": 2, "length": 32, "norm": "reversible"}


class Plain:
    """The same half steps by torch's own autograd, which keeps all of them."""

    @staticmethod
    def apply(passage, context, ends, left, x, other, source, *weights):
        context = replace(context, losses={})
        first, second, entries = reversible.run_forward(passage.halves, x, context, passage.kind, ends, other=other)
        left.extend(entries)
        passage.names = list(context.losses)
        return first, second, *context.losses.values()


def step(model, batch, bf16=False):
    """The output and the gradients of a training step that begins with the same random numbers, and a number drawn behind it."""
    model.train().zero_grad()
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        out = model(**batch)
    out.loss.backward()
    return out, {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}, torch.rand(())


def same(model, batch, monkeypatch, tolerance=EXACT, bf16=False):
    """Fails unless a step is what it is with all states kept; what it gives."""
    found, slopes, drawn = step(model, batch, bf16)
    with monkeypatch.context() as patch:
        patch.setattr(reversible, "ReversibleFunction", Plain)
        wanted, right, expected = step(model, batch, bf16)
    assert found.loss.equal(wanted.loss)
    assert found.hidden.equal(wanted.hidden)
    assert found.losses.keys() == wanted.losses.keys()
    assert all(found.losses[name].equal(wanted.losses[name]) for name in wanted.losses)
    assert drawn.equal(expected), "random numbers go on as without it"
    for name in right:
        assert (slopes[name] is None) == (right[name] is None), name
        if right[name] is not None:
            close(slopes[name], right[name], tolerance)
    return found, slopes


def rows(length=9, batch=2):
    """Tokens and targets."""
    tokens = torch.randint(VOCAB, (batch, length + 1))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


@sweep("layers", [1, 2, 6, 24])
def test_gradients_are_those_of_plain_autograd_at_any_depth(layers, monkeypatch):
    model = subject(formers.spec("decoder", **SMALL, layers=layers, dropout=0.2, attention_dropout=0.2)).model
    _, slopes = same(model, rows(), monkeypatch)
    assert all(slope.abs().sum() > 0 for slope in slopes.values()), "the embedding's among them"


@sweep("rates", [{}, {"dropout": 0.2, "attention_dropout": 0.2}])
def test_under_autocast_the_second_pass_is_cast_as_the_first(rates, monkeypatch):
    model = subject(formers.spec("decoder", **SMALL, layers=3, **rates), dtype=torch.float32).model
    _, slopes = same(model, rows(), monkeypatch, tolerance=2e-2, bf16=True)
    assert any(slope.abs().max() > 0.1 for slope in slopes.values())


def test_streams_of_16_bit_weights_are_wider_and_do_not_drift(monkeypatch):
    model = subject(formers.spec("decoder", **SMALL, layers=24), dtype=torch.bfloat16).model
    found, slopes = same(model, rows(), monkeypatch, tolerance=2e-2)
    assert found.hidden.dtype == slopes["embedding.weight"].dtype == torch.bfloat16


MASK = torch.tensor([[True] * 9, [False] + [True] * 5 + [False] * 3])
OTHERS = {
    "padding": formers.spec("decoder", **SMALL, layers=3, dropout=0.1),
    "shared weights": formers.spec("decoder", **SMALL, layers=3, dropout=0.1).replace(depth=Shared(layers=5)),
    "a span and its penalty": formers.spec("adaptive-span", **SMALL, layers=3, span=7, ramp=3, span_penalty=0.1, init=0.4, dropout=0.1),
    "dynamic spans": formers.spec("adaptive-span", **SMALL, layers=3, span=7, ramp=3, span_penalty=0.1, dynamic=True, dropout=0.1),
    "shared projections": formers.spec("linformer", **SMALL, layers=3, rank=5, sharing="layerwise", dropout=0.1),
    "extra vectors": formers.spec("bigbird", **SMALL, layers=3, block=2, window=1, extra=3, dropout=0.1),
    "convolutions": formers.spec(
        "universal-transformer", **SMALL, steps=3, transition="conv", position="sinusoidal", offset=9, dropout=0.1
    ),
    "centred convolutions": formers.spec("universal-transformer", **SMALL, causal=False, transition="conv", position="none"),
    "two stacks": formers.spec("transformer", **SMALL, layers=3, dropout=0.1),
    "a class": formers.spec("encoder", **SMALL, layers=2, classes=VOCAB, dropout=0.1),
}


@sweep("what", OTHERS)
def test_gradients_are_the_same_with(what, monkeypatch):
    read = subject(OTHERS[what], batch=2)
    batch = {"targets": read.targets(9), "mask": MASK}
    if read.source is None:
        batch["tokens"] = read.input(9)
    else:
        batch |= {"target": read.input(9), "source": read.source, "source_mask": torch.tensor([[True] * 5, [True] * 3 + [False] * 2])}
    _, slopes = same(read.model, batch, monkeypatch)
    assert all(slope is not None for slope in slopes.values())


def test_a_memory_is_a_constant_and_goes_on(monkeypatch):
    model = subject(formers.spec("transformer-xl", **SMALL, layers=3, memory=12, dropout=0.2, attention_dropout=0.2)).model
    state = model.initial_state(2)
    for length in (9, 4, 13):
        found, _ = same(model, {**rows(length), "state": state}, monkeypatch)
        state = found.state
        held = [entry[0].states for entry in state.steps]
        assert all(not states.requires_grad for states in held)
        assert not held[0].equal(held[1]), "each half step remembers what it was given"


@sweep("rate", [0.0, 0.2])
def test_a_sublayer_by_slices(rate, monkeypatch):
    model = subject(formers.spec("decoder", **SMALL, layers=3, dropout=rate)).model
    batch = rows(10)
    whole, wanted, _ = step(model, batch)
    for block in model.stack.depth.blocks:
        block.feedforward.chunk = 4
    found, slopes = same(model, batch, monkeypatch)
    if rate == 0.0:
        close(found.hidden, whole.hidden)
        for name in wanted:
            close(slopes[name], wanted[name])
    watch = Watch()
    model(**batch, watch=watch)
    assert watch.notes["feedforward norm"][2].shape == (2, 10)
    inspected = model.inspect(batch["tokens"])
    assert inspected.norms["stream"].shape == (4, 2, 10)
    assert inspected.norms["feedforward"].shape == inspected.norms["attention"].shape == (3, 2, 10)


class Deciding(nn.Module):
    """A sublayer that decides by comparing what it is given, as hashing does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.decisions = inner, []

    def forward(self, x, context, past, step):
        def decide():
            self.decisions.append(step)
            return x.detach() > 0

        y, left = self.inner(x, context, past, step)
        return y * decide_once(context, "sign", step, decide), left


def test_what_was_decided_is_not_decided_anew():
    model = subject(formers.spec("decoder", **SMALL, layers=1).replace(depth=Shared(layers=3))).model
    block = model.stack.depth.blocks[0]
    block.feedforward = Deciding(block.feedforward)
    step(model, rows())
    assert block.feedforward.decisions == [0, 1, 2]
    with torch.no_grad():
        model(**rows())
    assert len(block.feedforward.decisions) == 6


def test_a_gradient_can_be_taken_twice_and_of_some_weights_only(monkeypatch):
    model = subject(formers.spec("decoder", **SMALL, layers=2, dropout=0.2)).model.train()
    loss, weights = model(**rows()).loss, list(model.parameters())
    once = torch.autograd.grad(loss, weights, retain_graph=True)
    for a, b in zip(once, torch.autograd.grad(loss, weights), strict=True):
        assert a.equal(b)
    model.requires_grad_(False)
    model.stack.depth.blocks[1].attention.out.weight.requires_grad_(True)
    _, slopes = same(model, rows(), monkeypatch)
    assert [name for name, slope in slopes.items() if slope is not None] == ["stack.depth.blocks.1.attention.out.weight"]
    model.requires_grad_(False)
    model.embedding.requires_grad_(True)
    same(model, rows(), monkeypatch)


def test_weights_that_change_before_the_way_back_are_noticed():
    model = subject(formers.spec("decoder", **SMALL, layers=2)).model.train()
    loss = model(**rows()).loss
    with torch.no_grad():
        model.stack.depth.blocks[0].attention.out.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nothing_waits_for_the_garbage_collector(monkeypatch):
    spec = formers.spec("adaptive-span", **SMALL, layers=2, span=7, span_penalty=0.1)
    model, seen, of = subject(spec).model.train(), [], reversible.ReversiblePass.of
    monkeypatch.setattr(reversible.ReversiblePass, "of", lambda *given: seen.append(weakref.ref(made := of(*given))) or made)
    gc.collect()
    gc.disable()
    try:
        out = model(**rows(), watch=Watch(only="executors"))
        assert seen[0]() is not None
        del out
        assert seen[0]() is None
    finally:
        gc.enable()


def test_memory_does_not_grow_with_the_depth():
    few, many, kept = (
        Costs(formers.spec("decoder", vocab=VOCAB, dim=64, heads=4, length=256, layers=n, norm=norm, dropout=0.1))
        for n, norm in ((2, "reversible"), (6, "reversible"), (6, "pre"))
    )
    short, deep, plain = (costs.at(256).training for costs in (few, many, kept))
    assert deep.activations == pytest.approx(short.activations, rel=0.01)
    assert deep.peak - many.gradients == pytest.approx(short.peak - few.gradients, rel=0.05)
    assert deep.activations < 0.2 * plain.activations
    assert 1.2 * plain.total < deep.total < 1.4 * plain.total, "what blocks compute is computed twice"


def test_slices_make_the_peak_smaller():
    costs = Costs(formers.spec("decoder", vocab=VOCAB, dim=32, heads=2, length=256, layers=1, hidden=512, norm="reversible"))
    whole = costs.at(256).training
    for block in costs.model.stack.depth.blocks:
        block.feedforward.chunk = 32
    sliced = costs.at(256).training
    assert sliced.peak < 0.5 * whole.peak
    assert sliced.total == whole.total


def test_checkpointing_changes_nothing():
    model = subject(formers.spec("decoder", **SMALL, layers=2, dropout=0.2)).model
    batch = rows()
    wanted, right, _ = step(model, batch)
    model.checkpointing()
    found, slopes, _ = step(model, batch)
    assert found.loss.equal(wanted.loss)
    assert all(slopes[name].equal(right[name]) for name in right)


@pytest.mark.slow
def test_compiled_steps_can():
    torch._dynamo.reset()
    model = subject(formers.spec("decoder", **SMALL, layers=2)).model
    batch = rows()
    wanted, right, _ = step(model, batch)
    found, slopes, _ = step(torch.compile(model, fullgraph=True, backend="aot_eager"), batch)
    close(found.loss, wanted.loss)
    for slope, name in zip(slopes.values(), right, strict=True):
        close(slope, right[name])
