"""Randomly nested patterns: all members of a pattern agree with its mask, and a memory gives the same result in both modes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

import formers
from formers import FormersError, Model
from formers.core import Range
from formers.memory import Recurrence
from formers.model.check import check
from formers.patterns import (
    Alternate,
    BigBird,
    Blocks,
    Causal,
    Column,
    Fixed,
    Full,
    Globals,
    Local,
    LocalGrid,
    Pattern,
    PerHead,
    Strided,
    Summary,
)
from formers.patterns.structure import uniform_block
from helpers import close, refused

HEADS, LAYERS, LENGTH, ROW = 2, 3, 15, 30
"""Queries up to LENGTH are asked, in rows of ROW tokens."""
Leaf = Callable[[random.Random], Pattern]
BACK: list[Leaf] = [
    lambda r: Causal(),
    lambda r: Local(window=r.randint(1, 9), include_self=r.random() < 0.7),
    lambda r: Blocks(query=r.randint(1, 4), memory=r.randint(0, 4)),
    lambda r: Column(stride=r.randint(1, 5)),
    lambda r: Strided(stride=r.randint(1, 5)),
    lambda r: Fixed(stride=4, summary=r.randint(1, 2), subblocks=r.choice([1, 2])),
    lambda r: Summary(stride=r.choice([3, 4]), summary=1, subblocks=r.choice([1, 3])),
    lambda r: LocalGrid(height=12, width=8, query=(1, 3), memory=(1, r.randint(0, 2))),
]
AHEAD: list[Leaf] = [
    lambda r: Full(),
    lambda r: Local(window=r.randint(1, 3), causal=False),
    lambda r: LocalGrid(height=12, width=8, query=(2, 3), memory=(1, 2)),
    lambda r: Globals(tokens=r.randint(1, 3)),
    lambda r: BigBird(block=2, window=1, global_blocks=r.randint(0, 2), random_blocks=r.randint(0, 1)),
]


def nested(r: random.Random, depth: int, leaves: list[Leaf]) -> Pattern:
    """A pattern of at most so many wrappers around each leaf."""
    if depth == 0 or r.random() < 0.2:
        return r.choice(leaves)(r)
    parts = [nested(r, depth - 1, leaves) for _ in range(2)]
    return r.choice([lambda: parts[0] | parts[1], lambda: parts[0] & parts[1], lambda: PerHead(*parts), lambda: Alternate(*parts)])()


def test_what_a_nested_pattern_says_of_itself_agrees_with_its_mask() -> None:
    r = random.Random(18)
    for _ in range(40):
        pattern = nested(r, r.randint(1, 3), BACK + AHEAD)
        assert Pattern.read(pattern.model_dump()) == pattern
        for layer in range(LAYERS):
            here = pattern.at(layer)
            assert here.at(layer) == here
            assert here.is_causal or not pattern.is_causal
            agrees(here, pattern.mask(ROW, HEADS, layer))


def agrees(pattern: Pattern, mask: Tensor) -> None:
    """Fails unless what a pattern says of itself is true of its mask (heads, ROW, ROW)."""
    here, row = torch.arange(ROW), mask.any(dim=0)
    bound = pattern.of(ROW)
    assert not bound.by_length
    if pattern.max_length is not None:
        assert pattern.of(pattern.max_length).max_length == pattern.max_length
        with refused("does not fit"):
            pattern.of(pattern.max_length + 1)
    assert not pattern.is_causal or not row.triu(1).any()
    assert pattern.by_head or torch.equal(mask[0], mask[1])
    assert pattern.by_length or torch.equal(pattern.mask(LENGTH, HEADS), mask[:, :LENGTH, :LENGTH])
    first = here // uniform_block(pattern) * uniform_block(pattern)
    assert torch.equal(mask, mask[:, first][:, :, first])
    head = torch.arange(HEADS)[:, None, None]
    assert torch.equal(torch.as_tensor(pattern.of(torch.tensor(ROW)).allows(here[:, None], here, head)).expand_as(mask), mask)
    back = (here[:, None] - here).masked_fill(~row, 0)
    assert pattern.reach is None or int(back.max()) <= pattern.reach
    for t in range(LENGTH):
        known, read, oldest = pattern.cached(t), pattern.reads(t), pattern.oldest(t)
        kept = torch.isin(here[:t], known.tensor())
        needed = row[t:, :t].any(dim=0)
        assert 0 <= oldest <= t
        assert oldest <= pattern.oldest(t + 1)
        assert known.stop == t
        assert not (needed & ~kept).any(), f"at t={t} keys are forgotten that are still seen"
        assert not needed[:oldest].any()
        assert pattern.gaps or isinstance(known, Range)
        if read is not None:
            seen = set(row[t].nonzero().flatten().tolist())
            assert pattern.is_causal
            assert seen <= set(read.tensor().tolist()) <= {*known.tensor().tolist(), t}
    for queries in (Range(i, n) for i in (0, 3, 6) for n in (1, 3)):
        for keys in (Range(j, n) for j in range(7) for n in (1, 3)):
            open_ = mask[:, queries.start : queries.stop, keys.start : keys.stop].all()
            assert open_ or not bound.covers(queries, keys), (queries, keys)


def in_segments(model: Model, tokens: Tensor, size: int, mask: Tensor | None = None) -> Tensor:
    """Logits of tokens (batch, length), read in segments that each go on from the one before; of real ones alone."""
    state, found = model.initial_state(len(tokens)), []
    for at in range(0, tokens.shape[1], size):
        here = slice(at, at + size)
        out = model(tokens[:, here], state=state, mask=None if mask is None else mask[:, here])
        state = out.state
        found.append(out.logits.detach())
    logits = torch.cat(found, dim=1)
    return logits if mask is None else logits[mask]


def test_a_memory_gives_one_function_in_training_and_in_evaluation() -> None:
    """Training reads the memory as hidden states, evaluation as keys and values, of which it may keep fewer."""
    r = random.Random(3)
    spec = formers.spec("transformer-xl", vocab=11, dim=8, heads=HEADS, layers=2, hidden=8, length=6, memory=4, dropout=0.0)
    accepted = refusals = 0
    while accepted < 16:
        here = spec.replace(pattern=nested(r, r.randint(1, 3), BACK), memory=Recurrence(length=r.choice([1, 3, 9])))
        try:
            check(here)
        except FormersError:
            refusals += 1
            continue
        accepted += 1
        model = formers.build(here).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        tokens, mask = torch.randint(11, (2, 18)), torch.rand(2, 18) < 0.7
        for size, padding in ((18, None), (4, None), (5, mask)):
            trained = in_segments(model.train(), tokens, size, padding)
            with torch.no_grad():
                close(in_segments(model.eval(), tokens, size, padding), trained)
    assert refusals > 3, "hardly a pattern keeps keys with gaps between them, so that the refusal of these is not tested"
