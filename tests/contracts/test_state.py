"""A state is a value: it can be reset by row, selected, copied, used in both modes, and stops gradients."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch

import formers
from contracts.specimens import CAUSAL, MEMBERS, Specimen, built, subject
from formers import Model, State
from formers.core.serialise import join_rows, pack, unpack
from formers.core.state import LayerState
from formers.family.members import MEMBERS as TABLE
from formers.patterns import Alternate, Fixed, Local, Pattern, PerHead, Strided, Summary
from helpers import close, refused, sweep

SWEPT = sweep("specimen", CAUSAL)


def caches(state: State) -> list[LayerState]:
    return [entry for step in state.steps for entry in step if entry is not None]


def tensors(entry: LayerState) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    entry.map(lambda t: (found.append(t), t)[1])
    return found


@SWEPT
@torch.no_grad()
def test_reset_rows_equal_fresh_ones(specimen: Specimen) -> None:
    read = built(specimen.spec)
    first, then, done = read.input(6), read.input(5), torch.tensor([True, False, True])
    state = read(first).state.reset(done)
    a = read(then[:, :3], state=state)
    found = torch.cat([a.logits, read(then[:, 3:], state=a.state).logits], dim=1)
    fresh = read
    if read.source is not None:  # a row that starts anew has read no source: it equals one whose source is all padding
        fresh = replace(read, source_mask=torch.zeros(read.source.shape[:2], dtype=torch.bool))
    close(found[done], fresh(then).logits[done])
    close(found[~done], read(torch.cat([first, then], dim=1)).logits[~done, 6:])


@SWEPT
@torch.no_grad()
def test_reset_of_a_masked_state_and_twice(specimen: Specimen) -> None:
    read = built(specimen.spec)
    if read.source is not None:
        read = replace(read, source_mask=torch.zeros(read.source.shape[:2], dtype=torch.bool))
    mask = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])
    first, then, last = read.input(3), read.input(4), read.input(2)
    state = read(first, mask=mask).state.reset(torch.tensor([True, False, False]))
    state = read(then, state=state).state.reset(torch.tensor([False, True, False]))
    found = read(last, state=state).logits
    for row, past in enumerate([then[0], then[1, :0], torch.cat([first[2], then[2]])]):
        alone = torch.cat([past, last[row]])[None]
        close(found[row], read.rows([row])(alone).logits[0, len(past) :])


@SWEPT
@torch.no_grad()
def test_a_row_can_be_reset_for_ever(specimen: Specimen) -> None:
    """A row that starts anew has all of the model's length before it, however much was read before."""
    read = built(specimen.spec)
    everyone = torch.ones(read.batch, dtype=torch.bool)
    state = read(read.input(20)).state
    for _ in range(3):
        state = read(read.input(20), state=state.reset(everyone)).state
    assert torch.as_tensor(state.next).expand(read.batch).tolist() == [20] * read.batch


@SWEPT
@torch.no_grad()
def test_selected_rows_continue_as_they_would_have(specimen: Specimen) -> None:
    read = built(specimen.spec)
    order = [2, 0, 0, 1]
    mask = torch.tensor([[True] * 4, [False, True, True, False], [True, True, True, False]])
    for given in (None, mask):
        first = read.input(4)
        then = read.rows(order).input(3)
        found = read.rows(order)(then, state=read(first, mask=given).state.select(torch.tensor(order)))
        for new, old in enumerate(order):
            past = first[old] if given is None else first[old, given[old]]
            wanted = read.rows([old])(torch.cat([past, then[new]])[None])
            close(found.logits[new], wanted.logits[0, len(past) :])


@SWEPT
@torch.no_grad()
def test_two_continuations_of_one_state_do_not_disturb_each_other(specimen: Specimen) -> None:
    """Caches share one growing buffer: only the newest end of it may be written."""
    read = built(specimen.spec)
    x = read.input(5)
    stem = read(x[:, 4:], state=read(x[:, :4]).state).state  # its caches own a buffer with room
    kept = [[t.clone() for t in tensors(entry)] for entry in caches(stem)]
    a, b, c, more = read.input(2), read.input(2), read.input(1), read.input(3)
    state_a = read(a, state=stem).state
    state_b = read(b, state=stem).state
    state_c = read(c, state=stem).state
    for branch, state in ((a, state_a), (b, state_b), (c, state_c), (a, state_a)):
        wanted = read(torch.cat([x, branch, more], dim=1)).logits[:, 5 + branch.shape[1] :]
        close(read(more, state=state).logits, wanted)
    for entry, before in zip(caches(stem), kept, strict=True):
        assert all(map(torch.equal, tensors(entry), before))


