"""The Universal Transformer against the paper's equations, a tied stack, and itself in pieces."""

from __future__ import annotations

import re

import torch
from torch import Tensor

import formers
from formers import Model
from formers.attention import attend
from formers.depth import Adaptive, Shared, Stacked
from formers.family import MEMBERS
from formers.feedforward import SeparableConv
from formers.inspect import explain_facts, subject
from formers.memory import NoMemory
from formers.patterns import Causal, Full
from formers.position import Coordinate, NoPosition, PerLayer, sinusoid
from formers.residual import PreNorm
from formers.score import Relative
from helpers import close, gradients, refused, sweep

TINY = {"vocab": 11, "dim": 16, "heads": 2, "hidden": 24, "length": 12, "steps": 4}


def unlike(model: Model) -> Model:
    """The model in float64, no weight of which is 0 or 1."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.double().parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def naive(model: Model, tokens: Tensor) -> Tensor:
    """Logits of the paper's loop: H <- LN(A + Transition(A)), A = LN((H + P) + MHSA(H + P))."""
    spec, block = model.spec, model.stack.depth.blocks[0]
    h, (batch, n), d = model.embedding(tokens), tokens.shape, spec.dim
    for t in range(1, spec.depth.steps + 1):
        x = h + (sinusoid(torch.arange(n), d) + sinusoid(torch.tensor(t), d))
        q, k, v = (y.view(batch, n, spec.heads, -1).transpose(1, 2) for y in block.attention.qkv(x).chunk(3, dim=-1))
        heads = attend(q, k, v, pattern=Causal(), how="dense").transpose(1, 2).reshape(batch, n, d)
        a = block.residual_attention.norm(x + block.attention.out(heads))
        h = block.residual_feedforward.norm(a + block.feedforward.out(block.feedforward.into(a).relu()))
    return h @ model.embedding.weight.T


def test_it_is_the_papers_loop() -> None:
    model = unlike(formers.create("universal-transformer", **TINY))
    x = torch.randint(11, (2, 9))
    found, wanted = model(x).logits, naive(model, x)
    close(found, wanted)
    weights = list(model.parameters())
    for a, b in zip(gradients(found, weights), gradients(wanted, weights), strict=True):
        close(a, b)


@sweep("transition", ["dense", "conv"])
@sweep("norm", ["post", "pre"])
def test_fixed_steps_are_a_stack_of_tied_layers_that_is_fed_the_signal(transition: str, norm: str) -> None:
    model = unlike(formers.create("universal-transformer", **TINY, transition=transition, norm=norm))
    once, spec = model.state_dict(), model.spec
    stacked = formers.build(spec.replace(depth=Stacked(layers=4), position=PerLayer())).double()
    signal = torch.stack([sinusoid(torch.arange(12), 16) + sinusoid(torch.tensor(t), 16) for t in range(1, 5)])
    tied = {name: once[re.sub(r"blocks\.\d", "blocks.0", name)] for name in stacked.state_dict() if name != "stack.position.tables"}
    stacked.load_state_dict({**tied, "stack.position.tables": signal})
    x = torch.randint(11, (2, 9))
    found, wanted = model(x).logits, stacked(x).logits
    close(found, wanted)
    shared = dict(model.named_parameters())
    slopes = dict(zip(shared, gradients(found, shared.values()), strict=True))
    layers = dict(stacked.named_parameters())
    apart = dict(zip(layers, gradients(wanted, layers.values()), strict=True))
    for name, slope in slopes.items():
        same = [s for other, s in apart.items() if re.sub(r"blocks\.\d", "blocks.0", other) == name]
        assert len(same) == (4 if "blocks" in name else 1)
        close(slope, torch.stack(same).sum(dim=0))


def test_one_step_is_one_layer_with_the_step_signal() -> None:
    model = unlike(formers.create("universal-transformer", **{**TINY, "steps": 1}))
    x = torch.randint(11, (2, 5))
    close(model(x).logits, naive(model, x))


@sweep("act", ["none", "graves"])
@torch.no_grad()
def test_segments_with_a_memory_are_one_long_row(act: str) -> None:
    """As far as the memory reaches: every step sees what the same step made of earlier segments."""
    model = unlike(formers.create("universal-transformer", **TINY, memory=50, transition="conv", act=act)).eval()
    assert model.spec.position == Coordinate(place="none")
    assert model.spec.score == Relative()
    x, state, logits = torch.randint(11, (2, 30)), model.initial_state(2), []
    for piece in x.split([12, 1, 12, 5], dim=1):
        out = model(piece, state=state)
        state, logits = out.state, [*logits, out.logits]
    close(torch.cat(logits, dim=1), model(x).logits)


def test_halting_starts_with_its_bias_alone() -> None:
    model = formers.create("universal-transformer", **TINY, act="graves", halt_bias=-2.5)
    unit = model.stack.depth.unit
    assert (unit.bias == -2.5).all()
    assert (unit.weight == 0).all()


