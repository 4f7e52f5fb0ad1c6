"""The contract of layers: y, or (y, state); chunks equal one pass; padding changes nothing; gradients; copies; one graph; errors."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import formers
from formers import layers
from formers.layers import ACT, AdaptiveSpanAttention, LSHAttention, RelativeAttention, SelfAttention, TransformerBlock
from formers.patterns import Causal, Full, Local
from formers.residual import Reversible
from helpers import close, refused, sweep
from layers.cases import ALL, CAUSAL, DIM, HEADS, made, rows


def test_every_layer_has_a_case() -> None:
    cased = {type(build()).__name__ for build in ALL.values()}
    assert cased | {"Gated", "Reversible"} == set(layers.__all__)


@sweep("name", ALL)
def test_a_layer_returns_y_and_with_a_state_the_state_too(name: str) -> None:
    layer, x = made(ALL[name]), rows(7)
    y = layer(x)
    width = 5 if name == "act of an lstm" else DIM
    assert (y.shape, y.dtype) == ((2, 7, width), torch.float64)
    assert isinstance(layer, nn.Module)
    if name in CAUSAL:
        again, state = layer(x, state=layer.initial_state(2))
        close(again, y)
        assert isinstance(state, formers.State)


@sweep(("name", "lengths"), [(name, lengths) for name in CAUSAL for lengths in ((1,) * 9, (4, 5), (2, 1, 6))])
def test_chunks_equal_one_pass(name: str, lengths: tuple[int, ...]) -> None:
    layer, x = made(CAUSAL[name]), rows(sum(lengths))
    state, found = layer.initial_state(2), []
    for part in x.split(lengths, dim=1):
        y, state = layer(part, state=state)
        found.append(y)
    close(torch.cat(found, dim=1), layer(x))


@sweep("name", CAUSAL)
def test_chunks_of_padded_rows_equal_one_pass_over_each(name: str) -> None:
    layer, x = made(CAUSAL[name]), rows(8)
    masks = torch.tensor([[True, True, False, False], [True] * 4]), torch.tensor([[False, True, True, True], [True, False, True, False]])
    state, found = layer.initial_state(2), []
    for part, mask in zip(x.split(4, dim=1), masks, strict=True):
        y, state = layer(part, mask, state)
        found.append(y)
    both, whole = torch.cat(masks, dim=1), torch.cat(found, dim=1)
    for row in range(2):
        close(whole[row, both[row]], layer(x[row : row + 1, both[row]])[0])


@sweep("name", CAUSAL)
def test_a_state_that_is_reset_begins_anew(name: str) -> None:
    layer, x, more = made(CAUSAL[name]), rows(5), rows(4)
    _, state = layer(x, state=layer.initial_state(2))
    y, _ = layer(more, state=state.reset(torch.tensor([True, False])))
    close(y[0], layer(more)[0])
    close(y[1], layer(torch.cat([x, more], dim=1))[1, 5:])


@sweep("name", ALL)
def test_padding_on_any_side_changes_nothing_and_its_y_is_0(name: str) -> None:
    layer, x = made(ALL[name]), rows(7, batch=3)
    mask = torch.tensor([[True] * 4 + [False] * 3, [False] * 2 + [True] * 5, [True, False] * 3 + [True]])
    y = layer(x.masked_fill(~mask[..., None], float("nan")), mask)
    for row in range(3):
        close(y[row, mask[row]], layer(x[row : row + 1, mask[row]])[0])
        assert y[row, ~mask[row]].eq(0).all()


@sweep("name", [name for name in ALL if "lsh" not in name])
def test_gradients_are_the_numeric_ones(name: str) -> None:
    """Of x and of every weight. LSH is left out: a bucket changes at a step of any size; test_same_as_members holds its gradients."""
    layer, x = made(ALL[name]), rows(5, batch=1).requires_grad_()
    weights = dict(layer.named_parameters())

    def run(x: torch.Tensor, *values: torch.Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(weights, values, strict=True)), (x,))

    small = [w.detach().requires_grad_() for w in weights.values()]
    assert gradcheck(run, (x, *small), fast_mode=True, atol=1e-5)


@sweep("name", ALL)
def test_a_copy_and_a_loaded_layer_compute_the_same(name: str) -> None:
    layer, x = made(ALL[name]), rows(6)
    fresh = ALL[name]().double().eval()
    fresh.load_state_dict(layer.state_dict())
    for other in (copy.deepcopy(layer), fresh):
        assert other(x).equal(layer(x))
    assert not {id(p) for p in copy.deepcopy(layer).parameters()} & {id(p) for p in layer.parameters()}


@sweep("name", CAUSAL)
def test_a_state_of_inference_mode_can_be_trained_on(name: str) -> None:
    layer, x = made(CAUSAL[name]), rows(4)
    with torch.inference_mode():
        _, state = layer(x, state=layer.initial_state(2))
    y, _ = layer(x, state=state)
    y.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_layer_compiles_to_one_graph(name: str) -> None:
    torch._dynamo.reset()
    layer, x = made(ALL[name], torch.float32).train(), rows(6, dtype=torch.float32)
    mask = torch.tensor([[True] * 6, [False] + [True] * 3 + [False] * 2])
    found = []
    for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)  # LSH draws rotations in training
        layer.zero_grad()
        run(x, mask).square().sum().backward()
        found.append([p.grad.clone() for p in layer.parameters()])
    for mine, wanted in zip(*found, strict=True):
        close(mine, wanted, 1e-3)


def test_extra_losses_are_added_by_name() -> None:
    x, losses = rows(6), {}
    span = made(CAUSAL["span"])
    span(x, losses=losses)
    assert losses["span"].requires_grad
    assert losses["span"] > 0
    before = losses["span"].item()
    span(x, losses=losses)
    assert losses["span"].item() == pytest.approx(2 * before)
    act = made(CAUSAL["act of a gru"])
    act(x, losses=losses)
    losses["ponder"].backward()
    assert act.layer.unit.weight.grad.abs().sum() > 0


def test_dropout_acts_in_training_alone() -> None:
    for layer in (SelfAttention(DIM, HEADS, dropout=0.5), TransformerBlock(DIM, HEADS, dropout=0.5)):
        x = rows(6, dtype=torch.float32)
        assert not layer(x).equal(layer(x))
        layer.eval()
        assert layer(x).equal(layer(x))


def test_the_pattern_is_full_unless_given() -> None:
    x = rows(6)
    for name in ("full", "lsh that looks ahead", "relative that looks ahead", "block that looks ahead"):
        layer = made(ALL[name])
        changed = x.clone()
        changed[:, -1] += 1
        assert not layer(changed)[:, 0].equal(layer(x)[:, 0]), f"{name} does not see the last token"
    assert RelativeAttention(DIM, HEADS, memory=4).is_causal


@sweep(
    ("build", "words"),
    [
        (lambda: SelfAttention(0, 2), ["dim=0"]),
        (lambda: TransformerBlock("wide", 2), ["dim='wide'"]),
        (lambda: SelfAttention(DIM, 0), ["heads=0"]),
        (lambda: SelfAttention(DIM, 3), ["dim=16", "heads=3", "head_dim"]),
        (lambda: SelfAttention(DIM, 2, "causal"), ["'causal' is not a Pattern"]),
        (lambda: SelfAttention(DIM, 2, dropout=1.5), ["dropout=1.5"]),
        (lambda: LSHAttention(DIM, 2, Local(window=3)), ["Local", "Causal or Full"]),
        (lambda: RelativeAttention(DIM, 2, Full(), memory=3), ["memory=3", "causal"]),
        (lambda: AdaptiveSpanAttention(DIM, 2, span=0), ["span=0"]),
        (lambda: AdaptiveSpanAttention(DIM, 2, kind="long"), ["kind='long'", "'learned'"]),
        (lambda: TransformerBlock(DIM, 2, norm="prr"), ["norm='prr'", "'pre'"]),
        (lambda: TransformerBlock(DIM, 2, norm=Reversible()), ["formers.layers.Reversible"]),
        (lambda: ACT("gruu", 3), ["cell='gruu'"]),
        (lambda: ACT("gru"), ["give dim"]),
        (lambda: ACT(nn.Linear(2, 3)), ["Linear", "input_size"]),
        (lambda: ACT(nn.GRUCell(1, 3)), ["input_size=1"]),
        (lambda: ACT(nn.GRUCell(5, 3), dim=5), ["dim=5", "input_size=5"]),
        (lambda: ACT(nn.GRUCell(5, 3), act="none"), ["act='none'"]),
        (lambda: ACT(nn.GRUCell(5, 3), steps=0), ["steps=0"]),
    ],
)
def test_a_layer_that_cannot_be_made_is_refused(build: Any, words: list[str]) -> None:
    with refused(*words):
        build()


@sweep(
    ("arguments", "words"),
    [
        ({"x": 3}, ["x is a int"]),
        ({"x": torch.zeros(2, 5)}, ["(batch, length, 16)"]),
        ({"x": torch.zeros(2, 5, 15)}, ["(2, 5, 15)", "(batch, length, 16)"]),
        ({"x": torch.zeros(2, 5, 16, dtype=torch.long)}, ["int64"]),
        ({"x": torch.zeros(2, 5, 16, dtype=torch.float64)}, ["float64", "float32"]),
        ({"x": torch.zeros(2, 0, 16)}, ["no tokens"]),
        ({"mask": torch.ones(2, 4, dtype=torch.bool)}, ["(2, 4)", "(2, 5)"]),
        ({"mask": torch.ones(2, 5)}, ["float32", "bool"]),
        ({"mask": [True]}, ["mask is a list"]),
        ({"state": 3}, ["state is a int"]),
        ({"state": SelfAttention(DIM, HEADS, Causal()).initial_state(3)}, ["3 rows", "initial_state(2)"]),
        ({"state": RelativeAttention(DIM, HEADS, Causal()).initial_state(2)}, ["another layer"]),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], words: list[str]) -> None:
    layer = SelfAttention(DIM, HEADS, Causal())
    with refused(*words):
        layer(**{"x": torch.zeros(2, 5, DIM), **arguments})


def test_a_layer_that_looks_ahead_has_no_state() -> None:
    layer = SelfAttention(DIM, HEADS)
    with refused("not causal", "Causal()"):
        layer.initial_state(2)
    with refused("batch=0"):
        SelfAttention(DIM, HEADS, Causal()).initial_state(0)


def test_import_formers_loads_neither_torch_nor_the_layers() -> None:
    line = "import formers, sys; print(*('torch' in sys.modules, 'formers.layers' in sys.modules, formers.layers.SelfAttention.__name__))"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, check=True, encoding="utf-8")
    assert done.stdout.split() == ["False", "False", "SelfAttention"]