FORGETFUL = [
    *(Local(window=3), Local(window=1), Local(window=2, include_self=False), Local(window=2) | Local(window=4)),
    *(Fixed(stride=4, summary=1), Fixed(stride=5, summary=2, subblocks=2), Summary(stride=3, summary=1)),
    *(Strided(stride=3), PerHead(*Strided(stride=4).parts()), Alternate(*Fixed(stride=4, summary=2).parts())),
]


@sweep("pattern", FORGETFUL)
@torch.no_grad()
def test_whatever_happens_to_a_state_it_stays_exact(pattern: Pattern) -> None:
    """Tokens, stretches, padding, resets and selections in any order: what is forgotten must not have been needed."""
    spec = formers.spec("decoder", **MEMBERS["decoder"][0]).replace(pattern=pattern, length=200)
    model, choice = subject(spec).model, random.Random(repr(pattern))
    for often in [["padding", "padding"]] * 8 + [["stretch", "token"]] * 6:  # without padding, rows stand at one position for longer
        state, rows = model.initial_state(3), [[], [], []]
        for _ in range(14):
            act = choice.choice([*often, "token", "token", "stretch", "reset", "select"])
            if act == "reset" and not state.empty:
                done = torch.rand(state.batch) < 0.5
                state, rows = state.reset(done), [[] if d else row for row, d in zip(rows, done.tolist(), strict=True)]
            elif act == "select" and not state.empty:
                order = [choice.randrange(state.batch) for _ in range(choice.randint(1, 4))]
                state, rows = state.select(torch.tensor(order)), [list(rows[i]) for i in order]
            else:
                x = torch.randint(spec.vocab, (state.batch, 1 if act == "token" else choice.randint(1, 7)))
                mask = torch.rand(x.shape) < 0.6 if act == "padding" else None
                out = model(x, state=state, mask=mask)
                for i, row in enumerate(rows):
                    real = x[i] if mask is None else x[i, mask[i]]
                    row += real.tolist()
                    if len(real):
                        found = out.logits[i] if mask is None else out.logits[i, mask[i]]
                        close(found, model(torch.tensor([row])).logits[0, -len(real) :])
                state = out.state


@torch.no_grad()
def test_rows_that_are_selected_at_every_token_forget_too() -> None:
    """As a beam search does, behind prompts of different lengths."""
    spec = formers.spec("decoder", **MEMBERS["decoder"][0]).replace(pattern=Local(window=3), length=200)
    read = subject(spec)
    state = read(read.input(9), mask=torch.arange(9) < torch.tensor([[9], [4], [7]])).state
    for _ in range(5):
        state = read(read.input(1), state=state.select(torch.tensor([1, 0, 2]))).state
    assert {cache.keys.shape[2] for cache in caches(state)} == {2}


MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}


