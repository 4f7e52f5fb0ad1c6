"""Coordinate embeddings against the paper's formula; random starts shift rows in training only."""

from __future__ import annotations

import math

import pytest
import torch

import formers
from formers.core import ExplicitPositions, Range, Sizes
from formers.position import Coordinate, Sinusoidal
from helpers import close, gradients, refused, sweep

SIZES = Sizes(dim=8, heads=1, head_dim=8, value_dim=8, length=24, depth_steps=4, dropout=0.0, attention_dropout=0.0, spread=0.5)
TINY = {"vocab": 11, "dim": 16, "heads": 2, "steps": 2, "length": 16}


def paper(i: int, t: int, d: int) -> torch.Tensor:
    """P^t_i, number by number."""
    rows = []
    for j in range(0, d, 2):
        angles = [i / 10000 ** (j / d), t / 10000 ** (j / d)]
        rows += [sum(map(math.sin, angles)), sum(map(math.cos, angles))]
    return torch.tensor(rows, dtype=torch.float64)


def test_positions_count_from_0_and_steps_from_1() -> None:
    module, x = Coordinate().build(SIZES), torch.randn(2, 5, 8, dtype=torch.float64)
    for step in range(4):
        wanted = x + torch.stack([paper(i, step + 1, 8) for i in range(3, 8)])
        close(module(x, Range(3, 5), step), wanted, 1e-14)
        close(module(x, ExplicitPositions(torch.tensor([[3, 4, 5, 6, 7], [3, 4, 5, 6, -1]]), 8), step)[0], wanted[0], 1e-14)


def test_each_term_can_be_left_out() -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    everything, place, time, nothing = (
        Coordinate(place=place, step=step).build(SIZES)(x, Range(3, 5), 2)
        for place, step in (("sinusoidal", "sinusoidal"), ("sinusoidal", "none"), ("none", "sinusoidal"), ("none", "none"))
    )
    close(place + time - x, everything, 1e-14)
    close(place, Sinusoidal().build(SIZES)(x, Range(3, 5), 2), 1e-14)
    assert nothing.equal(x)
    assert (time - x).std(dim=1).max() < 1e-14, "a step is told to all tokens alike"
    assert not Coordinate(place="none").absolute
    assert Coordinate(step="none").absolute


def test_learned_steps_are_a_vector_each() -> None:
    module, x = Coordinate(step="learned").build(SIZES), torch.randn(2, 5, 8)
    assert module.steps.shape == (4, 8)
    y = torch.stack([module(x, Range(0, 5), step) for step in (0, 3)])
    close(y[1] - y[0], (module.steps[3] - module.steps[0]).expand(2, 5, 8), 1e-6)
    (slope,) = gradients(y, [module.steps])
    assert slope[[0, 3]].ne(0).all()
    assert slope[[1, 2]].eq(0).all()


def test_no_table_is_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Coordinate().build(SIZES), torch.randn(2, 5, 8)
    module(x, Range(0, 5), 0)
    monkeypatch.setattr("formers.position.sinusoidal.sinusoid", lambda *_: pytest.fail("a table is made again"))
    for step in range(4):
        module(x, Range(step, 5), step)


@sweep("part", [Coordinate(offset=6), Sinusoidal(offset=6)])
def test_rows_start_anywhere_in_training_and_at_0_in_evaluation(part: Coordinate | Sinusoidal) -> None:
    module, device, starts = part.build(SIZES), torch.device("cpu"), {}
    torch.manual_seed(0)
    found = module.shifted(Range(2, 5), 500, device, starts)
    assert set(found.index[:, 0].tolist()) == set(range(2, 9))
    assert found.stop == 13
    assert found.index.max() == 12
    close(found.index - found.index[:, :1], torch.arange(5).expand(500, 5), 0)
    assert module.shifted(Range(2, 5), 500, device, starts).index.equal(found.index), "a pass draws once"
    assert module.eval().shifted(Range(2, 5), 500, device, {}) == Range(2, 5)
    assert part.trained_positions(24) == 30
    assert Coordinate().build(SIZES).shifted(Range(2, 5), 500, device, {}) == Range(2, 5)


@sweep("act", ["none", "graves"])
def test_an_offset_moves_every_step_of_a_row_alike(act: str) -> None:
    """In training a row is what it would be if its tokens stood further on, at all steps; in evaluation nothing has changed."""
    model = formers.create("universal-transformer", **TINY, offset=5, causal=False, act=act).double()
    plain = formers.create("universal-transformer", **TINY, causal=False, act=act).double()
    plain.load_state_dict(model.state_dict())
    x = torch.randint(11, (6, 7))
    assert model.eval()(x).logits.equal(plain.eval()(x).logits)
    torch.manual_seed(4)
    starts = torch.randint(6, (6, 1))
    torch.manual_seed(4)
    found = model.train()(x).logits
    assert len(starts.unique()) > 2
    add = plain.stack.position.forward
    for row, start in enumerate(starts.flatten().tolist()):
        plain.stack.position.forward = lambda x, p, t, start=start: add(x, Range(p.start + start, p.length), t)
        close(plain(x[row : row + 1]).logits[0], found[row])


def test_both_sides_of_a_pair_start_alike() -> None:
    for name, options in (("universal-transformer", {**TINY, "decoder_steps": 1}), ("transformer", {"vocab": 11, "dim": 16, "heads": 2})):
        model = formers.create(name, **options, offset=50, dropout=0.0).train()
        seen: list[torch.Tensor] = []
        for stack in (model.encoder, model.stack):
            stack.position.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[1].index[:, 0]))
        model(torch.randint(11, (8, 5)), torch.randint(11, (8, 4)))
        assert all(starts.equal(seen[0]) for starts in seen)
        assert len(seen[0].unique()) > 2


def test_an_offset_is_a_number_of_positions_and_of_sines() -> None:
    for name in ("transformer", "encoder", "decoder", "universal-transformer"):
        with refused("offset", "-1"):
            formers.spec(name, vocab=11, offset=-1)
        for position in ("learned", "none"):
            with refused("offset=3", f"position={position}", "leave one of them out"):
                formers.spec(name, vocab=11, offset=3, position=position)
        assert formers.spec(name, vocab=11, offset=3, position="sinusoidal").position == Sinusoidal(offset=3)
    with refused("Coordinate", "offset", "-1"):
        Coordinate(offset=-1)


def test_generation_reads_as_far_as_positions_were_met() -> None:
    model = formers.create("universal-transformer", **{**TINY, "length": 4}, offset=8).eval()
    text = formers.generate(model, torch.randint(11, (1, 3)), max_new_tokens=9, temperature=0.0)
    with torch.no_grad():
        assert model(text[:, :-1]).logits.argmax(dim=-1)[:, 2:].equal(text[:, 3:])
