"""One pass == any chunks == token by token, for every causal member and every causal pattern in one."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import formers
from contracts.specimens import CAUSAL, Specimen, Subject, built, lengthened, patterns
from formers import Spec, State
from formers.core import HiddenMemory, Range
from formers.core.state import LayerState
from formers.patterns import Local, Pattern
from helpers import close, sweep

LENGTH = 14
MEMBERS = sweep("specimen", CAUSAL)
CAUSAL_PATTERNS = [p for p in patterns() if p.is_causal]
cuts = st.sets(st.integers(1, LENGTH - 1)).map(lambda s: [0, *sorted(s), LENGTH])


def with_pattern(pattern: Pattern) -> Spec:
    """The decoder's first specimen with another pattern."""
    return CAUSAL_DECODER.spec.model_copy(update={"pattern": pattern})


CAUSAL_DECODER = next(s for s in CAUSAL if s.member == "decoder")
SPECS = [*(s.spec for s in CAUSAL), *(with_pattern(p) for p in CAUSAL_PATTERNS)]
EVERY = sweep("spec", SPECS)


def keys_of(entry: LayerState) -> Tensor:
    """The keys that an entry of a state holds, beside the hidden states where there is a memory."""
    return entry.cached_kv[1].keys if isinstance(entry, HiddenMemory) else entry.keys


def in_chunks(read: Subject, x: Tensor, bounds: list[int], mask: Tensor | None = None) -> tuple[Tensor, State]:
    """The logits of x, read chunk by chunk, and the state at the end."""
    state, logits = read.model.initial_state(read.batch), []
    for a, b in itertools.pairwise(bounds):
        out = read(x[:, a:b], state=state, mask=None if mask is None else mask[:, a:b])
        state = out.state
        logits.append(out.logits)
    return torch.cat(logits, dim=1), state


@EVERY
@given(bounds=cuts)
@torch.no_grad()
def test_full_equals_chunked(spec: Spec, bounds: list[int]) -> None:
    read = built(spec)
    x = read.input(LENGTH)
    close(in_chunks(read, x, bounds)[0], read(x).logits)


@EVERY
@torch.no_grad()
def test_full_equals_token_by_token(spec: Spec) -> None:
    read = built(spec)
    x = read.input(LENGTH)
    whole = read(x)
    close(in_chunks(read, x, list(range(LENGTH + 1)))[0], whole.logits)
    more = read.input(4)
    close(read(more, state=whole.state).logits, read(torch.cat([x, more], dim=1)).logits[:, LENGTH:])


@EVERY
@torch.no_grad()
def test_beyond_the_room_of_a_buffer(spec: Spec) -> None:
    """Buffers grow in steps of tens of tokens: a stream longer than that passes every kind of growth."""
    read = built(lengthened(spec, 96))
    x = read.input(90)
    close(in_chunks(read, x, [0, 3, *range(4, 80), 90])[0], read(x).logits)


@EVERY
@given(bounds=cuts, seed=st.integers(0, 99))
@torch.no_grad()
def test_padded_rows_in_chunks_equal_the_rows_alone(spec: Spec, bounds: list[int], seed: int) -> None:
    """Padding on the left, on the right, in the middle and at whole chunks, then a continuation without padding."""
    read = built(spec)
    torch.manual_seed(seed)
    x, more = read.input(LENGTH), read.input(3)
    mask = torch.rand(read.batch, LENGTH) < 0.5
    mask[0, :4], mask[1, -4:] = False, False
    logits, state = in_chunks(read, x, bounds, mask)
    after = read(more, state=state).logits
    for row in range(read.batch):
        alone = torch.cat([x[row, mask[row]], more[row]])[None]
        wanted = read.alone(row)(alone).logits[0]
        close(torch.cat([logits[row, mask[row]], after[row]]), wanted)


@MEMBERS
@torch.no_grad()
def test_a_mask_of_all_real_tokens_changes_nothing(specimen: Specimen) -> None:
    read = built(specimen.spec)
    x, real = read.input(LENGTH), torch.ones(read.batch, LENGTH, dtype=torch.bool)
    close(read(x, mask=real).logits, read(x).logits)
    close(in_chunks(read, x, [0, 3, 4, LENGTH], real)[0], read(x).logits)


@torch.no_grad()
def test_a_window_forgets_what_nobody_will_see() -> None:
    read = built(with_pattern(Local(window=3)))
    state = read(read.input(10)).state
    for _ in range(200):
        state = read(read.input(1), state=state).state
    for step in state.steps:
        assert step[0].keys.shape[2] == 2, "a window of 3 needs two keys before the next"
        assert step[0].keys.untyped_storage().nbytes() < 100 * step[0].keys[:, :, :1].nbytes, "what was forgotten is still held"


@EVERY
@torch.no_grad()
def test_rows_of_different_lengths_forget_and_stay_exact(spec: Spec) -> None:
    """Prompts of different lengths, then token by token, one row beginning anew on the way: what is forgotten is never missed."""
    read = built(lengthened(spec, 64))
    x, mask = read.input(9), torch.arange(9) < torch.tensor([[9], [2], [5]])
    rows = [x[row, mask[row]] for row in range(3)]
    state = read(x, mask=mask).state
    for t in range(24):
        if t == 12 and spec.encoder is None:
            state, rows[2] = state.reset(torch.tensor([False, False, True])), x[2, :0]
        more = read.input(1)
        out = read(more, state=state)
        state, rows = out.state, [torch.cat([row, new]) for row, new in zip(rows, more, strict=True)]
        for row in range(3):
            close(out.logits[row, -1], read.alone(row)(rows[row][None]).logits[0, -1])
    for layer, step in enumerate(state.steps):
        if spec.attention.at(layer).carries:  # a state of fixed size
            continue
        reach = spec.pattern.at(layer).reach
        assert keys_of(step[0]).shape[2] == (33 if reach is None else min(reach, 33))


@sweep("specimen", [s for s in CAUSAL if not s.spec.attention.carries])
@torch.no_grad()
def test_a_token_costs_no_copy_of_its_past(specimen: Specimen) -> None:
    read = built(specimen.spec)
    state, held = read(read.input(2)).state, set()
    for _ in range(28):
        state = read(read.input(1), state=state).state
        held.add(keys_of(state.steps[0][0]).untyped_storage().data_ptr())
    gaps = not isinstance(specimen.spec.pattern.at(0).cached(30), Range)  # these copy what remains once enough can be forgotten
    assert len(held) <= (7 if gaps else 1), "one buffer has room for all of these tokens"


@MEMBERS
def test_the_state_says_where_the_stream_stands(specimen: Specimen) -> None:
    read = built(specimen.spec)
    start = read.model.initial_state(read.batch)
    assert isinstance(start, formers.State)
    assert start.empty
    with torch.no_grad():
        state = read(read.input(5), state=read(read.input(4), state=start).state).state
        assert not state.empty
        assert state.next == 9
        mask = torch.tensor([[True, True], [False, True], [False, False]])
        assert read(read.input(2), state=state, mask=mask).state.next.tolist() == [11, 10, 9]
    assert start.empty, "a state is a value: reading on must not change it"
