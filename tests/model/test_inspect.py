"""Inspection: maps are those of the equation, in token order, and inspecting changes no result."""

from __future__ import annotations

import torch

import formers
from contracts.specimens import SPECIMENS, VOCAB, given_to, subject
from formers.bench.pondering import skipping_is
from formers.core import Watch
from formers.feedforward import NoFeedForward
from formers.heads import LanguageModel
from formers.patterns import Causal, Local
from formers.recurrent import Aligned, Pondering, Recurrent, Window
from formers.score import Span
from helpers import close, refused, sweep

SEQ2SEQ = [s for s in SPECIMENS if s.spec.encoder is not None]
STACKS = [s for s in SPECIMENS if s.spec.encoder is None]


def of_class(seat):
    """The label that a model is given, where it is conditioned on classes."""
    return {} if seat.label is None else {"label": seat.label}


@sweep("specimen", STACKS)
def test_maps_of_every_layer_and_head_sum_to_one_over_what_the_pattern_allows(specimen):
    seat = subject(specimen.spec)
    x = seat.input(7)
    seen = seat.model.inspect(x, **of_class(seat))
    spec = specimen.spec
    n = spec.extra + 7  # extra vectors stand before the tokens
    attends = not isinstance(spec.attention, (Recurrent, Pondering, Window))
    assert len(seen.attention) == (spec.depth.steps if attends else 0)
    made = spec.attention.key_count(spec.sizes, 7)
    for step, a in enumerate(seen.attention):
        assert a.shape == (3, spec.heads, n, made or n)
        allowed = spec.pattern.mask(n, spec.heads, step)
        some = (allowed.any(dim=-1) | bool(made)).expand(3, -1, -1)
        if isinstance(spec.score, Span):  # a span may shut them all
            some = some & (a.sum(-1) > 0.5)
        close(a.sum(-1), some.double())  # 0 where a query has no keys
        assert made or bool((a[:, ~allowed] == 0).all())
    with torch.no_grad():
        with skipping_is(seat.model, False):  # whoever looks on is shown all steps, and products of other sizes may be rounded otherwise
            close(seen.output.hidden, seat(x).hidden, 0.0)
        close(seen.output.hidden, seat(x).hidden)
    assert seen.norms["stream"].shape == (spec.depth.steps + 1, 3, n)
    if not isinstance(spec.feedforward, NoFeedForward):
        assert seen.norms["feedforward"].shape == (spec.depth.steps, 3, n)
    if attends:
        assert all(e.startswith(("sdpa", "dense", "hashed")) for e in seen.notes["attention executor"])
    else:
        assert len(seen.notes["attention executors"]) == spec.depth.steps


def test_the_maps_are_those_that_the_output_is_made_of():
    model = formers.create("decoder", vocab=VOCAB, dim=16, heads=2, layers=1, dropout=0.0).double()
    tokens = torch.randint(VOCAB, (2, 6))
    a = model.inspect(tokens).attention[0]
    with torch.no_grad():
        x = model.stack.position(model.embedding(tokens), formers.core.Range(0, 6), 0)
        attention = model.stack.depth.blocks[0].attention
        q, k, v = attention.split_all(attention.qkv(model.stack.depth.blocks[0].residual_attention.norm(x)), 3)
        close(a, (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(torch.ones(6, 6).triu(1) == 1, float("-inf")).softmax(-1))
        close(model.inspect(tokens).norms["attention"][0], attention.merge(a @ v).float().norm(dim=-1), 1e-5)


@sweep("specimen", STACKS)
def test_a_padded_row_shows_what_the_row_alone_shows(specimen):
    seat = subject(specimen.spec, batch=2)
    x = seat.input(8)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, [0, 3, 7]] = False
    padded = seat.model.inspect(x, mask=mask, **of_class(seat))
    alone = seat.model.inspect(x[1:, mask[1]], **of_class(seat.rows([1])))
    made = specimen.spec.attention.key_count(specimen.spec.sizes, 5)
    real = torch.cat([torch.ones(specimen.spec.extra, dtype=torch.bool), mask[1]])
    keys = real if made is None else torch.arange(padded.attention[0].shape[3]) < made
    for a, b in zip(padded.attention, alone.attention, strict=True):
        close(a[1][:, real][:, :, keys], b[0])
        assert bool((a[1][:, ~real] == 0).all())
        assert bool((a[1][:, :, ~keys] == 0).all())
    close(padded.norms["stream"][:, 1, real], alone.norms["stream"][:, 0], 1e-4)


@sweep("specimen", SEQ2SEQ)
def test_an_encoder_decoder_shows_both_stacks_and_the_cross_attention(specimen):
    seat, spec = subject(specimen.spec, batch=2), specimen.spec
    source, target = given_to(spec if spec.encoder.vocab is spec.encoder.features is None else spec.encoder, 2, 6), seat.input(4)
    source_mask, mask = (
        torch.tensor([[True] * 6, [False, True, True, False, True, True]]),
        torch.tensor([[True] * 4, [True, False, True, True]]),
    )
    seen = seat.model.inspect(source, target, source_mask=source_mask, mask=mask)
    alone = seat.model.inspect(source[1:, source_mask[1]], target[1:, mask[1]])
    looks = not (isinstance(spec.attention, Aligned) and spec.attention.alignment == "none")
    assert [weights.shape for weights in seen.cross] == [(2, spec.heads, 4, 6)] * (spec.depth.steps if looks else 0)
    inside = torch.cat([torch.ones(spec.encoder.extra, dtype=torch.bool), source_mask[1]])
    for found, wanted, rows, columns in (
        (seen.cross, alone.cross, mask[1], source_mask[1]),
        (seen.encoder, alone.encoder, inside, inside),
        (seen.attention, alone.attention, mask[1], mask[1]),
    ):
        for a, b in zip(found, wanted, strict=True):
            close(a[1][:, rows][:, :, columns], b[0])
            close(b.sum(-1), torch.ones_like(b.sum(-1)))
    close(seen.norms["encoder stream"][:, 1, inside], alone.norms["encoder stream"][:, 0], 1e-4)


