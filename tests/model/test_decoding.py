"""Decoding caches only what a pattern may still read, reads only what it needs, and is exact: whole == chunks == token by token."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import formers
from contracts.specimens import MEMBERS, Subject, subject
from formers import State
from formers.attention import multihead
from formers.attention.executors import sdpa
from formers.core import KVCache, StridedPositions
from formers.core.cache import SLACK
from formers.core.serialise import join_rows, pack, unpack
from formers.depth import Stacked
from formers.patterns import Alternate, Column, Fixed, Local, Pattern, PerHead, Strided, Summary
from helpers import close, gradients, sweep

LENGTH = 150
GAPS = [
    Fixed(stride=4, summary=1),
    Fixed(stride=16, summary=3),
    Fixed(stride=7, summary=2, subblocks=3),
    Summary(stride=5, summary=2),
    PerHead(*Fixed(stride=8, summary=2).parts()),
    Local(window=11) | Summary(stride=8, summary=1),
    Alternate(*Fixed(stride=8, summary=2).parts()),
]
ALL_KEPT = [Strided(stride=6), Column(stride=5), PerHead(*Strided(stride=6).parts()), Alternate(*Strided(stride=6).parts())]
SWEPT = sweep("pattern", [*GAPS, *ALL_KEPT])
WITH_GAPS = sweep("pattern", GAPS)


def reader(pattern: Pattern, batch: int = 2, **changes: object) -> Subject:
    spec = formers.spec("decoder", **MEMBERS["decoder"][0])
    return subject(spec.replace(pattern=pattern, **{"length": 2 * LENGTH, **changes}), batch=batch)


def read_on(read: Subject, x: Tensor, state: State, cuts: list[int]) -> tuple[Tensor, State]:
    """The logits of x, read up to each cut in turn, and the state at the end."""
    logits, start = [], 0
    for stop in [*cuts, x.shape[1]]:
        if stop > start:
            out = read(x[:, start:stop], state=state)
            state, start = out.state, stop
            logits.append(out.logits)
    return torch.cat(logits, dim=1), state


def caches(state: State) -> list[KVCache]:
    return [step[0] for step in state.steps]


@SWEPT
@torch.no_grad()
def test_whole_equals_chunks_equals_tokens(pattern: Pattern) -> None:
    read, choice = reader(pattern), random.Random(3)
    x = read.input(LENGTH)
    whole = read(x).logits
    ways = [list(range(1, LENGTH)), *(sorted(choice.sample(range(1, LENGTH), k)) for k in (2, 9, 40))]
    for cuts in ways:
        close(read_on(read, x, read.model.initial_state(2), cuts)[0], whole)


@WITH_GAPS
@torch.no_grad()
def test_memory_is_bounded(pattern: Pattern) -> None:
    """What is held is what is kept, and fewer than SLACK keys more, or an eighth."""
    read = reader(pattern, batch=1)
    state = read.model.initial_state(1)
    for t in range(1, LENGTH):
        state = read(read.input(1), state=state).state
        for layer, cache in enumerate(caches(state)):
            held, kept = cache.keys.shape[2], pattern.at(layer).cached(t).length
            assert held == cache.positions.length
            assert held - kept < max(1, min(SLACK, held // 8)), (t, layer)
    assert any(isinstance(cache.positions, StridedPositions) for cache in caches(state)), "nothing was forgotten"


@sweep(("stride", "summary", "subblocks"), [(64, 8, 1), (100, 10, 2), (4, 1, 1)])
@torch.no_grad()
def test_fixed_holds_the_summaries_and_the_open_block(stride: int, summary: int, subblocks: int) -> None:
    read = reader(Fixed(stride=stride, summary=summary, subblocks=subblocks), batch=1, length=1000, depth=Stacked(layers=1))
    state, most = read(read.input(500)).state, 0
    for t in range(501, 900):
        state = read(read.input(1), state=state).state
        (cache,) = caches(state)
        assert cache.keys.shape[2] <= math.ceil(t / stride) * summary * subblocks + stride + SLACK
        most = max(most, cache.keys.untyped_storage().nbytes() // cache.keys[:, :, :1].nbytes)
    bound = math.ceil(900 / stride) * summary * subblocks + stride + SLACK
    assert most <= 1.5 * bound + SLACK, "buffers have room for half as many more"


@torch.no_grad()
def test_a_token_costs_no_copy_of_its_past() -> None:
    """A buffer is made anew when a block closes, or when it is full, not at every token."""
    read = reader(Fixed(stride=32, summary=4), batch=1)
    state, held = read(read.input(64)).state, []
    for _ in range(128):
        state = read(read.input(1), state=state).state
        held.append(caches(state)[0].keys.untyped_storage().data_ptr())
    assert sum(a != b for a, b in pairwise(held)) <= 2 * 128 // 32


@WITH_GAPS
@torch.no_grad()
def test_two_continuations_over_the_end_of_a_block_do_not_disturb_each_other(pattern: Pattern) -> None:
    read = reader(pattern)
    x = read.input(37)
    stem = read_on(read, x, read.model.initial_state(2), list(range(1, 37)))[1]
    before = [(c.keys.clone(), c.values.clone()) for c in caches(stem)]
    branches = [read.input(n) for n in (30, 30, 7)]
    for cuts in (list(range(1, 30)), [3]):
        for branch in branches:
            found, _ = read_on(read, branch, stem, [c for c in cuts if c < branch.shape[1]])
            close(found, read(torch.cat([x, branch], dim=1)).logits[:, 37:])
    for cache, (keys, values) in zip(caches(stem), before, strict=True):
        assert torch.equal(cache.keys, keys)
        assert torch.equal(cache.values, values)


@SWEPT
@torch.no_grad()
def test_rows_are_selected_and_reset(pattern: Pattern) -> None:
    read = reader(pattern, batch=3)
    x = read.input(41)
    state = read_on(read, x, read.model.initial_state(3), list(range(1, 41)))[1]
    rows = [2, 0, 0, 1]
    more = read.rows(rows).input(20)
    found, after = read_on(read.rows(rows), more, state.select(torch.tensor(rows)), list(range(1, 20)))
    close(found, read.rows(rows)(torch.cat([x[rows], more], dim=1)).logits[:, 41:])
    done = torch.tensor([False, True, False, True])
    last = read.rows(rows).input(9)
    found, _ = read_on(read.rows(rows), last, after.reset(done), list(range(1, 9)))
    close(found[done], read.rows(rows)(last).logits[done])
    whole = torch.cat([x[rows], more, last], dim=1)
    close(found[~done], read.rows(rows)(whole).logits[~done, 61:])


@WITH_GAPS
@torch.no_grad()
def test_a_state_with_gaps_survives_the_way_through_a_file(pattern: Pattern) -> None:
    read = reader(pattern)
    state = read(read.input(61)).state
    assert any(isinstance(cache.positions, StridedPositions) for cache in caches(state))
    x, halves = read.input(12), []
    for row in (0, 1):
        tensors: dict[str, Tensor] = {}
        halves.append((json.loads(json.dumps(pack(state.select(torch.tensor([row])), tensors))), tensors))
    again = unpack(*join_rows(halves))
    assert torch.equal(read_on(read, x, again, [5])[0], read_on(read, x, state, [5])[0])


@SWEPT
def test_gradients_are_those_over_all_keys(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a token behind a state that has forgotten, made in any mode, and of one that has forgotten nothing."""
    read = reader(pattern)
    x = read.input(60)
    weights = list(read.model.parameters())
    with torch.inference_mode():
        fast = read(x[:, :37]).state
    states = [fast, read(x[:, :37], state=read.model.initial_state(2)).state]
    with monkeypatch.context() as forgetting:
        forgetting.setattr(multihead, "next_cache", lambda cache, pattern, context, reach: cache.detach())
        with torch.no_grad():
            whole = read(x[:, :37]).state
    wanted = gradients(read(x[:, 37:38], state=whole).logits, weights)
    for state in states:
        assert not any(t.requires_grad for c in caches(state) for t in (c.keys, c.values))
        one = read(x[:, 37:38], state=state)
        for slope, right in zip(gradients(one.logits, weights), wanted, strict=True):
            close(slope, right)
        close(read(x[:, 38:], state=one.state).logits.detach(), read(x).logits[:, 38:].detach())


