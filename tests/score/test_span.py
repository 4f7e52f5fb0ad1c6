"""Spans against the paper's equation, values and gradients; trimmed keys do not matter; the span loss."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor

import formers
from contracts.naive_stream import Naive
from formers.attention.attend import attend, run
from formers.attention.request import Request
from formers.core import Context, HiddenMemory, KVCache, Range
from formers.depth import Shared
from formers.memory import NoMemory, Recurrence
from formers.patterns import Causal, Local, Strided
from formers.score import DynamicSpan, Span
from formers.score import span as spans
from formers.score.span import logarithm, rounded_reaches, soft_mask
from helpers import close, gradients, sweep

HEADS, DIM, WIDTH = 3, 12, 4
SIZES = formers.spec("adaptive-span", vocab=7, dim=DIM, heads=HEADS, layers=2, span=90).sizes


def paper(q: Tensor, k: Tensor, v: Tensor, p: Tensor, z: Tensor, ramp: int) -> Tensor:
    """Attention as section 3.2 prints it: m times the exponentials, over their sum; the own place left out; 0 without keys.

    q, k, v (batch, heads, n, width), p (span, width) of the distances 1 ..., z (batch or 1, heads, n or 1).
    """
    n, out = q.shape[2], torch.zeros_like(v)
    for i in range(1, n):
        first = max(0, i - len(p))
        x = i - torch.arange(first, i)
        scores = (q[:, :, i : i + 1] * (k[:, :, first:i] + p[x - 1])).sum(-1) * WIDTH**-0.5
        m = ((ramp + z[:, :, min(i, z.shape[2] - 1), None] - x) / ramp).clamp(0, 1)
        weights = m * scores.exp()
        total = weights.sum(-1, keepdim=True)
        weights = torch.where(total > 0, weights / total.masked_fill(total == 0, 1.0), 0.0)
        out[:, :, i] = (weights[:, :, None] @ v[:, :, first:i])[:, :, 0]
    return out


def built(part: Span | DynamicSpan) -> torch.nn.Module:
    torch.manual_seed(3)
    return part.build(SIZES).double()


@sweep(("span", "ramp", "shares"), [(90, 5, (0.03, 0.21, 0.9)), (20, 1, (0.0123, 0.33, 0.987)), (70, 32, (0.011, 0.4, 0.7))])
@sweep("pattern", ["own", "causal"])
def test_the_term_is_the_papers_soft_mask_values_and_gradients(span: int, ramp: int, shares: tuple[float, ...], pattern: str) -> None:
    score = built(Span(span=span, ramp=ramp))
    n = 80
    q, k, v, x = (torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(4))
    with torch.no_grad():
        score.share.copy_(torch.tensor(shares))
    context = Context(Range(0, n))
    changed, term = score(x, q, Range(0, n), context, WIDTH**-0.5, 0)
    seen = Local(window=span, include_self=False)
    if pattern == "causal":  # the score alone must end where spans end, whatever the pattern shows beyond
        seen = Causal() & Local(window=500, include_self=False)
    found = run(changed, k, v, Request(seen, Range(0, n), Range(0, n), HEADS, WIDTH**-0.5, bias=term), "dense")
    weights = (q, k, v, score.share, score.position.position_keys)
    wanted = paper(q, k, v, score.position.position_keys, span * score.share[None, :, None], ramp)
    close(found, wanted)
    assert (found[:, :, 0] == 0).all(), "the first token has no keys"
    grads = gradients(found, weights)
    for a, b in zip(grads, gradients(wanted, weights), strict=True):
        close(a, b)
    assert grads[3].ne(0).any()


def test_the_dynamic_term_is_the_papers_values_and_gradients() -> None:
    score = built(DynamicSpan(span=70, ramp=6, init=0.3))
    n = 75
    q, k, v = (torch.randn(2, HEADS, n, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3))
    x = torch.randn(2, n, DIM, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        score.share.weight.normal_(std=0.5)
    changed, term = score(x, q, Range(0, n), Context(Range(0, n)), WIDTH**-0.5, 0)
    pattern = Local(window=70, include_self=False)
    found = run(changed, k, v, Request(pattern, Range(0, n), Range(0, n), HEADS, WIDTH**-0.5, bias=term), "dense")
    z = 70 * torch.sigmoid(x @ score.share.weight.T + score.share.bias).transpose(1, 2)
    weights = (x, q, k, v, score.share.weight, score.share.bias, score.position.position_keys)
    wanted = paper(q, k, v, score.position.position_keys, z, 6)
    close(found, wanted)
    for a, b in zip(gradients(found, weights), gradients(wanted, weights), strict=True):
        close(a, b)


def test_spans_at_their_maximum_are_local_attention() -> None:
    """z = S: m is 1 at every distance up to S."""
    close(soft_mask(torch.tensor([20.0]), 5, 21), torch.ones(1, 21))
    score = built(Span(span=20, ramp=5, init=1.0))
    with torch.no_grad():
        score.position.position_keys.zero_()
    q = torch.randn(2, HEADS, 50, WIDTH, dtype=torch.float64)
    where, pattern = Range(0, 50), Local(window=20, include_self=False)
    term = score(q, q, where, Context(where), WIDTH**-0.5, 0)[1]
    found = run(q, q, q, Request(pattern, where, where, HEADS, WIDTH**-0.5, bias=term), "dense")
    close(found, attend(q, q, q, pattern, "dense"))


def test_the_mask_is_the_papers_and_not_the_codes() -> None:
    """At z = 0 the nearest key, one place back, has (R-1)/R of a weight; the authors' code gives it all of one: slip (r)."""
    m = soft_mask(torch.zeros(1, dtype=torch.float64), 4, 6)[0]
    close(m, torch.tensor([1.0, 0.75, 0.5, 0.25, 0.0, 0.0], dtype=torch.float64))
    code = (torch.linspace(-5.0, 0.0, 6) / 4 + 1).clamp(0, 1).flip(0)  # by distance 1, 2, ...
    close(code.double()[:5], m[:5])


