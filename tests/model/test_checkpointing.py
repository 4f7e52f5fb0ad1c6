"""Activation checkpointing: the same loss and gradients, bit for bit, and no loss is counted twice."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import formers
from contracts.specimens import FIRST, Specimen, subject
from formers.inspect.measure.costs import Costs
from helpers import close, sweep

SMALL = {"vocab": 11, "dim": 16, "heads": 2, "layers": 3, "length": 32}


def step(model, batch, bf16=False):
    """The loss, its terms and all gradients of a training step that begins with the same random numbers."""
    model.train().zero_grad()
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        out = model(**batch)
    out.loss.backward()
    return out.loss.detach(), {k: v.detach() for k, v in out.losses.items()}, [p.grad.clone() for p in model.parameters()], out


def same(model, batch, **how):
    """Fails unless a step with checkpointing is the step without, to the last bit; what the former gave."""
    plain = step(model, batch, **how)
    model.checkpointing()
    found = step(model, batch, **how)
    assert found[0].equal(plain[0])
    assert found[1].keys() == plain[1].keys()
    assert all(found[1][name].equal(plain[1][name]) for name in plain[1])
    for name, slope, wanted in zip(dict(model.named_parameters()), found[2], plain[2], strict=True):
        assert slope.equal(wanted), name
    model.checkpointing(False)
    return found[3]


def lively(model):
    """The model without weights at 0, of which nothing would flow back."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@sweep("bf16", [False, True])
@sweep("rates", [{"dropout": 0.3}, {"dropout": 0.1, "attention_dropout": 0.3}])
def test_gradients_are_the_same_to_the_bit_with_dropout(rates, bf16):
    model = lively(formers.create("sparse-transformer", **{**SMALL, "length": 640, **rates}, stride=32, summary=4, use="interleaved"))
    tokens = torch.randint(11, (2, 641))
    same(model, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, bf16=bf16)


@sweep("bf16", [False, True])
def test_steps_of_one_block_draw_the_same_starts_and_dropout_again(bf16):
    options = {"vocab": 11, "dim": 16, "heads": 2, "steps": 3, "length": 32, "transition": "conv", "act": "graves"}
    model = lively(formers.create("universal-transformer", **options, offset=50, dropout=0.2))
    tokens = torch.randint(11, (2, 33))
    out = same(model, {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}, bf16=bf16)
    assert set(out.losses) == {"cross_entropy", "ponder"}


@sweep("specimen", FIRST)
def test_every_member_can(specimen: Specimen) -> None:
    read = subject(specimen.spec.replace(dropout=0.2), batch=2)
    batch = {"targets": read.targets(9), "mask": torch.tensor([[True] * 9, [True] * 5 + [False] * 4])}
    batch |= {"tokens": read.input(9)} if read.source is None else {"source": read.source, "target": read.input(9)}
    same(read.model, batch)


class Costly(nn.Module):
    """A sublayer that adds to a loss which all blocks share."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x, context, past, step):
        self.calls += 1
        cost = x.square().mean()
        context.losses["cost"] = context.losses["cost"] + cost if "cost" in context.losses else cost
        return self.inner(x, context, past, step)


def test_extra_losses_count_once_and_flow_back():
    model = lively(formers.create("decoder", **SMALL, dropout=0.2))
    for block in model.stack.depth.blocks:
        block.feedforward = Costly(block.feedforward)
    tokens = torch.randint(11, (2, 12))
    same(model, {"tokens": tokens, "targets": tokens})
    assert [block.feedforward.calls for block in model.stack.depth.blocks] == [3] * 3, "once plainly, twice checkpointed"


def test_a_state_is_the_same_and_goes_on():
    model = lively(formers.create("sparse-transformer", **SMALL, stride=4)).double()
    tokens = torch.randint(11, (2, 20))
    wanted = model(tokens, state=model.initial_state(2)).logits
    model.checkpointing()
    state, logits = model.initial_state(2), []
    for part in tokens.split(5, dim=1):
        out = model(part, targets=part, state=state)
        out.loss.backward()
        state = out.state
        logits.append(out.logits)
    close(torch.cat(logits, dim=1), wanted)


def test_what_is_kept_is_little_more_than_the_inputs_of_blocks():
    costs = Costs(formers.spec("decoder", **{**SMALL, "layers": 12, "dim": 64, "length": 256}))
    plain = costs.at(256).training
    costs.model.checkpointing()
    found = costs.at(256).training
    inputs = 12 * 256 * 64 * 4
    assert inputs < found.activations < 1.4 * inputs
    assert found.activations < 0.1 * plain.activations
    assert found.peak < 0.8 * plain.peak, "gradients come as they did"
    assert found.total > 1.2 * plain.total, "all that a block computes is computed twice"


def test_it_is_no_part_of_the_spec_and_is_not_saved(tmp_path):
    model = formers.create("decoder", **SMALL)
    model.checkpointing()
    model.save_pretrained(tmp_path / "m")
    loaded = formers.load(tmp_path / "m")
    assert loaded.spec == model.spec
    assert model.stack.depth.checkpointing
    assert not loaded.stack.depth.checkpointing


@pytest.mark.slow
def test_compiled_steps_can():
    torch._dynamo.reset()
    model = lively(formers.create("decoder", **SMALL))
    tokens = torch.randint(11, (2, 12))
    batch = {"tokens": tokens, "targets": tokens}
    _, _, wanted, _ = step(model, batch)
    model.checkpointing()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    loss, _, found, _ = step(compiled, batch)
    assert loss.isfinite()
    for slope, right in zip(found, wanted, strict=True):
        close(slope, right, 1e-5)