@pytest.mark.slow
@sweep("pattern", [Fixed(stride=4, summary=1), PerHead(*Strided(stride=4).parts())])
@torch.no_grad()
def test_tokens_compile_into_one_graph(pattern: Pattern) -> None:
    torch._dynamo.reset()
    read = reader(pattern, depth=Stacked(layers=1))
    compiled = replace(read, model=torch.compile(read.model, fullgraph=True, backend="eager"))
    x = read.input(22)
    start = read(x[:, :19]).state
    found, _ = read_on(compiled, x[:, 19:], start, [1, 2])  # over the end of a block
    close(found, read(x).logits[:, 19:])


@torch.no_grad()
def test_a_token_reads_what_the_pattern_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys that the kernel is given, at the end of 2,000 tokens."""
    given: list[tuple[int, bool]] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        given.append((k.shape[2], attn_mask is not None))
        return scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, **options)

    n, stride, summary = 2000, 50, 5
    fixed = Fixed(stride=stride, summary=summary)
    for pattern, most in (
        (Strided(stride=stride), [stride + n // stride] * 2),
        (fixed, [n // stride * summary + 1] * 2),
        (Alternate(*Strided(stride=stride).parts()), [stride, n // stride + 1]),
        (Alternate(*fixed.parts()), [stride, n // stride * summary + 1]),
    ):
        read = reader(pattern, batch=1, length=n + 1)
        state = read(read.input(n)).state
        with monkeypatch.context() as counting:
            counting.setattr(sdpa, "scaled_dot_product_attention", kernel)
            read(read.input(1), state=state)
        assert all(keys <= limit for (keys, _), limit in zip(given, most, strict=True)), (pattern, given)
        assert not any(masked for _, masked in given), "what is read is all that is seen"
        given.clear()


@WITH_GAPS
def test_generation_with_beams_and_a_sliding_window(pattern: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written with the cache is what is written by reading everything for every token."""
    read = reader(pattern, batch=1, length=40)
    prompt = read.input(30)
    row, window = prompt, prompt
    with torch.no_grad():
        for _ in range(40):
            if window.shape[1] > 40:  # beyond what the model was trained on it reads the last half again
                window = row[:, -21:]
            new = read.model(window).logits[:, -1:].argmax(dim=-1)
            row, window = torch.cat([row, new], dim=1), torch.cat([window, new], dim=1)
    found = formers.generate(read.model, prompt, max_new_tokens=40, temperature=0)
    assert found[0].tolist() == row[0].tolist()
    assert torch.equal(formers.generate(read.model, prompt, max_new_tokens=9, beams=1), row[:, :39])
    best = formers.generate(read.model, prompt, max_new_tokens=9, beams=3)
    with monkeypatch.context() as forgetting:
        forgetting.setattr(multihead, "next_cache", lambda cache, pattern, context, reach: cache.detach())
        again = formers.generate(read.model, prompt, max_new_tokens=9, beams=3)
    assert torch.equal(best, again), "it matters what was forgotten"
