"""Rows with several episodes: each is computed as if it were alone, with a state or without."""

from __future__ import annotations

import pytest
import torch

import formers
from contracts.specimens import subject
from formers.patterns import Strided
from formers.residual import Gated, Reversible
from helpers import close, gradients, refused, sweep

SIZES = {"vocab": 11, "dim": 16, "heads": 2, "layers": 2, "length": 16}
SPECS = {
    "gtrxl": formers.spec("gtrxl", memory=5, **SIZES),
    "trxl": formers.spec("gtrxl", memory=4, norm="post", **SIZES),
    "longer": formers.spec("gtrxl", memory=9, gate="sum", untied=False, **SIZES),
    "causal": formers.spec("gtrxl", memory=40, same_length=False, **SIZES),
    "reversible": formers.spec("gtrxl", memory=6, **SIZES).replace(residual=Reversible()),
    "plain": formers.spec("decoder", position="none", **SIZES).replace(residual=Gated(kind="highway")),
    **{cell: formers.spec("rnn", cell=cell, vocab=11, dim=16, layers=2, length=16) for cell in ("lstm", "gru", "tanh")},
}
IDS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3], [4] * 12, [0, 1, 2, 2, 2, 2, 2, 2, 2, 5, 5, 5]])


def alone(read, tokens, ids):
    """The logits of every episode of every row, each read by itself."""
    found = torch.empty(*tokens.shape, read.model.spec.vocab, dtype=torch.float64)
    for row in range(len(tokens)):
        for episode in ids[row].unique():
            own = ids[row] == episode
            found[row, own] = read.model(tokens[row, own][None]).logits[0]
    return found


@sweep("name", SPECS)
def test_every_episode_is_as_if_it_were_alone(name):
    read = subject(SPECS[name])
    tokens = read.input(12)
    wanted = alone(read, tokens, IDS)
    close(read.model(tokens, episodes=IDS).logits, wanted)
    for cut in (1, 3, 5, 7, 11):  # the ends of calls fall inside episodes and on their ends
        first = read.model(tokens[:, :cut], episodes=IDS[:, :cut], state=read.model.initial_state(3))
        then = read.model(tokens[:, cut:], episodes=IDS[:, cut:], state=first.state)
        close(torch.cat([first.logits, then.logits], dim=1), wanted)


@sweep("name", SPECS)
@torch.no_grad()
def test_token_by_token(name):
    read = subject(SPECS[name])
    tokens, state, found = read.input(12), read.model.initial_state(3), []
    for t in range(12):
        out = read.model(tokens[:, t : t + 1], episodes=IDS[:, t : t + 1], state=state)
        state = out.state
        found.append(out.logits)
    close(torch.cat(found, dim=1), alone(read, tokens, IDS))
    assert state.episode.tolist() == [3, 4, 5]
    if state.first is not None:
        assert state.first.tolist() == [10, 0, 9]
    more = read.input(2)  # without ids the episode goes on
    close(
        read.model(more, state=state).logits,
        read.model(more, state=state, episodes=torch.tensor([[3, 3], [4, 4], [5, 5]])).logits,
    )


@sweep("name", SPECS)
def test_nothing_crosses_the_end_of_an_episode(name):
    """Bit for bit, in values; and no gradient."""
    read = subject(SPECS[name])
    tokens = read.input(12)
    other = torch.where(IDS[:, -1:] == IDS, tokens, (tokens + 1) % 11)
    last = IDS[:, -1:] == IDS
    one, two = (read.model(t, episodes=IDS).logits[last] for t in (tokens, other))
    assert one.equal(two)
    vectors = read.model.embedding(tokens).detach().requires_grad_()
    read.model.embedding.forward = lambda *_: vectors
    slope = gradients(read.model(tokens, episodes=IDS).logits[last], [vectors])[0]
    assert (slope[~last] == 0).all()
    assert (slope[last] != 0).any()


@sweep("name", SPECS)
def test_gradients_are_those_of_the_episodes_alone(name):
    read = subject(SPECS[name])
    tokens = read.input(12)
    weights = list(read.model.parameters())
    for found, wanted in zip(
        gradients(read.model(tokens, episodes=IDS).logits, weights), gradients(alone(read, tokens, IDS), weights), strict=True
    ):
        close(found, wanted)


@sweep("name", SPECS)
@torch.no_grad()
def test_a_reset_row_begins_an_episode(name):
    read = subject(SPECS[name])
    tokens, more = read.input(12), read.input(6)
    state = read.model(tokens, episodes=IDS, state=read.model.initial_state(3)).state
    done = torch.tensor([True, False, True])
    found = read.model(more, state=state.reset(done), episodes=IDS[:, -1:].expand(-1, 6)).logits
    fresh = read.model(more).logits
    close(found[done], fresh[done])
    close(found[1], read.model(torch.cat([tokens[1:2], more[1:2]], dim=1)).logits[0, 12:])


def test_what_cannot_hold_episodes_is_refused():
    ids = torch.zeros(2, 4, dtype=torch.long)
    tokens = torch.zeros(2, 4, dtype=torch.long)
    for member, more, word in (
        ("decoder", {}, "Sinusoidal"),
        ("encoder", {}, "not causal"),
        ("universal-transformer", {"position": "none", "transition": "conv"}, "SeparableConv"),
        ("universal-transformer", {"position": "none", "act": "graves"}, "Adaptive"),
        ("gtrxl", {"memory_start": "zeros"}, "zeros"),
        ("word-window", {}, "Window"),
    ):
        model = formers.create(member, vocab=11, dim=16, **more)
        with refused(word, "gtrxl"):
            model(tokens, episodes=ids)
    with refused("Strided"):
        formers.build(SPECS["plain"].replace(pattern=Strided(stride=2)))(tokens, episodes=ids)
    model = formers.create("gtrxl", vocab=11, dim=16)
    with refused("mask"):
        model(tokens, episodes=ids, mask=torch.ones(2, 4, dtype=torch.bool))
    for wrong in (ids[:, :3], ids.float(), ids.bool(), [0, 0]):
        with refused("episodes"):
            model(tokens, episodes=wrong)


@pytest.mark.parametrize("how", ["gather", "flex", "blocked", "distances"])
def test_executors_that_know_no_episodes_refuse(how):
    from formers.attention.attend import EXECUTORS
    from formers.attention.request import Request
    from formers.core import Range
    from formers.patterns import Local

    q = torch.randn(1, 1, 4, 4)
    request = Request(Local(window=2), Range(0, 4), Range(0, 4), 1, 0.5, first=torch.zeros(1, 4, dtype=torch.long))
    assert "episodes" in EXECUTORS[how].unsupported(request, q, q, q)