def test_the_three_kinds() -> None:
    assert isinstance(formers.spec("universal-transformer", **TINY, classes=3).pattern, Full)
    writes = formers.spec("universal-transformer", **TINY)
    assert writes.is_causal
    assert writes.depth == Shared(layers=4)
    reads = formers.spec("universal-transformer", **TINY, causal=False)
    assert not reads.is_causal
    assert formers.spec("universal-transformer", **TINY, classes=3).head.classes == 3
    pair = formers.spec("universal-transformer", **TINY, decoder_steps=2, act="graves", halt_epsilon=0.1, ponder=0.2, halt_bias=3.0)
    assert pair.encoder is not None
    assert pair.encoder.depth == Adaptive(layers=4, epsilon=0.1, ponder=0.2, bias=3.0, act="graves")
    assert pair.depth.steps == 2
    conv = formers.spec("universal-transformer", **TINY, decoder_steps=2, transition="conv")
    assert [s.feedforward for s in (conv, conv.encoder)] == [SeparableConv(hidden=24)] * 2
    assert [s.sizes.causal for s in (conv, conv.encoder)] == [True, False]


def test_presets_are_the_papers() -> None:
    base = formers.spec("universal-transformer", preset="base", vocab=100)
    assert (base.dim, base.heads, base.feedforward.hidden, base.depth.steps, base.encoder.depth.steps) == (1024, 16, 4096, 6, 6)
    adaptive = formers.spec("universal-transformer", preset="adaptive", vocab=100)
    assert adaptive.depth == Adaptive(layers=12)
    code = formers.spec("universal-transformer", preset="t2t", vocab=100)
    assert isinstance(code.residual, PreNorm)
    assert code.position == Coordinate(step="learned")
    assert code.depth == Adaptive(layers=12, act="t2t")
    assert set(MEMBERS["universal-transformer"].training) == {"", "base", "adaptive", "t2t"}


@sweep(
    ("options", "words"),
    [
        ({"layers": 3}, ["layers", "give steps"]),
        ({"decoder_steps": 2, "classes": 3}, ["classes=3", "decoder_steps=2"]),
        ({"decoder_steps": 2, "causal": True}, ["causal=True"]),
        ({"decoder_steps": 2, "memory": 4}, ["Recurrence", "pairs"]),
        ({"causal": False, "memory": 4}, ["Recurrence"]),
        ({"memory": 4, "position": "sinusoidal"}, ["Recurrence", "Sinusoidal"]),
        ({"memory": 4, "offset": 3}, ["offset=3"]),
        ({"clamp": 4}, ["clamp=4", "position=relative"]),
        ({"position": "relative", "offset": 3}, ["offset=3", "position=coordinate"]),
        ({"ponder": 0.5}, ["ponder=0.5", "act=graves"]),
        ({"act": "graves", "halt_epsilon": 1.0}, ["epsilon", "1"]),
        ({"act": "graves", "norm": "reversible", "position": "none"}, ["Reversible"]),
        ({"steps": 0}, ["steps", "0"]),
        ({"norm": "reversible"}, ["Coordinate", "Reversible"]),
        ({"step_signal": "learned", "position": "none"}, ["step_signal=learned", "position=none"]),
        ({"transition": "conv", "activation": "swiglu"}, ["activation", "swiglu"]),
        ({"position": "cordinate"}, ["cordinate"]),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, object], words: list[str]) -> None:
    with refused(*words):
        formers.create("universal-transformer", **{**TINY, **options})


@sweep("kind", [{}, {"causal": False}, {"decoder_steps": 2}])
def test_relative_positions_are_in_scores_and_the_step_in_coordinates(kind: dict[str, object]) -> None:
    spec = formers.spec("universal-transformer", **TINY, position="relative", clamp=5, step_signal="learned", **kind)
    for stack in (spec, spec.encoder) if spec.encoder is not None else (spec,):
        assert (stack.score, stack.position) == (Relative(clamp=5), Coordinate(place="none", step="learned"))
        assert stack.memory == NoMemory()


def test_without_positions_nothing_is_added() -> None:
    assert formers.spec("universal-transformer", **TINY, position="none").position == NoPosition()


def test_what_halting_costs_is_reported_for_all_steps() -> None:
    """On fake tensors, which cannot say who has halted."""
    options = {name: value for name, value in TINY.items() if name != "vocab"}
    words = ("none", "graves", "t2t")
    costs = [explain_facts(subject("universal-transformer", 11, None, {**options, "act": word}), [8], 1) for word in words]
    plain, *halting = (cost["lengths"][0]["flops_per_token"]["forward"] for cost in costs)
    assert [each - plain for each in halting] == [4 * 2 * TINY["dim"]] * 2, "the halting unit, at every step"
