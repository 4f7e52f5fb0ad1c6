"""Paths between tokens: the search against brute force, and what an operation joins against the gradients of a layer."""

from __future__ import annotations

from itertools import count, product

import torch

import formers
from formers.attention import LSH
from formers.attention.lsh.hashing import in_order
from formers.attention.lsh.reference import pair_counts
from formers.core import Context, Range
from formers.inspect.measure.links import attention_links
from formers.inspect.measure.paths import NEVER, Paths, distances, paths, stack_links
from formers.model import Spec, build
from formers.patterns import Causal, Local
from helpers import sweep

N = 9


def brute(matrices: list[torch.Tensor], size: int, most: int) -> torch.Tensor:
    """The fewest operations from j to i: every way of staying or following a link is tried."""
    found = torch.full((size, size), NEVER)
    for start in range(size):
        here = {start}
        found[start, start] = 0
        for step in range(most):
            links = matrices[step % len(matrices)]
            here |= {i for i, j in product(range(size), here) if links[i, j]}
            for i in here:
                if found[i, start] == NEVER:
                    found[i, start] = step + 1
    return found


@sweep("seed", range(8))
@sweep("turns", [1, 3])
def test_the_search_finds_the_shortest_ways(seed, turns):
    generator = torch.Generator().manual_seed(seed)
    matrices = [torch.rand(6, 6, generator=generator) < 0.2 for _ in range(turns)]
    found = distances(lambda step: matrices[step % turns], 6, patience=turns)
    assert found.equal(brute(matrices, 6, 40))


def decoder(**changes) -> Spec:
    return formers.spec("decoder", vocab=11, dim=16, heads=2, layers=4, hidden=16, length=64).replace(**changes)


def test_what_is_never_joined_is_said():
    assert paths(decoder(pattern=Local(window=1)), 5) == Paths(None, None)


def test_a_window_needs_a_layer_for_each_of_its_lengths():
    assert [paths(decoder(pattern=Local(window=k + 1)), 33).longest for k in (1, 4, 8, 32)] == [32, 8, 4, 1]
    assert paths(decoder(pattern=Causal()), 33) == Paths(1, 1.0)


def test_a_memory_is_read_in_segments():
    spec = formers.spec("transformer-xl", vocab=11, dim=16, heads=2, layers=2, length=4, memory=4)
    links = stack_links(spec, 12, 0).int().tolist()
    assert links[3] == [1] * 4 + [0] * 8
    assert links[4] == [1] * 5 + [0] * 7  # the segment before it is in the memory
    assert links[11] == [0] * 4 + [1] * 8


@sweep(
    ("options", "wanted"),
    [
        ({"alignment": "none", "bidirectional": False}, 2 * N - 1),  # to the end of the source, into the decoder, to the end of the target
        ({"alignment": "none"}, N - 1 + 1 + (N - 1) // 2),  # whichever end of the source is nearer
        ({"alignment": "dot"}, 1),
        ({"alignment": "additive"}, 1),
    ],
)
def test_from_a_source_to_a_target(options, wanted):
    assert paths(formers.spec("seq2seq", vocab=11, dim=16, **options), N).longest == wanted


SMALL = {"vocab": 11, "dim": 16, "length": 32, "dropout": 0.0}
CASES = [
    ("encoder", {}),
    ("decoder", {"norm": "reversible"}),
    ("character-transformer", {}),
    ("adaptive-span", {"span": 4, "fixed": True}),
    ("sparse-transformer", {"stride": 3, "pattern": "strided"}),
    ("sparse-transformer", {"stride": 3, "summary": 1, "pattern": "fixed", "use": "merged"}),
    ("sparse-transformer", {"stride": 3, "summary": 1, "pattern": "fixed", "use": "heads"}),
    ("sparse-transformer", {"stride": 3, "summary": 1, "pattern": "fixed", "use": "interleaved"}),
    ("linformer", {"rank": 5}),
    ("bigbird", {"block": 1, "window": 1, "random_blocks": 1}),
    ("rnn", {}),
    ("act-rnn", {"steps": 2}),
    ("word-window", {"activation": "tanh"}),
    ("word-window", {"activation": "tanh", "causal": False, "window": 1}),
    ("universal-transformer", {"steps": 1}),
    ("universal-transformer", {"steps": 1, "causal": False, "position": "relative"}),
]


@sweep(("member", "options"), CASES)
def test_gradients_of_a_layer_flow_where_its_links_say(member, options):
    torch.manual_seed(0)
    spec = formers.spec(member, **SMALL, **{**({} if member == "universal-transformer" else {"layers": 1}), **options})
    assert spec.encoder is None
    stack = build(spec).double().eval().stack
    x = torch.randn(1, N, spec.dim, dtype=torch.float64, requires_grad=True)
    hidden, _ = stack(x, Context(Range(0, N)))
    weights = torch.randn(spec.width, dtype=torch.float64)
    by_token = [torch.autograd.grad((hidden[0, i] * weights).sum(), x, retain_graph=True)[0][0] for i in range(N)]
    flows = torch.stack([gradient.abs().sum(dim=1) > 0 for gradient in by_token])
    links = stack_links(spec, N, 0) | torch.eye(N, dtype=torch.bool)
    if flows.equal(links):
        return
    # A recurrent layer takes many operations, one after the other: its gradients flow wherever there is a way.
    assert flows.equal(distances(lambda step: links, N) != NEVER)
    assert member in ("rnn", "act-rnn")


def test_hashing_joins_those_who_meet():
    spec = formers.spec("reformer", vocab=11, dim=16, heads=2, layers=1, length=32, chunk=4)
    part = spec.attention
    assert isinstance(part, LSH)
    links = attention_links(part, spec.sizes, spec.pattern, 32, 0)
    assert not links.triu(1).any()
    assert 0.05 < links.float().mean() < 0.45
    assert links.equal(attention_links(part, spec.sizes, spec.pattern, 32, 0))
    everything = attention_links(part.replace(buckets=2, rounds=8), spec.sizes, spec.pattern, 32, 0)
    assert everything.sum() > links.sum()
    alike = in_order(torch.zeros(1, 1, 1, 4, dtype=torch.int32))
    assert bool(pair_counts(alike, part.rules(False)).all())


@sweep("rounds", [1, 2])
def test_hashing_that_is_drawn_anew_in_every_layer_joins_all_in_the_end(rounds):
    spec = formers.spec("reformer", vocab=16, dim=16, heads=2, hidden=16, layers=2, chunk=16, length=64, rounds=rounds)
    found = paths(spec, 64)
    assert found.longest is not None
    assert found.longest > 2 * found.mean


def test_layers_are_taken_in_turn():
    pair = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0]], dtype=torch.bool)
    steps = count()
    found = distances(lambda step: (next(steps), pair if step % 2 else pair.roll((1, 1), (0, 1)))[1], 3)
    assert found.tolist() == [[0, NEVER, NEVER], [2, 0, NEVER], [3, 1, 0]]