def test_the_logarithm_is_safe() -> None:
    z = torch.tensor([-3.0, 0.0, 2.5], dtype=torch.float64, requires_grad=True)
    level = logarithm(soft_mask(z, 2, 8))
    assert level.isneginf().sum() == 8 + 6 + 3
    level.masked_fill(level.isneginf(), 0.0).sum().backward()
    assert z.grad.isfinite().all()


def test_how_far_a_span_reaches() -> None:
    assert rounded_reaches([0.0, 31.5, 32.0, 32.1, 1e9, float("nan"), -50.0], 32, 200) == (32, 64, 64, 72, 201, 201, 8)
    assert rounded_reaches([7.0], 2, 9) == (10,)
    for z in (0.0, 0.3, 31.0, 31.0001, 90.0):
        m = soft_mask(torch.tensor([z]), 33, 300)[0]
        assert (m[rounded_reaches([z], 33, 299)[0] :] == 0).all()


# Whole models.

FAR = {"vocab": 11, "dim": 12, "heads": 3, "layers": 2, "hidden": 16, "span": 200, "ramp": 7, "span_penalty": 1e-3}
VARIANTS = sweep("dynamic", [False, True])


def model_of(**options: object) -> formers.Model:
    torch.manual_seed(5)
    model = formers.create("adaptive-span", **{**FAR, **options}).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("score.share"):
                p.copy_(torch.rand_like(p) * 0.3 + torch.tensor([0.0, 0.15, 0.3]))
            elif ".score.share" in name:
                p.add_(torch.randn_like(p) * 0.4)
    return model


def untrimmed() -> mock._patch:
    """Lets nothing be trimmed: every distance is computed, and everything is kept."""
    return mock.patch.object(spans, "concrete", return_value=False)


def read_segments(model: formers.Model, tokens: Tensor, segment: int) -> tuple[Tensor, tuple[Tensor, ...], formers.State]:
    """Losses and gradients of tokens read in segments, as training reads them, and the last state."""
    state, total = model.initial_state(len(tokens)), 0.0
    for start in range(0, tokens.shape[1] - 1, segment):
        stop = min(start + segment, tokens.shape[1] - 1)
        out = model(tokens[:, start:stop], targets=tokens[:, start + 1 : stop + 1], state=state)
        state, total = out.state, total + out.loss
    return total, torch.autograd.grad(total, list(model.parameters())), state


