"""A state is continued by models with the same state shape, in any dtype; all others raise a one-sentence error."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

import formers
from contracts.specimens import CAUSAL, Subject, subject
from formers import FormersError, State
from helpers import close, one_sentence, refused

SIZES = dict(vocab=11, dim=12, heads=2, layers=2, length=8)


def subjects() -> list[Subject]:
    torch.manual_seed(0)
    return [subject(s.spec) for s in CAUSAL]


@torch.no_grad()
def test_the_states_of_all_other_specimens_are_refused_and_never_raise_anything_else() -> None:
    """With their shape, and, as earlier versions saved them, without it: then the entries themselves must not fit, or fit wholly."""
    made = [(read, read(read.input(4)).state) for read in subjects()]
    accepted = 0
    for mine, _ in made:
        x = mine.input(2)
        for theirs, state in made:
            if theirs.model.state_shape == mine.model.state_shape:
                mine(x, state=state)
                continue
            with refused("initial_state"):
                mine(x, state=state)
            try:
                mine(x, state=replace(state, shape=None))
                accepted += 1
            except FormersError as error:
                one_sentence(str(error))
    assert accepted < len(made) ** 2 / 2, "most entries do not fit"


@torch.no_grad()
def test_a_word_window_state_is_no_state_of_an_lstm() -> None:
    """Of batch 2 the shapes agree: it was accepted, and read as something else."""
    window = formers.create("word-window", vocab=11, dim=12, layers=2, window=2, causal=True, length=8).eval()
    lstm = formers.create("rnn", vocab=11, dim=12, layers=2, cell="lstm", length=8).eval()
    x = torch.randint(11, (2, 4))
    state = window(x).state
    with refused("initial_state"):
        lstm(x, state=state)
    with refused("has a ConvMemory", "needs a RecurrentMemory"):
        lstm(x, state=replace(state, shape=None))


@torch.no_grad()
def test_what_differs_is_named() -> None:
    decoder = formers.create("decoder", **SIZES).eval()
    x = torch.randint(11, (2, 4))
    state = decoder(x).state
    for change, words in (
        (dict(heads=3), "heads=2"),
        (dict(head_dim=5), "head_dim=6"),
        (dict(layers=3), "depth=Stacked(layers=2)"),
        (dict(position="learned"), "position=Sinusoidal"),
        (dict(norm="post"), "residual=PreNorm"),
    ):
        other = formers.create("decoder", **{**SIZES, **change}).eval()
        with refused(words, "initial_state(2)"):
            other(x, state=state)


@torch.no_grad()
def test_copies_and_other_types_continue_a_state() -> None:
    """EMA copies, `deploy`, other dropout, head, name and length, float32 after float64; and `State.to`."""
    for read in subjects():
        x, more = read.input(4), read.input(3)
        wanted = read(more, state=(state := read(x).state)).logits
        close(replace(read, model=copy.deepcopy(read.model))(more, state=state).logits, wanted)
        spec = read.model.spec
        changed = formers.build(spec.replace(name="mine", dropout=0.3)).double().eval()
        changed.load_state_dict(read.model.state_dict())
        close(replace(read, model=changed)(more, state=state).logits, wanted)
        changed.deploy()
        close(replace(read, model=changed)(more, state=state).logits, wanted)
        single = replace(read, model=copy.deepcopy(read.model).float())
        if spec.features is None:
            for given in (state, state.to(torch.float32), state.to("cpu", torch.float32), state.to(dtype=torch.float32)):
                found = single(more, state=given)
                assert found.logits.dtype == torch.float32
                close(found.logits.double(), wanted, 1e-3)
            kinds: set[torch.dtype] = set()
            state.to(torch.float32).map(lambda t, kinds=kinds: kinds.add(t.dtype) or t)
            assert torch.float64 not in kinds
    assert isinstance(state.to("cpu"), State)


@torch.no_grad()
def test_other_buckets_or_rounds_are_refused() -> None:
    sizes = dict(vocab=11, dim=12, heads=2, layers=2, length=16, chunk=4)
    model = formers.create("reformer", **sizes, rounds=2).eval()
    x = torch.randint(11, (2, 5))
    state = model(x).state
    long = formers.create("reformer", **{**sizes, "length": 32}, rounds=2).eval()  # twice as many buckets, which the length decides
    with refused("8 buckets", "16 buckets", "initial_state"):
        long(x, state=state)
    with refused("initial_state"):
        formers.create("reformer", **sizes, rounds=3).eval()(x, state=state)
