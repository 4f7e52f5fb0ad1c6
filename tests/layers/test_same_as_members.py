"""A layer with the weights of a member's sublayer computes what the member's sublayer computed, to the bit: values and gradients.

A member runs on tokens; hooks note what its first block's sublayers were given and returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import formers
from contracts.specimens import TINY, VOCAB
from formers.layers import ACT, AdaptiveSpanAttention, LSHAttention, RelativeAttention, SelfAttention, TransformerBlock
from formers.layers.base import Layer
from formers.patterns import BigBird, Causal, Fixed, PerHead, Strided
from formers.residual import Gated
from formers.score import Relative
from helpers import gradients, sweep

SIZES = {"dim": 16, "heads": 2}
LENGTH = 13


def member(name: str, **options: Any) -> formers.Model:
    """A member in float64 with no weight at 0 or 1, in evaluation mode."""
    torch.manual_seed(3)
    sizes = {k: v for k, v in TINY.items() if k not in options}
    model = formers.create(name, vocab=VOCAB, **sizes, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


class Noted:
    """The last (x, y) of a module."""

    def __init__(self, module: nn.Module) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []
        module.register_forward_hook(lambda _, given, made: self.seen.append((given[0].detach(), made[0].detach())))


def copied(layer: Layer, module: nn.Module, into: nn.Module, model: formers.Model | None = None) -> Layer:
    """A layer in float64 whose part `into` has the weights of a member's module, and those that all blocks of the model share."""
    layer.double().eval()
    shared = {} if model is None or model.stack.common_score is None else model.stack.common_score.state_dict(prefix="score.position.")
    into.load_state_dict({**module.state_dict(), **shared})
    return layer


ATTENTION: list[tuple[str, dict[str, Any], Callable[[], Layer]]] = [
    ("decoder", {}, lambda: SelfAttention(**SIZES, pattern=Causal())),
    ("encoder", {}, lambda: SelfAttention(**SIZES)),
    (
        "sparse-transformer",
        {"pattern": "strided", "use": "merged", "stride": 4},
        lambda: SelfAttention(**SIZES, pattern=Strided(stride=4)),
    ),
    (
        "sparse-transformer",
        {"pattern": "fixed", "use": "heads", "stride": 4, "summary": 1, "subblocks": 1},
        lambda: SelfAttention(**SIZES, pattern=PerHead(*Fixed(stride=4, summary=1).parts())),
    ),
    (
        "bigbird",
        {"block": 2, "window": 1, "global_blocks": 1, "random_blocks": 1},
        lambda: SelfAttention(**SIZES, pattern=BigBird(block=2, window=1, global_blocks=1, random_blocks=1)),
    ),
    ("reformer", {"chunk": 2, "buckets": 4}, lambda: LSHAttention(**SIZES, pattern=Causal(), chunk=2, buckets=4, length=32)),
    (
        "reformer",
        {"chunk": 2, "buckets": (2, 2), "causal": False, "reach": "chunk", "rounds": 3},
        lambda: LSHAttention(**SIZES, chunk=2, buckets=(2, 2), length=32, reach="chunk", rounds=3),
    ),
    ("transformer-xl", {"memory": 40, "untied": True}, lambda: RelativeAttention(**SIZES, memory=40)),
    ("transformer-xl", {"memory": 3, "untied": True, "clamp": 3}, lambda: RelativeAttention(**SIZES, memory=3, clamp=3)),
    (
        "adaptive-span",
        {"span": 9, "ramp": 3, "span_penalty": 0.1, "init": 0.3},
        lambda: AdaptiveSpanAttention(**SIZES, span=9, ramp=3, penalty=0.1, init=0.3),
    ),
    (
        "adaptive-span",
        {"span": 9, "ramp": 3, "span_penalty": 0.1, "dynamic": True},
        lambda: AdaptiveSpanAttention(**SIZES, span=9, ramp=3, penalty=0.1, kind="dynamic"),
    ),
]


@sweep(("name", "options", "build"), ATTENTION)
def test_an_attention_layer_is_the_sublayer_of_the_member(name: str, options: dict[str, Any], build: Callable[[], Layer]) -> None:
    model, layer = member(name, **options), build()
    attention = model.stack.depth.blocks[0].attention
    noted = Noted(attention)
    tokens = torch.randint(VOCAB, (2, LENGTH))
    with torch.no_grad():
        model(tokens)
    copied(layer, attention, layer.block.attention, model)
    x, y = noted.seen[0]
    with torch.no_grad():
        assert layer(x).equal(y)