@VARIANTS
@sweep("checkpointing", [False, True])
def test_trimmed_is_untrimmed_in_training_with_memory(dynamic: bool, checkpointing: bool) -> None:
    model = model_of(dynamic=dynamic)
    model.checkpointing(checkpointing)
    tokens = torch.randint(11, (2, 351))
    loss, grads, state = read_segments(model, tokens, 90)
    with untrimmed():
        wanted, wanted_grads, _ = read_segments(model, tokens, 90)
    close(loss, wanted)
    for a, b in zip(grads, wanted_grads, strict=True):
        close(a, b)
    for step in state.steps:
        assert isinstance(step[0], HiddenMemory)
        assert step[0].states.shape[1] == 200, "spans may grow after the next step: the memory keeps the maximum"


@VARIANTS
@torch.no_grad()
def test_segments_and_tokens_are_one_pass_and_the_cache_shrinks(dynamic: bool) -> None:
    model = model_of(dynamic=dynamic).eval()
    tokens = torch.randint(11, (2, 320))
    with untrimmed():
        whole = model(tokens).logits
    close(model(tokens).logits, whole)
    state, logits = model.initial_state(2), []
    for start, stop in [(0, 130), (130, 131), (131, 300), *((t, t + 1) for t in range(300, 320))]:
        out = model(tokens[:, start:stop], state=state)
        state = out.state
        logits.append(out.logits)
    close(torch.cat(logits, dim=1), whole)
    for block, step in zip(model.stack.depth.blocks, state.steps, strict=True):
        held = keys_of(step[0])
        assert held == 200 if dynamic else held == min(block.attention.score.reach(0), 200) < 200


@torch.no_grad()
def test_a_state_without_a_memory_keeps_what_longer_spans_will_see() -> None:
    """Keys are read as far back as spans are now, and kept as far back as they may ever be: here a step makes them longer."""
    model = formers.build(model_of(ramp=8).spec.replace(memory=NoMemory())).double().eval()
    naive, tokens = Naive(model, 2), torch.randint(11, (2, 270))
    state = None
    for start, stop in [(0, 100), (100, 101), (101, 240)]:
        out = model(tokens[:, start:stop], state=state)
        state = out.state
        close(out.hidden, naive.hidden(tokens[:, start:stop]))
    assert {keys_of(step[0]) for step in state.steps} == {200}, "the pattern's window"
    for block in model.stack.depth.blocks:
        assert block.attention.score.reach(0) == 64
        block.attention.score.share.fill_(0.8)
    for start, stop in [(240, 241), (241, 270)]:
        out = model(tokens[:, start:stop], state=state)
        state = out.state
        close(out.hidden, naive.hidden(tokens[:, start:stop]))


def test_a_small_span_is_not_rounded_away() -> None:
    """m at the end of the ramp is z / R, however small z is beside R."""
    for dtype in (torch.float32, torch.float64):
        z = torch.tensor([1e-20, 3e-9, 0.25], dtype=dtype, requires_grad=True)
        level = logarithm(soft_mask(z, 32, 40))[:, 32]
        close(level, (z / 32).log(), 1e-5)
        close(torch.autograd.grad(level.sum(), z)[0] * z, torch.ones_like(z), 1e-6)


def keys_of(entry: KVCache | HiddenMemory) -> int:
    """How many keys are held, beside the hidden states where there is a memory."""
    return (entry.cached_kv[1] if isinstance(entry, HiddenMemory) else entry).keys.shape[2]


@VARIANTS
@torch.no_grad()
def test_rows_of_different_lengths_are_trimmed_exactly(dynamic: bool) -> None:
    """Short spans and long padding: the last places of a row are not its last tokens."""
    model = model_of(dynamic=dynamic, init=0.02).eval()
    for block in model.stack.depth.blocks:
        if not dynamic:
            block.attention.score.share.mul_(0.2)
    for memory, count, held in ((Recurrence(length=200), 150, 128), (NoMemory(), 210, 200)):
        model.spec = model.spec.replace(memory=memory)
        for block in model.stack.depth.blocks:
            block.limit = memory.limit
        x = torch.randint(11, (2, 300))
        mask = torch.arange(300) < torch.tensor([[300], [40]])
        state = model(x, mask=mask).state
        rows = [x[0], x[1, :40]]
        for _ in range(count):
            more = torch.randint(11, (2, 1))
            out = model(more, state=state)
            state, rows = out.state, [torch.cat([row, new]) for row, new in zip(rows, more, strict=True)]
        for row in range(2):
            close(out.logits[row, -1], model(rows[row][None]).logits[0, -1])
        if not dynamic:
            assert max(keys_of(step[0]) for step in state.steps) <= held


