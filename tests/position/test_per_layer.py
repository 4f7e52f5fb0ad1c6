"""Positions per layer: the table of each layer, and its end."""

from __future__ import annotations

import torch

import formers
from formers.core import ExplicitPositions, Range, Sizes
from formers.position import PerLayer
from helpers import close, refused

SIZES = Sizes(dim=8, heads=1, head_dim=8, value_dim=8, length=24, depth_steps=3, dropout=0.0, attention_dropout=0.0, spread=0.5)


def test_each_step_adds_rows_of_its_own_table():
    module, x = PerLayer().build(SIZES), torch.randn(2, 5, 8)
    assert PerLayer().every_step
    assert module.tables.shape == (3, 24, 8)
    for step in range(3):
        close(module(x, Range(4, 5), step), x + module.tables[step, 4:9])


def test_places_one_by_one_are_as_a_range_and_empty_ones_do_no_harm():
    module, x = PerLayer().build(SIZES), torch.randn(2, 4, 8)
    found = module(x, ExplicitPositions(torch.tensor([[3, 4, 5, 6], [20, 21, -1, -1]]), 22), 1)
    close(found[0], module(x[:1], Range(3, 4), 1)[0])
    close(found[1, :2], module(x[1:, :2], Range(20, 2), 1)[0])


def test_all_vectors_of_a_token_together_are_of_its_size():
    torch.manual_seed(0)
    tables = PerLayer().build(Sizes(**{**SIZES.__dict__, "dim": 512, "length": 512, "depth_steps": 16})).tables
    assert abs(tables.sum(dim=0).std().item() / 0.5 - 1) < 0.02


def test_every_layer_of_a_model_is_told():
    model = formers.create("decoder", vocab=9, dim=8, heads=2, layers=4, length=6, position="per-layer")
    model(torch.randint(9, (2, 5))).logits.square().sum().backward()
    moved = model.stack.position.tables.grad.abs().amax(dim=2) > 0
    assert moved[:, :5].all()
    assert not moved[:, 5].any()


def test_beyond_the_tables_is_refused_as_beyond_one():
    for position in ("learned", "per-layer"):
        model = formers.create("decoder", vocab=9, dim=8, heads=2, layers=2, length=6, position=position)
        with refused("7 tokens do not fit the learned position table", "length=6", "sinusoidal"):
            model(torch.zeros(1, 7, dtype=torch.long))