@sweep("name", ["transformer-xl", "adaptive-span", "decoder"])
def test_an_attention_layer_with_a_memory_goes_on_as_the_member_does(name: str) -> None:
    options = {"transformer-xl": {"memory": 6, "untied": True}, "adaptive-span": {"span": 9, "ramp": 3}, "decoder": {}}[name]
    build = {
        "transformer-xl": lambda: RelativeAttention(**SIZES, memory=6),
        "adaptive-span": lambda: AdaptiveSpanAttention(**SIZES, span=9, ramp=3),
        "decoder": lambda: SelfAttention(**SIZES, pattern=Causal()),
    }[name]
    model, layer = member(name, **options), build()
    attention = model.stack.depth.blocks[0].attention
    noted = Noted(attention)
    state, mine = model.initial_state(2), layer.initial_state(2)
    copied(layer, attention, layer.block.attention, model)
    with torch.no_grad():
        for length in (5, 4, 1):
            state = model(torch.randint(VOCAB, (2, length)), state=state).state
            x, y = noted.seen[-1]
            found, mine = layer(x, state=mine)
            assert found.equal(y)


BLOCKS: list[tuple[str, dict[str, Any], Callable[[], Layer]]] = [
    ("decoder", {}, lambda: TransformerBlock(**SIZES, hidden=24, pattern=Causal())),
    ("encoder", {"norm": "post"}, lambda: TransformerBlock(**SIZES, hidden=24, norm="post")),
    (
        "gtrxl",
        {"memory": 5, "same_length": False},
        lambda: TransformerBlock(
            **SIZES,
            hidden=24,
            pattern=Causal(),
            norm=Gated(),
            score=Relative(untied=True),
            memory=5,
            attention=formers.attention.DotProduct(bias=False),
            activation="relu",
        ),
    ),
]


@sweep(("name", "options", "build"), BLOCKS)
def test_a_block_is_the_block_of_the_member(name: str, options: dict[str, Any], build: Callable[[], Layer]) -> None:
    model, layer = member(name, **options), build()
    block = model.stack.depth.blocks[0]
    noted = Noted(block)
    with torch.no_grad():
        model(torch.randint(VOCAB, (2, LENGTH)))
    copied(layer, block, layer.block)
    x, y = noted.seen[0]
    with torch.no_grad():
        assert layer(x).equal(y)


def test_the_members_act_cell_is_the_layer_of_the_member() -> None:
    for cell in ("tanh", "gru", "lstm"):
        torch.manual_seed(3)
        model = formers.create("act-rnn", vocab=VOCAB, dim=16, layers=1, cell=cell, steps=4, halt_epsilon=0.3, halt_bias=-0.5, dropout=0.0)
        model.double().eval()
        attention = model.stack.depth.blocks[0].attention
        noted = Noted(attention)
        with torch.no_grad():
            model(torch.randint(VOCAB, (2, LENGTH)))
            layer = ACT(cell, 16, steps=4, epsilon=0.3, bias=-0.5)
            copied(layer, attention, layer.layer)
            x, y = noted.seen[0]
            assert layer(x).equal(y)


def test_gradients_are_those_of_the_members_sublayer() -> None:
    """In training, from the same random numbers."""
    for name, options, build in ATTENTION:
        model, layer = member(name, **options), build()
        attention = model.stack.depth.blocks[0].attention
        copied(layer, attention, layer.block.attention, model)
        x = torch.randn(2, LENGTH, 16, dtype=torch.float64).requires_grad_()
        context = formers.core.Context(formers.core.Range(0, LENGTH))
        found = []
        for run, weights in ((layer, layer.block.attention), (lambda x, a=attention, c=context: a(x, c, None, 0)[0], attention)):
            weights.train()
            torch.manual_seed(11)
            named = dict(weights.named_parameters())
            found.append(gradients(run(x), [x, *(named[key] for key, _ in attention.named_parameters())]))
        assert all(mine.equal(wanted) for mine, wanted in zip(*found, strict=True)), name