def test_with_a_state_the_past_stands_before_the_tokens():
    model = formers.create("decoder", vocab=VOCAB, dim=16, heads=2, layers=2, dropout=0.0).double().eval()
    tokens = torch.randint(VOCAB, (2, 7))
    with torch.no_grad():
        state = model(tokens[:, :4]).state
    whole, rest = model.inspect(tokens), model.inspect(tokens[:, 4:], state=state)
    for a, b in zip(whole.attention, rest.attention, strict=True):
        close(a[:, :, 4:], b)


@sweep("pattern", [Causal(), Local(window=3), Local(window=2, include_self=False)])
def test_with_a_state_and_padding_the_tokens_are_in_their_order(pattern):
    spec = formers.spec("decoder", vocab=VOCAB, dim=16, heads=2, layers=2, dropout=0.0).replace(pattern=pattern)
    model = formers.build(spec).double().eval()
    past, new = torch.randint(VOCAB, (3, 6)), torch.randint(VOCAB, (3, 5))
    before, mask = torch.rand(3, 6) < 0.6, torch.rand(3, 5) < 0.6
    with torch.no_grad():
        state = model(past, mask=before).state
    seen = model.inspect(new, mask=mask, state=state)
    for row in range(3):
        n, real = int(before[row].sum()), mask[row]
        alone = model.inspect(torch.cat([past[row, before[row]], new[row, real]])[None])
        for a, b in zip(seen.attention, alone.attention, strict=True):
            kept = a.shape[3] - 5
            close(a[row][:, real][:, :, kept:][:, :, real], b[0, :, n:, n:])
            close(a[row][:, real][:, :, :kept].sum(-1), b[0, :, n:, :n].sum(-1))
            assert bool((a[row][:, ~real] == 0).all())
            assert bool((a[row][:, :, kept:][:, :, ~real] == 0).all())
        close(seen.norms["stream"][:, row, real], alone.norms["stream"][:, 0, n:], 1e-4)


def test_looking_leaves_the_mode_the_gradients_and_the_modules_alone():
    model = formers.create("decoder", vocab=VOCAB, dim=16, heads=2, layers=1, dropout=0.5)
    before = {name: vars(module).copy() for name, module in model.named_modules()}
    first, again = (model.inspect(torch.zeros(1, 5, dtype=torch.long)) for _ in range(2))
    assert first.attention[0].equal(again.attention[0])
    assert not first.attention[0].requires_grad
    assert all(vars(module).keys() == before[name].keys() for name, module in model.named_modules())
    assert model.training


def test_too_much_to_look_at_is_refused_before_anything_is_computed():
    model = formers.create("decoder", vocab=VOCAB, dim=16, heads=2, layers=2)
    with refused("fewer tokens"):
        model.inspect(torch.zeros(1, 30_000, dtype=torch.long))
    few = formers.create("linformer", vocab=VOCAB, dim=16, heads=2, layers=2, length=30_000, rank=2)
    assert few.inspect(torch.zeros(1, 30_000, dtype=torch.long)).attention[0].shape == (1, 2, 30_000, 2)


def test_what_is_no_batch_of_tokens_is_refused():
    model = formers.create("decoder", vocab=VOCAB, dim=16, heads=2, layers=1)
    pair = formers.create("transformer", vocab=VOCAB, dim=16, heads=2, layers=1)
    tokens = torch.zeros(1, 3, dtype=torch.long)
    with refused("a list", "(batch, length)"):
        model.inspect([[1, 2]])
    with refused("shape (3,)"):
        model.inspect(tokens[0])
    with refused("shape (3,)"):
        pair.inspect(tokens[0], tokens)
    with refused("a NoneType"):
        pair.inspect(tokens, None)


def test_a_watch_may_want_only_some_names():
    model = formers.create("decoder", vocab=VOCAB, dim=16, heads=2, layers=2)
    watch = Watch(only="executor")
    model(torch.zeros(1, 5, dtype=torch.long), watch=watch)
    assert list(watch.notes) == ["attention executor"]
    assert list(watch.notes["attention executor"]) == [0, 1]


def test_a_local_pattern_is_seen_as_it_is():
    spec = formers.spec("decoder", vocab=VOCAB, dim=16, heads=2, layers=1).replace(pattern=Local(window=2), head=LanguageModel())
    a = formers.build(spec).inspect(torch.randint(VOCAB, (1, 9))).attention[0]
    assert bool((a[0, 0].triu(1) == 0).all())
    assert bool((a[0, 0].tril(-2) == 0).all())
