"""Decoding with the cache gives the logits of recomputing everything: over every causal member, prompts, splits, batches and types.

float64 agrees to 1e-10. bfloat16 rounds every product to 8 bits, and other shapes round in another order: over these specimens the
logits of the two ways differ by at most LOOSE of the largest logit. LSH attention is left out there: where two directions of a hash
agree to 8 bits, the two ways may choose different buckets, and then other keys are attended to.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from contracts.specimens import CAUSAL, Specimen, Subject, built, patterns, subject
from formers.generation.reader import Reader
from helpers import close, sweep

MEMBERS = sweep("specimen", CAUSAL)
WITHOUT_HASHES = sweep("specimen", [specimen for specimen in CAUSAL if not specimen.spec.draws])
WRITERS = sweep("specimen", [specimen for specimen in CAUSAL if specimen.spec.image is None])
LOOSE = 0.05
LONGEST, ROWS = 24, 4


rows = st.lists(st.integers(0, LONGEST), min_size=1, max_size=ROWS)
"""How many tokens each row of a batch has."""
cuts = st.sets(st.integers(1, LONGEST - 1))


@MEMBERS
@given(lengths=rows, cuts=cuts, seed=st.integers(0, 99))
@settings(max_examples=5)
@torch.no_grad()
def test_cached_equals_uncached(specimen: Specimen, lengths: list[int], cuts: set[int], seed: int) -> None:
    agree(built(specimen.spec, ROWS, torch.float64), lengths, cuts, seed, 1e-10)


@pytest.mark.slow
@MEMBERS
@given(lengths=rows, cuts=cuts, seed=st.integers(0, 99))
@settings(max_examples=25)
@torch.no_grad()
def test_cached_equals_uncached_in_many_splits(specimen: Specimen, lengths: list[int], cuts: set[int], seed: int) -> None:
    agree(built(specimen.spec, ROWS, torch.float64), lengths, cuts, seed, 1e-10)


@WITHOUT_HASHES
@given(lengths=rows, cuts=cuts, seed=st.integers(0, 99))
@settings(max_examples=4)
@torch.no_grad()
def test_cached_equals_uncached_in_bfloat16(specimen: Specimen, lengths: list[int], cuts: set[int], seed: int) -> None:
    agree(built(specimen.spec, ROWS, torch.bfloat16), lengths, cuts, seed, None)


@pytest.mark.slow
@WITHOUT_HASHES
@given(lengths=rows, cuts=cuts, seed=st.integers(0, 99))
@settings(max_examples=10)
@torch.no_grad()
def test_cached_equals_uncached_in_bfloat16_in_many_splits(specimen: Specimen, lengths: list[int], cuts: set[int], seed: int) -> None:
    agree(built(specimen.spec, ROWS, torch.bfloat16), lengths, cuts, seed, None)


def agree(read: Subject, lengths: list[int], cuts: set[int], seed: int, tolerance: float | None) -> None:
    """Rows of these lengths, read together in stretches between the cuts, against each read alone and at once."""
    torch.manual_seed(seed)
    read = read.rows(list(range(len(lengths))))
    x = read.input(LONGEST)
    mask = torch.arange(LONGEST) < torch.tensor(lengths)[:, None]
    state, found = read.model.initial_state(read.batch), []
    for a, b in itertools.pairwise([0, *sorted(cuts), LONGEST]):
        out = read(x[:, a:b], state=state, mask=mask[:, a:b])
        state = out.state
        found.append(out.logits)
    together = torch.cat(found, dim=1)
    for row, length in enumerate(lengths):
        if length:
            alone = read.alone(row)(x[row : row + 1, :length]).logits[0]
            close(together[row, :length], alone, LOOSE * float(alone.abs().max()) if tolerance is None else tolerance)


@WRITERS
@sweep("batch", [1, 3])
@torch.no_grad()
def test_a_reader_gives_the_logits_of_reading_everything_anew(specimen: Specimen, batch: int) -> None:
    """What generation reads with, its window slides included: a model with absolute positions re-reads what is left of its window."""
    read = built(specimen.spec, ROWS).rows(list(range(batch)))
    small = subject(specimen.spec.replace(length=10), batch=batch)
    for model in (read.model, small.model):
        limit = model.spec.position.trained_positions(model.spec.length) if model.spec.position.absolute else None
        sources = None if read.source is None else [row.tolist() for row in read.source]
        tokens = [[r + 1, 2, 3] for r in range(batch)]
        reader, start = Reader(model, tokens, sources), 0
        for _ in range(25):
            now = reader.logits()
            width = len(tokens[0]) - start
            if limit is not None and width > limit:
                start, width = len(tokens[0]) - (limit // 2 + 1), limit // 2 + 1
            x = torch.tensor([row[start:] for row in tokens])
            close(now, (model(x) if sources is None else model(read.source, x)).logits[:, -1])
            new = now.argmax(-1).tolist()
            reader.push(new)
            tokens = [[*row, token] for row, token in zip(tokens, new, strict=True)]


@sweep("pattern", [p for p in patterns() if p.is_causal])
def test_generation_under_every_causal_pattern_equals_recomputing(pattern) -> None:
    torch.manual_seed(0)
    spec = next(s for s in CAUSAL if s.member == "decoder").spec.replace(pattern=pattern, length=64)
    model = subject(spec).model
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
    written = formers.generate(model, prompts, max_new_tokens=30, temperature=0)
    for prompt, row in zip(prompts, written, strict=True):
        tokens = list(prompt)
        for _ in range(30):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert row == tokens