@SWEPT
@sweep("modes", ["inference no_grad", "no_grad inference", "inference no_grad inference", "inference grad"])
def test_a_state_passes_between_modes(specimen: Specimen, modes: str) -> None:
    read = subject(specimen.spec)
    x = read.input(12)
    names = modes.split()
    with MODES[names[0]]():
        state = read(x[:, 2:4], state=read(x[:, :2]).state).state
    logits = []
    for t in range(4, 12, 2):
        with MODES[names[1 + (t // 2) % (len(names) - 1)]]():
            out = read(x[:, t : t + 2], state=state)
        state = out.state
        logits.append(out.logits.detach())
    if names[-1] == "grad":
        out.logits.square().mean().backward()
    with torch.no_grad():
        close(torch.cat(logits, dim=1).clone(), read(x).logits[:, 4:])


@SWEPT
def test_training_without_a_state_makes_none(specimen: Specimen) -> None:
    read = subject(specimen.spec)
    assert read(read.input(4)).state is None
    with torch.no_grad():
        assert read(read.input(4)).state is not None


@SWEPT
def test_gradients_reach_the_parameters_and_stop_at_the_state(specimen: Specimen) -> None:
    read = subject(specimen.spec)
    x, goal = read.input(8), read.targets(4)
    parameters = dict(read.model.named_parameters())

    def slopes(state: State) -> dict[str, torch.Tensor]:
        read.model.train().zero_grad()  # some learn in training alone
        torch.manual_seed(0)  # and some draw anew in each step
        read(x[:, 4:], state=state, targets=goal).loss.backward()
        return {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}

    trained = read(x[:, :4], state=read.model.initial_state(read.batch), targets=goal)
    assert trained.loss.requires_grad
    carried: list[torch.Tensor] = []
    trained.state.map(lambda t: carried.append(t) or t)
    assert carried
    assert not any(t.requires_grad for t in carried), "a state must be detached"
    with torch.no_grad():
        constant = read(x[:, :4]).state
    wanted = slopes(constant)
    before = [t.clone() for t in carried]
    found = slopes(trained.state)
    assert set(found) == set(wanted)
    for name, slope in found.items() if specimen.spec.memory.limit is None else ():  # of a memory the weights learn, too
        close(slope, wanted[name])
    own = {name for name in parameters if not name.startswith(("encoder.", "source_embedding."))}  # the source was read before
    own -= {name for name in own if ".cross.kv." in name or ".attention.source." in name}
    assert {name for name, slope in found.items() if (slope != 0).any()} == own
    assert all(map(torch.equal, carried, before))


def other(specimen: Specimen, **options: object) -> Model:
    return formers.create(specimen.member, **{**specimen.options, **options}).double().eval()


@SWEPT
@torch.no_grad()
def test_the_state_of_another_batch_or_model_is_refused(specimen: Specimen) -> None:
    read = built(specimen.spec)
    state = read(read.input(4)).state
    with refused("state has 3 rows", "tokens have 2"):
        read.rows([0, 1])(read.input(1)[:2], state=state)
    names = ("decoder_layers", "decoder_steps", "layers", "steps")
    depth = next(name for name in names if name in specimen.options)  # of the stack that has the state
    with refused("another model made", "initial_state"):
        replace(read, model=other(specimen, **{depth: specimen.options[depth] + 1}))(read.input(1), state=state)
    if "heads" not in TABLE[specimen.member].options:
        with refused("another model made", "initial_state"):
            replace(read, model=other(specimen, dim=12))(read.input(1), state=state)
        return
    with refused("another model made", "initial_state"):
        replace(read, model=other(specimen, heads=4, head_dim=7, value_dim=7))(read.input(1), state=state)
    with refused("another model made", "initial_state"):
        replace(read, model=other(specimen, heads=4, head_dim=16, value_dim=16))(read.input(1), state=state)


@torch.no_grad()
def test_decoder_and_encoder_decoder_do_not_take_each_others_state() -> None:
    options = MEMBERS["decoder"][0]
    alone, pair = (subject(formers.spec(name, **options)) for name in ("decoder", "transformer"))
    with refused("another model made", "initial_state"):
        pair(pair.input(1), state=alone(alone.input(3)).state)
    with refused("another model made", "initial_state"):
        alone(alone.input(1), state=pair(pair.input(3)).state)


@torch.no_grad()
def test_what_cannot_continue_has_no_state() -> None:
    encoder = subject(formers.spec("encoder", **MEMBERS["encoder"][0]))
    assert encoder(encoder.input(4)).state is None
    with refused("encoder", "no state"):
        encoder.model.initial_state(3)
    with refused("encoder", "omit state"):
        encoder(encoder.input(4), state=State(3))


@SWEPT
def test_bad_calls_of_a_state(specimen: Specimen) -> None:
    read = built(specimen.spec)
    with refused("batch=0"):
        read.model.initial_state(0)
    with torch.no_grad():
        state = read(read.input(2)).state
    with refused("reset", "(3,)"):
        state.reset(torch.tensor([True, False]))
    with refused("reset", "bool"):
        state.reset(torch.tensor([1, 0, 1]))
    assert read.model.initial_state(3).reset(torch.tensor([True, False, True])).empty


@SWEPT
@torch.no_grad()
def test_a_state_survives_the_way_through_a_file(specimen: Specimen) -> None:
    read = built(specimen.spec)
    state = read(read.input(7)).state
    state = state.reset(torch.tensor([i == 0 for i in range(read.batch)]))
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack(state, tensors)))
    again = unpack(packed, {name: value.clone() for name, value in tensors.items()})
    x = read.input(5)
    # A file holds the hidden states of a memory, of which keys and values are computed again, rounded otherwise.
    same = torch.equal if specimen.spec.memory.limit is None else torch.allclose
    assert same(read(x, state=again).logits, read(x, state=state).logits)
    halves = []
    for rows in (torch.arange(1), torch.arange(1, read.batch)):
        mine: dict[str, torch.Tensor] = {}
        halves.append((pack(state.select(rows), mine), mine))
    joined = unpack(*join_rows(halves))
    assert same(read(x, state=joined).logits, read(x, state=state).logits)


def test_only_known_classes_are_read_from_a_file() -> None:
    with refused("'Popen'"):
        unpack({"kind": "Popen", "args": ["ls"]}, {})
    with pytest.raises(TypeError, match="@serialisable"):
        pack(object(), {})