def test_spans_go_with_a_sparse_pattern() -> None:
    model = formers.build(formers.spec("adaptive-span", **FAR).replace(pattern=Strided(stride=8) & Local(window=200))).double()
    tokens = torch.randint(11, (2, 150))
    with torch.no_grad():
        whole = model(tokens).logits
        state, logits = model.initial_state(2), []
        for start, stop in [(0, 70), *((t, t + 1) for t in range(70, 150))]:
            out = model(tokens[:, start:stop], state=state)
            state = out.state
            logits.append(out.logits)
    close(torch.cat(logits, dim=1), whole)


def test_all_layers_and_heads_share_the_position_keys() -> None:
    model = formers.create("adaptive-span", **FAR)
    named = {name: tuple(p.shape) for name, p in model.named_parameters() if "position" in name}
    assert named == {"stack.common_score.position_keys": (200, 4)}


def test_the_penalty_is_the_mean_span_of_the_heads_added_over_the_layers() -> None:
    model = model_of().train()
    tokens = torch.randint(11, (2, 20))
    scores = [block.attention.score for block in model.stack.depth.blocks]
    wanted = sum(1e-3 / 3 * (200 * score.share).sum() for score in scores)
    for checkpointing in (False, True):
        model.checkpointing(checkpointing)
        out = model(tokens, targets=tokens)
        close(out.losses["span"], wanted)
        close(out.loss, out.losses["cross_entropy"] + wanted)
        out.losses["span"].backward()
        close(scores[0].share.grad, torch.full((3,), 0.2 / 3, dtype=torch.float64))
        model.zero_grad()


@sweep("checkpointing", [False, True])
def test_a_shared_block_costs_as_often_as_it_is_used(checkpointing: bool) -> None:
    model = formers.build(formers.spec("adaptive-span", **FAR, init=0.5).replace(depth=Shared(layers=3)))
    model.checkpointing(checkpointing)
    tokens = torch.randint(11, (2, 20))
    close(model(tokens, targets=tokens).losses["span"], torch.tensor(3 * 1e-3 * 100.0), 1e-6)


def test_padding_does_not_count_in_the_penalty_of_dynamic_spans() -> None:
    model = model_of(dynamic=True)
    x = torch.randint(11, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    found = model(x, targets=x, mask=mask).losses["span"]
    alone = [model(x[row : row + 1, mask[row]], targets=x[row : row + 1, mask[row]]).losses["span"] for row in range(2)]
    close(found, (9 * alone[0] + 4 * alone[1]) / 13)


def test_spans_are_noted_for_whoever_looks_on() -> None:
    static, dynamic = model_of(), model_of(dynamic=True)
    tokens, mask = torch.randint(11, (2, 9)), torch.arange(9) >= torch.tensor([[0], [4]])
    notes = static.inspect(tokens).notes["span"]
    close(notes[1], 200 * static.stack.depth.blocks[1].attention.score.share.detach())
    by_token = dynamic.inspect(tokens, mask=mask).notes["span by token"]
    assert by_token[0].shape == (2, 9, 3)
    assert (by_token[0][1, :4] == 0).all(), "padding has no span"
    close(by_token[0][1, 4:], dynamic.inspect(tokens[1:, 4:]).notes["span by token"][0][0])


@torch.no_grad()
def test_half_precision_tells_places_apart() -> None:
    score = Span(span=8192, init=0.1).build(SIZES).bfloat16()
    z = score.spans()
    assert z.dtype == torch.float32
    level = score.level(z, 1000)
    assert len(level[0][level[0] < 0].unique()) > 20, "each place of the ramp has a level of its own"
