"""Transformer-XL: segments with a memory are one long pass, its scores are the four terms, and no gradient enters the memory."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

import formers
from contracts.specimens import subject
from formers import Model, State
from formers.core import Context, HiddenMemory, Range
from formers.memory import NoMemory, Recurrence
from formers.patterns import Blocks, Causal, Local, Pattern, Strided
from formers.position import Learned, Sinusoidal
from formers.score import NoScore, Relative
from helpers import close, gradients, refused, sweep

SIZES = {"vocab": 11, "dim": 12, "heads": 2, "layers": 3, "hidden": 16, "length": 8}


def model_of(**options: object) -> Model:
    return subject(formers.spec("transformer-xl", **{**SIZES, **options})).model


def under(model: Model, pattern: Pattern) -> Model:
    """The same weights without a memory, under a pattern."""
    other = formers.build(model.spec.replace(memory=NoMemory(), pattern=pattern)).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def in_segments(model: Model, x: Tensor, segment: int, state: State | None = None) -> Tensor:
    """The logits of x, read segment by segment with the memory of the one before."""
    state, logits = state or model.initial_state(len(x)), []
    for first in range(0, x.shape[1], segment):
        out = model(x[:, first : first + segment], state=state)
        state = out.state
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


@sweep("grad", [False, True])
@sweep("norm", ["pre", "post"])
@sweep(("segment", "memory"), [(1, 0), (1, 1), (1, 6), (3, 0), (3, 2), (3, 3), (4, 9), (5, 40), (7, 1), (20, 5), (17, 17)])
def test_segments_with_a_memory_are_one_long_pass(segment, memory, norm, grad):
    model, x = model_of(memory=memory, norm=norm, clamp=9), torch.randint(11, (2, 37))
    with torch.set_grad_enabled(grad):
        found = in_segments(model, x, segment)
        wanted = under(model, Blocks(query=segment, memory=memory))(x).logits
    close(found, wanted)


@torch.no_grad()
@sweep("segments", [(37,), (5, 1, 1, 12, 18), (1,) * 37])
@sweep("memory", [1, 4, 30])
def test_same_length_is_a_band_of_as_many_keys_as_the_memory_has_however_the_text_is_cut(memory, segments):
    model, x = model_of(memory=memory, same_length=True), torch.randint(11, (2, 37))
    wanted = under(model, Local(window=memory))(x).logits
    state, logits = model.initial_state(2), []
    for part in x.split(segments, dim=1):
        out = model(part, state=state)
        state = out.state
        logits.append(out.logits)
    close(torch.cat(logits, dim=1), wanted)


@torch.no_grad()
@sweep("memory", [0, 3, 64])
def test_decoding_token_by_token_sees_the_memory_and_itself(memory):
    model, x = model_of(memory=memory), torch.randint(11, (2, 20))
    close(in_segments(model, x, 1), under(model, Local(window=memory + 1))(x).logits)


@torch.no_grad()
def test_a_memory_may_be_longer_in_evaluation_than_in_training():
    model, x = model_of(memory=4), torch.randint(11, (1, 30))
    longer = formers.build(model.spec.replace(memory=Recurrence(length=13), score=Relative(clamp=6))).double().eval()
    longer.load_state_dict(model.state_dict())
    close(in_segments(longer, x, 5), under(longer, Blocks(query=5, memory=13))(x).logits)


def four_terms(q: Tensor, k: Tensor, u: Tensor, v: Tensor, weight: Tensor, back: int, clamp: int | None) -> Tensor:
    """The scores of queries (n, d_h) of a head over keys (m, d_h), the last n of them the queries' own, term by term, pair by pair."""
    dim, rows = weight.shape[1], []
    for i in range(len(q)):
        row = []
        for j in range(len(k)):
            x = back + i - j
            x = x if clamp is None else min(x, clamp)
            angles = [x / 10000 ** (2 * c / dim) for c in range(dim // 2)]
            r = weight @ torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=q.dtype)
            row.append(q[i] @ k[j] + q[i] @ r + u @ k[j] + v @ r)
        rows.append(torch.stack(row))
    return torch.stack(rows) / math.sqrt(q.shape[1])


@sweep("how", ["dense", "sdpa", "distances"])
@sweep("clamp", [None, 2])
@sweep("untied", [False, True])
def test_the_score_is_the_four_terms(untied, clamp, how):
    from formers.attention.attend import run
    from formers.attention.request import Request

    torch.manual_seed(3)
    model = model_of(memory=5, untied=untied, clamp=clamp)
    score = model.stack.depth.blocks[1].attention.score
    biases = score.biases
    assert (biases is model.stack.common_score) == (not untied)
    q, k, v = torch.randn(1, 2, 4, 6).double(), torch.randn(1, 2, 9, 6).double(), torch.randn(1, 2, 9, 3).double()
    queries, keys = Range(105, 4), Range(100, 9)
    scale = 6**-0.5
    changed, term = score(torch.empty(1, 4, 12), q, keys, Context(queries), scale, 1)
    request = Request(Causal(), queries, keys, 2, scale, bias=term)
    found = run(changed, k, v, request, how)
    slopes = gradients(found, [score.r.weight, biases.u_bias, biases.v_bias])
    wanted = []
    for h in range(2):
        weight = score.r.weight[6 * h : 6 * h + 6]
        s = four_terms(q[0, h], k[0, h], biases.u_bias[h, 0], biases.v_bias[h, 0], weight, 5, clamp)
        open_ = torch.arange(9) <= 5 + torch.arange(4)[:, None]
        wanted.append(torch.softmax(s.masked_fill(~open_, -math.inf), dim=-1) @ v[0, h])
    wanted = torch.stack(wanted)[None]
    close(found, wanted)
    for one, other in zip(slopes, gradients(wanted, [score.r.weight, biases.u_bias, biases.v_bias]), strict=True):
        close(one, other)


def oracle(model: Model, x: Tensor, memories: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The logits of a segment, and what each layer was given, written out as the paper has it; memories (batch, m, dim) by layer."""
    h = model.embedding(x)
    given = []
    for block, memory in zip(model.stack.depth.blocks, memories, strict=True):
        given.append(h)
        both = torch.cat([memory.detach(), h], dim=1)
        wq, wk, wv = block.attention.qkv.weight.chunk(3)
        m, n = memory.shape[1], h.shape[1]
        heads = []
        for a in range(2):
            part = slice(6 * a, 6 * a + 6)
            biases, weight = block.attention.score.biases, block.attention.score.r.weight[part]
            rows = []
            for b in range(len(x)):
                q, k, v = h[b] @ wq[part].T, both[b] @ wk[part].T, both[b] @ wv[part].T
                s = four_terms(q, k, biases.u_bias[a, 0], biases.v_bias[a, 0], weight, m, None)
                s = s.masked_fill(torch.arange(m + n) > m + torch.arange(n)[:, None], -math.inf)
                rows.append(torch.softmax(s, dim=-1) @ v)
            heads.append(torch.stack(rows))
        y = torch.cat(heads, dim=-1) @ block.attention.out.weight.T
        h = block.residual_attention.norm(h + y)
        h = block.residual_feedforward.norm(h + block.feedforward(h, None, None, 0)[0])
    return F.linear(h, model.embedding.weight), given


def test_gradients_stop_at_the_memory_and_its_projections_learn_from_it():
    model, x = model_of(memory=5, norm="post", layers=2), torch.randint(11, (2, 12))
    before = model(x[:, :6], state=model.initial_state(2), targets=x[:, 1:7]).state
    out = model(x[:, 6:11], state=before, targets=x[:, 7:])
    entries = [step[0] for step in before.steps]
    assert all(isinstance(e, HiddenMemory) and e.states.shape == (2, 5, 12) and not e.states.requires_grad for e in entries)
    parameters = list(model.parameters())
    found = gradients(out.loss, parameters)
    logits, given = oracle(model, x[:, :6], [torch.zeros(2, 0, 12).double()] * 2)
    for entry, states in zip(entries, given, strict=True):
        close(entry.states, states[:, -5:].detach())
    logits, _ = oracle(model, x[:, 6:11], [states[:, -5:] for states in given])
    close(out.logits, logits)
    wanted = gradients(F.cross_entropy(logits.flatten(0, 1), x[:, 7:].flatten()), parameters)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
    model.eval()
    with torch.no_grad():  # without gradients, keys and values are kept beside the hidden states
        state = model(x[:, :6], state=model.initial_state(2)).state
        assert all(step[0].states.shape[1] == step[0].cached_kv[1].keys.shape[2] == 5 for step in state.steps)
        close(model(x[:, 6:11], state=state).logits, out.logits.detach())


def test_the_memory_begins_empty_and_rows_begin_anew_where_they_are_reset():
    model, x = model_of(memory=6), torch.randint(11, (3, 15))
    with torch.no_grad():
        fresh = model(x[:, 10:]).logits
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            state = model(x[:, :5], state=model.initial_state(3)).state
            state = model(x[:, 5:10], state=state).state
            done = torch.tensor([False, True, False])
            out = model(x[:, 10:], state=state.reset(done))
            close(out.logits[1].detach(), fresh[1])
            close(out.logits[[0, 2]], model(x[:, 10:], state=state).logits[[0, 2]])
            again = model(x[:, :5], state=out.state).logits
            alone = model(x[1:2, :5], state=model(x[1:2, 10:], state=model.initial_state(1)).state).logits
            close(again[1], alone[0])


@sweep("grad", [False, True])
def test_padded_rows_remember_what_they_would_alone(grad):
    model, x = model_of(memory=4), torch.randint(11, (3, 24))
    masks = torch.rand(3, 24, generator=torch.Generator().manual_seed(5)) < 0.6
    masks[:, :8] |= torch.tensor([[True], [False], [True]])
    with torch.set_grad_enabled(grad):
        state, logits = model.initial_state(3), []
        for first in (0, 8, 16):
            part = slice(first, first + 8)
            out = model(x[:, part], state=state, mask=masks[:, part])
            state = out.state
            logits.append(out.logits)
        for row in range(3):
            alone = model.initial_state(1)
            for first, found in zip((0, 8, 16), logits, strict=True):
                real = masks[row, first : first + 8]
                if real.any():
                    out = model(x[row : row + 1, first : first + 8][:, real], state=alone)
                    alone = out.state
                    close(found[row, real], out.logits[0])


@sweep("grad", [False, True])
def test_rows_that_were_reset_long_ago_cost_no_more_than_the_memory_holds(grad):
    model, x = model_of(memory=6), torch.randint(11, (2, 40))
    sizes = []
    score = model.stack.depth.blocks[0].attention.score
    score.table, made = lambda rows: (sizes.append(rows), made(rows))[1], score.table
    with torch.set_grad_enabled(grad):
        state = model(x[:, :4], state=model.initial_state(2)).state.reset(torch.tensor([True, False]))
        for first in range(4, 40, 4):
            state = model(x[:, first : first + 4], state=state).state
    assert max(sizes) <= (10 if grad else 256)


def test_rows_of_a_pattern_with_gaps_may_be_reset():
    model = subject(formers.spec("decoder", **SIZES, position="none").replace(pattern=Strided(stride=3), score=Relative())).model
    x = torch.randint(11, (2, 40))
    with torch.no_grad():
        state = model(x[:, :30], state=model.initial_state(2)).state
        for token in x[:, 30:32].split(1, dim=1):
            state = model(token, state=state).state
        found = model(x[:, 32:], state=state.reset(torch.tensor([True, False]))).logits
        close(found[1], model(x).logits[1, 32:])
        close(found[0], model(x[:, 32:]).logits[0])


def test_hidden_states_are_stored_and_selected():
    model, x = model_of(memory=6), torch.randint(11, (3, 8))
    state = model(x, state=model.initial_state(3)).state
    picked = state.select(torch.tensor([2, 0]))
    close(model(x[[2, 0]], state=picked).logits, model(x, state=state).logits[[2, 0]])


def test_a_projected_table_is_made_anew_when_its_weight_changes():
    model, x = model_of(memory=6).eval(), torch.randint(11, (1, 20))
    with torch.no_grad():
        first = model(x).logits
        model.stack.depth.blocks[0].attention.score.r.weight.mul_(2.0)
        second = model(x).logits
    assert not torch.equal(first, second)
    close(second, model(x).logits.detach())  # where gradients are wanted nothing is kept


def test_a_table_does_not_outlive_weights_that_are_written_after_its_back():
    model, x = model_of(memory=6), torch.randint(11, (1, 20))
    with torch.no_grad():
        model.eval()(x)
        model.stack.depth.blocks[0].attention.score.r.weight.data.mul_(2.0)  # as a moving average of weights is put in
        found = model.eval()(x).logits
    close(found, model(x).logits.detach())


def test_a_memory_holds_no_more_than_it_says():
    for memory, segment in ((5, 8), (8, 8), (12, 5)):
        model, x = model_of(memory=memory), torch.randint(11, (2, 3 * segment))
        state = model.initial_state(2)
        for part in x.split(segment, dim=1):
            state = model(part, state=state).state
        for step in state.steps:
            assert step[0].states.shape[1] == memory
            assert step[0].states.untyped_storage().nbytes() <= 2 * max(memory, segment) * 12 * 8


def test_a_training_state_of_another_width_is_refused():
    narrow, wide = model_of(), model_of(dim=16)
    state = narrow(torch.randint(11, (2, 4)), state=narrow.initial_state(2)).state
    with refused("head_dim=6", "initial_state"):
        wide(torch.randint(11, (2, 4)), state=state)
    with refused("another width", "initial_state"):  # a state that an earlier version saved does not say what shaped it
        wide(torch.randint(11, (2, 4)), state=replace(state, shape=None))


def test_a_padded_segment_does_not_fill_the_memory_by_its_places():
    """What came before a padded segment stays in the memory as far as its real tokens, and not its places, leave room."""
    torch.manual_seed(0)
    model = model_of(memory=7).eval()
    first, second, third = torch.randint(11, (3, 2, 8))
    real = torch.arange(8) < torch.tensor([[5], [3]])
    with torch.no_grad():
        state = model(first, state=model.initial_state(2)).state
    state = model(second, mask=real, state=state).state
    with torch.no_grad():
        found = model(third, state=state).logits
        for row, count in enumerate((5, 3)):
            alone = model(first[row : row + 1], state=model.initial_state(1)).state
            alone = model(second[row : row + 1, :count], state=alone).state
            close(found[row], model(third[row : row + 1], state=alone).logits[0])


def test_u_and_v_are_no_matrices_and_do_not_decay():
    from formers.training.config import Settings
    from formers.training.optim import optimizer

    for untied in (False, True):
        model = model_of(untied=untied)
        decayed, others = (group["params"] for group in optimizer(model, Settings(steps=1)).param_groups)
        score = model.stack.depth.blocks[0].attention.score
        assert any(score.r.weight is p for p in decayed)
        assert all(any(bias is p for p in others) for bias in (score.biases.u_bias, score.biases.v_bias))


def test_what_cannot_have_a_memory_is_refused():
    spec = formers.spec("transformer-xl", **SIZES)
    for position in (Sinusoidal(), Learned()):
        with refused("Recurrence", type(position).__name__, "Relative"):
            formers.build(spec.replace(position=position))
    with refused("Recurrence", "whole rows"):
        formers.build(formers.spec("encoder", **SIZES).replace(memory=Recurrence(length=4)))
    for options, word in (({"memory": -1}, "memory"), ({"clamp": 0}, "clamp"), ({"memory": 0, "same_length": True}, "same_length")):
        with refused(word):
            formers.spec("transformer-xl", **{**SIZES, **options})


@torch.no_grad()
def test_absolute_positions_fail_with_a_memory_where_they_begin_again_in_every_segment():
    """The literature's reason for relative positions: a key at place 3 of the memory looks like one at place 3 of the segment."""
    plain = formers.spec("decoder", **SIZES, position="sinusoidal")
    model = formers.build(plain.replace(pattern=Causal())).double().eval()
    x = torch.randint(11, (1, 8)).repeat(1, 2)  # the second segment says what the first did
    block = model.stack.depth.blocks[0]
    given = [model.stack.position(model.embedding(part), Range(0, 8), 0) for part in x.split(8, dim=1)]
    memory, segment = (block.attention.split_all(block.attention.qkv(block.residual_attention.prenorm(h)), 3)[1] for h in given)
    close(memory, segment)  # the keys of two different times are the same: no query can tell them apart
    relative = model_of(memory=8, layers=1)
    score = relative.stack.depth.blocks[0].attention.score
    _, term = score(torch.empty(1), torch.randn(1, 2, 1, 6).double(), Range(0, 16), Context(Range(15, 1)), 1.0, 0)
    near, far = term.tensor()[0, :, 0].split(8, dim=-1)
    assert (near - far).abs().min() > 1e-6


@sweep(("preset", "vocab", "millions"), [("base", 204, 41), ("large", 204, 277), ("wikitext103", 267_735, 151)])
def test_the_presets_are_the_papers(preset, vocab, millions):
    spec = formers.spec("transformer-xl", vocab=vocab, preset=preset)
    with torch.device("meta"):
        count = formers.build(spec).parameter_count()
    assert round(count / 1e6) == millions
    assert isinstance(spec.score, Relative)
    assert not isinstance(spec.score, NoScore)


@sweep("member", ["transformer-xl", "adaptive-span"])
@sweep("length", [4, 40])  # by the whole term, and in tiles
def test_half_precision_learns_as_single_does(member, length):
    model = formers.create(member, vocab=11, dim=16, heads=2, layers=2, hidden=16, length=length, memory=600)
    x = torch.randint(11, (2, 2 * length + 1))
    losses, slopes = [], []
    for half in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            state = model(x[:, :length], state=model.initial_state(2)).state
            out = model(x[:, length:-1], targets=x[:, length + 1 :], state=state)
        out.loss.backward()
        losses.append(out.loss.detach())
        slopes.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    close(losses[1], losses[0], 0.02)
    assert torch.cosine_similarity(*slopes, dim=0) > 0.99
