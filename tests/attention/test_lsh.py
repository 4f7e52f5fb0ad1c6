"""LSH attention against loops at every length, against dense attention, padded, and causal."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from formers.attention import LSH, ByLayer, DotProduct, SharedQK
from formers.attention.lsh.hashing import Hashed, factors, fitting, fixed_rotations, hashes, in_order
from formers.attention.lsh.layer import LSHAttention
from formers.attention.lsh.paths import SHORT
from formers.attention.lsh.reference import pair_counts
from formers.core import Context, Range, Sizes
from formers.patterns import Causal, Full
from helpers import close, gradients, refused, sweep

HEADS, DIM, WIDTH, CHUNK = 2, 10, 4, 4
SIZES = Sizes(dim=DIM, heads=HEADS, head_dim=WIDTH, value_dim=5, length=32, depth_steps=1, dropout=0.0, attention_dropout=0.0)
SMALL = {"chunk": CHUNK, "buckets": 4}
# Every choice that changes what a query meets.
KINDS = [
    LSH(**SMALL),
    LSH(**SMALL, rounds=3, duplicates=True),
    LSH(chunk=CHUNK, rounds=3, buckets=(2, 4), scaled=False, bias=True),
    LSH(**SMALL, reach="chunk"),
    LSH(**SMALL, rounds=3, reach="chunk", duplicates=True, itself="always"),
    LSH(**SMALL, reach="chunk", look_back=0),
    LSH(**SMALL, reach="chunk", look_back=2, look_ahead=1),
    LSH(**SMALL, rounds=3, reach="chunk", across_buckets=True),
    LSH(**SMALL, reach="chunk", across_buckets=True, duplicates=True, look_ahead=1),
    LSH(**SMALL, reach="chunk", across_buckets=True, wrap="rounds"),
    LSH(**SMALL, rounds=3, reach="chunk", across_buckets=True, duplicates=True, wrap="rounds"),
]
swept = sweep("part", KINDS)
either = sweep("causal", [True, False])


@pytest.fixture(autouse=True, params=[0, SHORT], ids=["tiles", "as short rows are"])
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows by tiles, too."""
    monkeypatch.setattr("formers.attention.lsh.paths.SHORT", request.param)


def sublayer(part: LSH | SharedQK, causal: bool) -> torch.nn.Module:
    """A sublayer in float64 with no parameter left at 0."""
    made = part.build(SIZES, Causal() if causal else Full()).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def read(layer: torch.nn.Module, x: Tensor, valid: Tensor | None = None, update: int | None = None) -> Tensor:
    return layer(x, Context(Range(0, x.shape[1]), valid, update=update), None, 0)[0]


def tokens(batch: int, n: int) -> Tensor:
    return torch.randn(batch, n, DIM, dtype=torch.float64, requires_grad=True)


# The oracle: one row, head by head, round by round, token by token, from the paper and from nothing of ours but the random numbers.


