"""Predicted costs against formulas written by hand, counted products, the allocator's own numbers and the bytes of a real state."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import formers
from formers.bench.explain import allocated, measured, predicted
from formers.feedforward import Chunked
from formers.inspect.measure.costs import Costs, allowed_share, example
from formers.patterns import Causal, Fixed, Local, Strided
from formers.position import sinusoid
from helpers import close, first_quick, refused, sweep

NEAR = 0.05
"""How far a prediction may be from what is measured."""
D, F, V, N, W = 64, 256, 100, 2, 16
"""dim, hidden, vocab, layers, and the window of a local pattern."""
SIZES = dict(vocab=V, dim=D, heads=4, hidden=F, layers=N)
LOCAL = "decoder with a local pattern"


def spec_of(name):
    if name == LOCAL:
        return formers.spec("decoder", **SIZES).replace(pattern=Local(window=W))
    return formers.spec(name, **SIZES)


def by_hand(name, n, batch):
    """FLOPs of a forward pass, of a training step and of one more token; bytes of the state: closed formulas, 2 a multiply-add."""
    rows = batch * n
    maps = N * (8 * D * D + 4 * D * F)  # q, k, v, o and two feed-forward maps, a token
    pairs = N * 4 * D  # q k and a v, a pair
    head = 2 * D * V
    keys = min(n + 1, W) if name == LOCAL else n + 1
    state = (W - 1 if name == LOCAL else n) * N * 2 * D * 4 * batch
    if name == "transformer":
        cross = N * 8 * D * D
        linear, square = rows * (2 * maps + cross + head), batch * 3 * n * n * pairs
        token = maps + N * 4 * D * D + head + pairs * (keys + n)
        state *= 2
    else:
        linear, square = rows * (maps + head), batch * n * n * pairs
        token = maps + head + pairs * keys
    # Of a linear map backward costs two; fused attention has four products to undo two, and computes the scores once more.
    return linear + square, 3 * linear + square * 7 // 2, batch * token, state


@sweep("name", ["transformer", "encoder", "decoder", LOCAL])
def test_formulas_written_by_hand_agree(name):
    batch = 3
    costs = Costs(spec_of(name), batch)
    for n in (64, 257):
        found = costs.at(n)
        forward, training, decoding, state = by_hand(name, n, batch)
        assert found.forward.total == pytest.approx(forward, rel=NEAR)
        assert found.training.total == pytest.approx(training, rel=NEAR)
        if name == "encoder":
            assert found.decoding is None
            assert found.state is None
        else:
            assert found.decoding.total == pytest.approx(decoding, rel=NEAR)
            assert found.state == state


@pytest.mark.parametrize("lengths", first_quick([(256,), (64, 1024)]), ids=str)
@sweep("name", ["transformer", "encoder", "decoder", LOCAL])
def test_real_runs_agree(name, lengths):
    costs, model = Costs(spec_of(name), 2), formers.build(spec_of(name))
    # The profiler that counts the FLOPs of a real forward pass knows nothing of the kernel that runs the pieces of long local rows.
    for n in lengths if name != LOCAL else (min(n, 500) for n in lengths):
        found = measured(model, 2, n)
        for what, figure in predicted(costs, n).items():
            assert figure == pytest.approx(found[what], rel=NEAR), (n, what)


def test_the_parts_of_a_decoder():
    flops = Costs(spec_of("decoder")).forward(128).flops
    assert flops == {
        "attention projections": N * 128 * 8 * D * D,
        "attention scores": N * 128 * 128 * 4 * D,
        "feed-forward": N * 128 * 4 * D * F,
        "head": 128 * 2 * D * V,
    }


def test_the_parts_of_an_encoder_decoder():
    flops = Costs(spec_of("transformer")).forward(32).flops
    assert flops["encoder feed-forward"] == flops["feed-forward"] == N * 32 * 4 * D * F
    assert flops["cross-attention projections"] == flops["attention projections"] == flops["encoder attention projections"]
    assert flops["cross-attention scores"] == flops["attention scores"] == flops["encoder attention scores"] == N * 32 * 32 * 4 * D


R = 16
"""The rank of a Linformer: E and F on x, and keys and values from R rows, unless each head has an E and an F of its own."""
LOW = {
    "none": lambda n: n * (8 * D * D + 4 * R * D),
    "headwise": lambda n: n * (4 * D * D + 4 * R * D) + R * 4 * D * D,
    "key-value": lambda n: n * (4 * D * D + 2 * R * D) + R * 4 * D * D,
    "layerwise": lambda n: n * (4 * D * D + 2 * R * D) + R * 4 * D * D,
}
KINDS = [*({"sharing": sharing} for sharing in LOW), {"projection": "mean"}, {"projection": "conv"}]


@sweep("sharing", LOW)
def test_the_parts_of_a_linformer(sharing):
    spec = formers.spec("linformer", **SIZES, length=256, rank=R, sharing=sharing)
    costs = Costs(spec)
    for n in (64, 256):
        assert costs.forward(n).flops == {
            "attention projections": N * LOW[sharing](n),
            "attention scores": N * n * R * 4 * D,
            "feed-forward": N * n * 4 * D * F,
            "head": n * 2 * D * V,
        }


@pytest.mark.parametrize("options", first_quick(KINDS, 2), ids=str)
def test_a_linformer_costs_twice_as_much_at_twice_the_length(options):
    short, long = (Costs(formers.spec("linformer", **SIZES, length=n, rank=64, **options), 2).at(n) for n in (2048, 4096))
    for figure in (lambda c: c.forward.total, lambda c: c.training.total, lambda c: c.training.activations, lambda c: c.training.peak):
        assert figure(long) / figure(short) == pytest.approx(2.0, abs=0.05)
    assert long.forward.scores == 2 * short.forward.scores


def test_an_encoder_s_scores_cost_four_times_as_much_at_twice_the_length():
    costs = Costs(spec_of("encoder"), 2)
    assert costs.forward(4096).scores == 4 * costs.forward(2048).scores


@pytest.mark.parametrize("options", first_quick(KINDS, 2), ids=str)
def test_real_runs_of_a_linformer_agree(options):
    spec = formers.spec("linformer", **SIZES, length=256, rank=R, **options)
    costs, model = Costs(spec, 2), formers.build(spec)
    for n in (64, 256):
        found = measured(model, 2, n)
        for what, figure in predicted(costs, n).items():
            assert figure == pytest.approx(found[what], rel=NEAR), (n, what)


def test_real_runs_by_slices_agree():
    spec = formers.spec("decoder", **SIZES, loss_chunk=100).replace(feedforward=Chunked(hidden=F, activation="gelu", chunk=60))
    costs, model = Costs(spec, 2), formers.build(spec)
    found = measured(model, 2, 256)
    for what, figure in predicted(costs, 256).items():
        assert figure == pytest.approx(found[what], rel=NEAR), what


def test_fixed_memory_is_that_of_real_weights_and_their_optimiser():
    costs = Costs(spec_of("transformer"))
    model = formers.create("transformer", **SIZES)
    bytes_of = sum(p.nbytes for p in model.parameters())
    assert costs.weights == costs.gradients == bytes_of
    assert costs.optimizer == pytest.approx(2 * bytes_of, rel=0.01)


def test_dropped_attention_weights_make_the_matrix_and_the_prediction_knows():
    spec = formers.spec("decoder", **SIZES, attention_dropout=0.1)
    found = Costs(spec).at(256).training
    assert "bmm" in found.forward.kernels
    inputs, targets = example(spec, 1, 256)
    model = formers.build(spec).train()
    _, peak = allocated(model, lambda: model(**inputs, targets=targets).loss.backward())
    assert found.peak == pytest.approx(peak, rel=NEAR)
    assert found.peak > 1.5 * Costs(spec_of("decoder")).at(256).training.peak


@sweep(
    "spec",
    [
        formers.spec("encoder", **SIZES, classes=3),
        formers.spec("encoder", features=5, classes=3, dim=D, heads=4, layers=N),
        formers.spec("encoder", **SIZES).replace(head=formers.heads.NoHead()),
        formers.spec("decoder", **SIZES, activation="swiglu", norm="post", position="learned", head_dim=24),
        formers.spec("decoder", **SIZES).replace(depth=formers.depth.Shared(layers=3)),
        formers.spec("transformer", **SIZES, source_vocab=50, tied=False),
    ],
)
def test_other_parts_are_counted_as_they_run(spec):
    found = Costs(spec, 2).at(48)
    inputs, targets = example(spec, 2, 48)
    model = formers.build(spec)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = model.eval()(**inputs, targets=targets)
    assert found.forward.total == counter.get_total_flops()
    assert (found.training is None) == (out.loss is None)


def test_the_share_of_pairs_is_the_patterns():
    for pattern in (Causal(), Local(window=W)):
        for n in (40, 300):
            share = allowed_share(formers.spec("decoder", **SIZES).replace(pattern=pattern), n)
            assert share == pytest.approx(pattern.mask(n).double().mean().item(), rel=NEAR)


def test_lengths_beyond_the_positions_are_refused():
    costs = Costs(formers.spec("decoder", **SIZES, position="learned", length=32))
    with refused("33 tokens", "length=32"):
        costs.at(33)
    assert costs.at(32).decoding is None
    assert costs.at(31).decoding is not None


@sweep("pattern", [Causal(), Local(window=5)])
def test_fake_tables_never_meet_real_ones(pattern):
    # Sizes of this test alone, so that neither its tables of positions nor its masks are kept yet.
    spec = formers.spec("decoder", vocab=11, dim=26, heads=2, layers=1).replace(pattern=pattern)
    model, tokens = formers.build(spec).eval(), torch.randint(11, (1, 37))
    before = Costs(spec).at(37)
    logits = model(tokens).logits
    assert type(logits) is torch.Tensor
    hidden = model.embedding(tokens)[0].double() + sinusoid(torch.arange(37), 26)
    close(model.stack.position(model.embedding(tokens), formers.core.Range(0, 37), 0)[0].double(), hidden, 1e-5)
    after = Costs(spec).at(37)
    assert (before.forward.flops, before.training.peak) == (after.forward.flops, after.training.peak)
    close(model(tokens).logits, logits, 0.0)


def test_a_fake_mode_keeps_tables_of_its_own_as_long_as_it_runs():
    model, tokens = formers.build(formers.spec("decoder", vocab=11, dim=22, heads=2, layers=1)), torch.zeros(1, 9, dtype=torch.long)
    expected = model(tokens).logits
    for _ in range(2):
        with FakeTensorMode() as fake:
            unreal = formers.build(model.spec)
            assert unreal(torch.zeros(1, 9, dtype=torch.long)).logits.shape == (1, 9, 11)
            assert fake is not None
    close(model(tokens).logits, expected, 0.0)


def test_predicting_draws_no_random_numbers():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    Costs(formers.spec("transformer", **SIZES)).at(16)
    gc.collect()
    close(torch.rand(3), expected, 0.0)


def test_the_state_of_fixed_attention_is_the_summaries_and_the_open_block():
    spec = formers.spec("decoder", vocab=16, dim=16, heads=2, layers=3, hidden=16, length=64, position="none")
    costs = Costs(spec.replace(pattern=Fixed(stride=32, summary=4)))
    for n in (31, 64, 100, 1000):
        kept = n // 32 * 4 + n % 32
        found = costs.at(n)
        assert found.state == kept * 2 * 16 * 4 * 3, n
        assert found.held < 2 * found.state + 200 * 2 * 16 * 4 * 3
    (verdict,) = [v for v in found.decoding.executors["attention executors"][0] if v.runs]
    assert verdict.name == "sdpa"
    assert "without a mask" in verdict.about
    strided = Costs(spec.replace(pattern=Strided(stride=32))).at(1000)
    assert strided.state == 1000 * 2 * 16 * 4 * 3
    assert strided.decoding.scores == 2 * 2 * 16 * (32 + 1000 // 32) * 3, "it keeps all, and reads its stride and a column"


def test_hashed_attention_is_counted_in_tiles() -> None:
    """Two products over the keys of two chunks, for each query, head and round, and the hashing by 16 directions."""
    spec = formers.spec("reformer", vocab=11, dim=16, heads=2, layers=1, length=512, rounds=3, chunk=32)
    cost = Costs(spec).at(512)
    assert cost.forward.scores == 2 * 2 * 3 * 512 * (64 * (8 + 8) + 8 * 16)
    assert cost.training is not None
    assert cost.training.total > 3 * cost.forward.total, "both passes, and what is computed again"


@sweep("cell", ["tanh", "gru", "lstm"])
def test_the_work_of_recurrent_layers_is_counted(cell):
    """Also that of an LSTM, which on a CPU is one operation that torch does not count."""
    gates = {"tanh": 1, "gru": 3, "lstm": 4}[cell]
    cost = Costs(formers.spec("rnn", vocab=V, cell=cell, dim=D, layers=N, length=16), 2).at(8)
    assert cost.forward.flops == {"attention": N * 2 * 8 * 2 * gates * D * 2 * D, "head": 2 * 8 * 2 * D * V}
    assert cost.forward.scores == 0
    assert cost.decoding.total == cost.forward.total / 8
    assert cost.training.total == pytest.approx(3 * cost.forward.total, rel=0.15)  # the first token's state needs no gradient
    assert cost.state == 2 * N * D * 4 * (2 if cell == "lstm" else 1)


def test_the_work_of_windows_is_counted():
    cost = Costs(formers.spec("word-window", vocab=V, dim=D, layers=N, window=3, length=16)).at(8)
    assert cost.forward.flops == {"attention": N * 8 * 4 * D * 2 * D, "head": 8 * 2 * D * V}