def bucket(q: Tensor, directions: Tensor, counts: tuple[int, ...]) -> int:
    """The bucket of one query: the likest of the directions and their opposites, factor by factor."""
    found, share, first = 0, 1, 0
    for count in counts:
        y = (q @ directions[:, first : first + count // 2]).tolist()
        both = y + [-each for each in y]
        found += share * both.index(max(both))
        first, share = first + count // 2, share * count
    return found


def met(buckets: list[list[int]], part: LSH, causal: bool) -> list[Counter[int]]:
    """How often each query meets each key, with the buckets of each round."""
    n, rounds = len(buckets[0]), len(buckets)
    count = math.ceil(n / part.chunk)
    chunks = []
    for row in buckets:
        order = sorted(range(n), key=lambda t, row=row: (row[t], t))
        chunks.append([order[start : start + part.chunk] for start in range(0, n, part.chunk)])
    found: list[Counter[int]] = [Counter() for _ in range(n)]
    for r, row in enumerate(buckets):
        for i in range(n):
            if part.reach == "bucket":
                keys = [j for j in range(n) if row[j] == row[i]]
            else:
                mine = next(c for c, chunk in enumerate(chunks[r]) if i in chunk)
                looked = range(mine - part.look_back, mine + part.look_ahead + 1)
                if not part.across_buckets:
                    keys = [j for c in looked if 0 <= c < count for j in chunks[r][c] if row[j] == row[i]]
                elif part.wrap == "round":
                    keys = [j for c in {c % count for c in looked} for j in chunks[r][c]]
                else:
                    everywhere = [chunk for one in chunks for chunk in one]
                    keys = [j for c in looked for j in everywhere[(r * count + c) % (rounds * count)]]
            found[i].update(j for j in keys if j <= i or not causal)
    return found


def by_loops(layer: LSHAttention, part: LSH, causal: bool, x: Tensor) -> Tensor:
    """The sublayer's answer (n, dim) for one row x (n, dim)."""
    both = layer.qv(x)
    q, v = both.split([HEADS * WIDTH, HEADS * SIZES.value_dim], dim=-1)
    counts = part.factors(SIZES.length)
    directions = fixed_rotations(HEADS, WIDTH, part.rounds, sum(counts) // 2, part.seed, 0).double()
    heads = []
    for m in range(HEADS):
        mine, values = q.unflatten(-1, (HEADS, -1))[:, m], v.unflatten(-1, (HEADS, -1))[:, m]
        rounds = [[bucket(one.detach(), directions[r, m], counts) for one in mine] for r in range(part.rounds)]
        answers = []
        for i, seen in enumerate(met(rounds, part, causal)):
            if part.itself == "alone" and len(seen) > 1:
                del seen[i]
            scale = WIDTH**-0.5 if part.scaled else 1.0
            scores = [mine[i] @ mine[j] / mine[j].norm() * scale + math.log(seen[j] if part.duplicates else 1) for j in seen]
            weights = torch.stack(scores).softmax(dim=0)
            answers.append(sum(weight * values[j] for weight, j in zip(weights, seen, strict=True)))
        heads.append(torch.stack(answers))
    return layer.out(torch.cat(heads, dim=-1))


@swept
@either
def test_it_is_attention_over_the_union_of_what_is_met_at_every_length(part: LSH, causal: bool) -> None:
    layer = sublayer(part, causal)
    for n in range(1, 2 * CHUNK + 2):
        x = tokens(1, n)
        close(read(layer, x)[0], by_loops(layer, part, causal, x[0]))


@swept
@either
def test_its_gradients_are_those_of_the_loops(part: LSH, causal: bool) -> None:
    layer, x = sublayer(part, causal), tokens(1, 4 * CHUNK - 1)
    given = [x, *layer.parameters()]
    found, wanted = read(layer, x)[0], by_loops(layer, part, causal, x[0])
    close(found, wanted)
    for mine, theirs in zip(gradients(found, given), gradients(wanted, given), strict=True):
        close(mine, theirs)


@swept
@either
def test_a_padded_row_is_the_row_alone(part: LSH, causal: bool) -> None:
    layer, n = sublayer(part, causal), 5 * CHUNK
    lengths = (n, n - 1, 2 * CHUNK + 1, CHUNK, 1)
    x, valid = tokens(len(lengths), n), torch.arange(n) < torch.tensor(lengths)[:, None]
    found = read(layer, x, valid)
    assert found.isfinite().all()
    for row, length in enumerate(lengths):
        close(found[row, :length], read(layer, x[row : row + 1, :length])[0])
    (gradient,) = gradients(found[valid], [x])
    assert (gradient[~valid] == 0).all(), "padding has no part in anything"


# What dense attention says.


@either
@sweep("rounds", [1, 3])
@sweep("wrap", ["round", "rounds"])
def test_one_chunk_is_dense_attention(causal: bool, rounds: int, wrap: str) -> None:
    part = LSH(chunk=16, rounds=rounds, reach="chunk", across_buckets=True, duplicates=True, wrap=wrap)
    layer, dense = sublayer(part, causal), sublayer(SharedQK(), causal)
    layer.load_state_dict(dense.state_dict())
    for n in (1, 2, 9, 16):
        x = tokens(2, n)
        found, wanted = read(layer, x), read(dense, x)
        close(found, wanted)
        for mine, theirs in zip(gradients(found, [x, *layer.parameters()]), gradients(wanted, [x, *dense.parameters()]), strict=True):
            close(mine, theirs)


@either
def test_two_chunks_that_look_back_around_the_end_are_dense_attention(causal: bool) -> None:
    layer, dense = sublayer(LSH(chunk=8, rounds=1, reach="chunk", across_buckets=True), causal), sublayer(SharedQK(), causal)
    layer.load_state_dict(dense.state_dict())
    x = tokens(2, 16)
    close(read(layer, x), read(dense, x))


@either
def test_dense_attention_with_queries_as_keys_is_its_equation(causal: bool) -> None:
    layer, x = sublayer(SharedQK(scaled=False), causal), tokens(2, 7)
    q, v = layer.split_all(layer.qv(x), 2)
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).transpose(-1, -2)
    itself = torch.eye(7, dtype=torch.bool)
    shut = itself | torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else itself.clone()
    shut[0, 0] = not causal  # the first token of a causal row has nobody else
    close(read(layer, x), layer.merge(scores.masked_fill(shut, -math.inf).softmax(dim=-1) @ v))


# Hashing.


@sweep("counts", [(2,), (8,), (2, 4), (6, 2, 4)])
def test_a_hash_is_the_likest_direction_whatever_the_length_of_a_vector(counts: tuple[int, ...]) -> None:
    x, directions = torch.randn(2, HEADS, 9, WIDTH), torch.randn(3, HEADS, WIDTH, sum(counts) // 2)
    found = hashes(x, directions, counts)
    assert found.shape == (2, HEADS, 3, 9)
    assert (found.min() >= 0) & (found.max() < math.prod(counts))
    for scale in (0.3, 7.0, 1e4 * torch.rand(2, HEADS, 9, 1) + 1e-3):
        assert found.equal(hashes(scale * x, directions, counts))
    for b, m, r, t in [(0, 0, 0, 0), (1, 1, 2, 8), (1, 0, 1, 4)]:
        assert found[b, m, r, t] == bucket(x[b, m, t], directions[r, m], counts)
    if len(counts) == 1:
        assert (hashes(-x, directions, counts) - found).abs().eq(counts[0] // 2).all(), "the opposite falls into the opposite bucket"


def test_buckets_are_made_of_even_factors_and_fit_the_length() -> None:
    for count in range(2, 4100, 2):
        parts = factors(count)
        assert math.prod(parts) == count
        assert all(part % 2 == 0 for part in parts)
    assert factors(64) == (64,)
    assert factors(2048) == (32, 64)
    for length, chunk in [(1, 64), (64, 64), (65, 64), (512, 64), (65_536, 64), (100_000, 7)]:
        buckets = fitting(length, chunk)
        assert 2 * length / chunk <= buckets < 2 * length / chunk + 64, "two for each chunk, or a few more"
    assert LSH(buckets=(4, 6)).factors(512) == (4, 6)
    assert LSH().factors(512) == (16,)
    assert sum(LSH().factors(65_536)) < 128


def test_tokens_of_a_bucket_stand_side_by_side_in_the_order_of_their_positions() -> None:
    buckets = torch.randint(5, (2, HEADS, 3, 40), dtype=torch.int32)
    _, order = in_order(buckets)
    for row in order.flatten(0, 2).tolist():
        assert sorted(row) == list(range(40))
    key = buckets.gather(-1, order).long() * 40 + order
    assert (key.diff(dim=-1) > 0).all()


def test_rotations_are_fixed_in_evaluation_and_drawn_anew_in_each_step_of_a_training() -> None:
    layer, x = sublayer(LSH(**SMALL), True), tokens(1, 24)
    assert read(layer, x).equal(read(layer, x, update=3))
    layer.train()
    assert read(layer, x, update=3).equal(read(layer, x, update=3))
    assert not read(layer, x, update=3).equal(read(layer, x, update=4))
    other = sublayer(LSH(**SMALL, seed=1), True).train()
    other.load_state_dict(layer.state_dict())
    assert not read(layer, x, update=3).equal(read(other, x, update=3))
    assert not read(layer, x).equal(read(layer, x)), "where nobody counts the steps, every pass draws"


def test_evaluation_may_have_more_rounds_of_which_the_first_are_the_same() -> None:
    few, many = LSH(**SMALL, rounds=2), LSH(**SMALL, rounds=2, evaluation_rounds=4)
    layer, more, four = sublayer(few, True), sublayer(many, True), sublayer(LSH(**SMALL, rounds=4), True)
    for other in (more, four):
        other.load_state_dict(layer.state_dict())
    x = tokens(1, 24)
    close(read(more, x), read(four, x))
    assert not torch.allclose(read(more, x), read(layer, x))
    q, _ = layer.split_all(layer.qv(x), 2)
    context = Context(Range(0, 24))
    assert more.hash(q, more.draw(context, 0), context)[:, :, :2].equal(layer.hash(q, layer.draw(context, 0), context))
    more.train()
    layer.train()
    assert read(more, x, update=1).equal(read(layer, x, update=1)), "training has its own number of rounds"


# The future.


@sweep("part", [p for p in KINDS if p.reach == "bucket"])
@torch.no_grad()
def test_with_whole_buckets_no_later_token_changes_anything(part: LSH) -> None:
    layer, n = sublayer(part, True).float(), 3 * CHUNK
    x = torch.randn(2, n, DIM)
    before = read(layer, x)
    for t in range(n):
        changed = x.clone()
        changed[:, t:] = torch.randn(2, n - t, DIM)
        assert read(layer, changed)[:, :t].equal(before[:, :t]), f"token {t} reaches answers before it"


@swept
def test_no_future_value_enters(part: LSH) -> None:
    """Nothing before a token depends on it by a gradient, nor by a change that leaves the buckets as they are."""
    layer, n = sublayer(part.replace(bias=False), True), 5 * CHUNK
    x = tokens(2, n)
    y = read(layer, x)
    for i in range(0, n, 3):
        (gradient,) = torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)
        assert (gradient[:, i + 1 :] == 0).all(), f"answer {i} has a gradient by a later token"
        # Twice as long a vector has the same bucket and the same key, and twice its value.
        louder = torch.cat([x[:, : i + 1], 2 * x[:, i + 1 :]], dim=1)
        assert read(layer, louder)[:, : i + 1].equal(y[:, : i + 1])
    assert not read(layer, 2 * x).equal(y)


def moved(part: LSH, length: int, draws: int) -> float:
    """The share of queries whose set of keys is changed by another last token, over random rows of which the buckets are random."""
    share = 0.0
    for _ in range(draws):
        buckets = torch.randint(math.prod(part.factors(length)), (1, 1, part.rounds, length))
        other = buckets.clone()
        other[..., -1] = torch.randint(math.prod(part.factors(length)), (part.rounds,))
        before, after = (pair_counts(in_order(b), part.rules(True))[..., :-1, :-1] for b in (buckets, other))
        share += (before != after).any(dim=-1).double().mean().item() / draws
    return share


def test_how_often_a_later_token_moves_what_an_earlier_one_sees() -> None:
    """One token moves the boundaries of all chunks between its old bucket and its new one; it matters to buckets larger than a chunk."""
    assert moved(LSH(chunk=16), 128, 20) == 0
    fits = moved(LSH(chunk=16, reach="chunk"), 128, 20)
    larger = moved(LSH(chunk=16, reach="chunk", buckets=4), 128, 20)
    across = moved(LSH(chunk=16, reach="chunk", across_buckets=True), 128, 20)
    assert fits < 0.01 < larger < across < 0.9, (fits, larger, across)


def test_what_one_meets_by_hand() -> None:
    buckets = torch.tensor([[[[1, 0, 1, 0, 0, 1]]]])
    hashed = Hashed(*in_order(buckets))  # 1 3 | 4 0 | 2 5
    assert hashed.order.tolist() == [[[[1, 3, 4, 0, 2, 5]]]]
    whole = pair_counts(hashed, LSH(chunk=2).rules(True))[0, 0].bool()
    assert [row.nonzero()[:, 0].tolist() for row in whole] == [[0], [1], [0, 2], [1, 3], [1, 3, 4], [0, 2, 5]]
    chunked = pair_counts(hashed, LSH(chunk=2, reach="chunk", look_back=0).rules(True))[0, 0].bool()
    assert [row.nonzero()[:, 0].tolist() for row in chunked] == [[0], [1], [2], [1, 3], [4], [2, 5]]
    across = pair_counts(hashed, LSH(chunk=2, reach="chunk", look_back=0, across_buckets=True).rules(False))[0, 0].bool()
    assert [row.nonzero()[:, 0].tolist() for row in across] == [[0, 4], [1, 3], [2, 5], [1, 3], [0, 4], [2, 5]]


# What cannot be.


@sweep(("buckets", "word"), [(7, "odd"), ((4, 3), "odd"), (1, "too few"), ((2, 1), "too few")])
def test_buckets_come_in_pairs(buckets: object, word: str) -> None:
    with refused(f"buckets={buckets}", word, "use "):
        LSH(buckets=buckets)


@sweep("field", ["rounds", "chunk", "buckets", "evaluation_rounds"])
def test_nothing_of_something_is_refused(field: str) -> None:
    with refused(field, "0"):
        LSH(**{field: 0})


def test_whole_buckets_have_no_neighbours() -> None:
    with refused("across_buckets", "reach='chunk'"):
        LSH(across_buckets=True)
    with refused("reach", "'row'"):
        LSH(reach="row")


def test_attention_by_layer_takes_turns() -> None:
    one, two = DotProduct(bias=False), LSH(chunk=4)
    turns = ByLayer(one, two)
    assert [turns.at(layer) for layer in range(4)] == [one, two, one, two]
    assert turns == ByLayer([one, two]) == ByLayer(parts=(one, two))
    assert turns.draws
    assert not ByLayer(one).draws
    for wrong in ((), (turns, one)):
        with refused("ByLayer"):
            ByLayer(*wrong)
