"""The benches run, alternate, and check their limits; speed is checked by `formers bench --check`, never here."""

from __future__ import annotations

import pytest
import torch

from formers.bench import decode, evaluation, linformer, plain, span, train
from formers.bench.timing import alternate, both_ways, ratio
from formers.model import build
from helpers import refused


def test_things_take_turns_in_alternating_order():
    calls = []
    times = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, warmup=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert {name: len(t) for name, t in times.items()} == {"a": 3, "b": 3}


def test_a_tick_follows_every_run():
    ticks = []
    alternate({"a": lambda: None, "b": lambda: None}, rounds=2, warmup=1, tick=lambda: ticks.append(1))
    assert len(ticks) == 6


def test_both_ways_are_a_result_and_its_gradients():
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    (gradient,) = both_ways(lambda: x * x, (x,), torch.tensor([1.0, 10.0]))
    assert gradient.tolist() == [4.0, 60.0]


def test_a_ratio_is_the_median_of_neighbours():
    assert ratio({"a": [1.0, 4.0, 9.0], "b": [1.0, 2.0, 3.0]}, "a", "b") == 2.0


def test_the_decode_bench_compares_equal_logits(monkeypatch):
    monkeypatch.setattr(decode, "SIZES", dict(vocab=256, dim=16, heads=2, layers=1, hidden=32))
    monkeypatch.setattr(decode, "CONTEXTS", (16, 32, 64, 128))
    monkeypatch.setattr(decode, "WRITTEN", (4,))
    results = decode.bench_decode(context=40, rounds=1)
    assert set(decode.LIMITS) - {"generate_1024_to_plain"} <= set(results)
    assert results["largest_difference"] < 1e-4
    assert results["cached_seconds"] > 0
    assert results["speedup"] == pytest.approx(results["recomputed_seconds"] / results["cached_seconds"])


def test_the_train_bench_measures_both_sides(monkeypatch):
    monkeypatch.setattr(train, "SIZES", dict(vocab=256, dim=16, heads=2, layers=1, hidden=32, length=16))
    monkeypatch.setattr(train, "BATCH", 2)
    results = train.bench_train(rounds=1)
    assert results["ours_to_plain"] == pytest.approx(results["our_seconds"] / results["plain_seconds"])
    assert set(train.LIMITS) <= set(results)


@torch.inference_mode()
def test_the_plain_decoder_decodes_what_it_would_recompute():
    model = plain.PlainDecoder(vocab=19, dim=16, heads=2, layers=2, hidden=32, length=40).eval()
    tokens = torch.randint(19, (2, 3))
    written = model.write(tokens, 20).clone()
    for n in range(3, 23):
        assert written[:, n].equal(model.read(written[:, :n])[0][:, -1].argmax(-1))


def test_the_linformer_bench_has_a_slope_for_each_and_refuses_what_has_none():
    results = linformer.bench_linformer([32, 64], rank=8, rounds=1)
    assert set(linformer.LIMITS) <= set(results)
    assert results["speedup"] == pytest.approx(results["dense_64_seconds"] / results["lowrank_64_seconds"])
    assert linformer._slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    assert linformer._slope([1, 2, 4], [3.0, 6.0, 12.0]) == pytest.approx(1.0)
    with refused("[64]", "two different lengths"):
        linformer.bench_linformer([64, 64], rank=8, rounds=1)
    with refused("rank=99"):
        linformer.bench_linformer([64, 128], rank=99, rounds=1)


def test_the_span_bench_has_two_models_that_differ_in_their_spans_alone(monkeypatch):
    monkeypatch.setattr(span, "SIZES", {**span.SIZES, "dim": 16, "layers": 1, "hidden": 16, "length": 32, "span": 256})
    monkeypatch.setattr(span, "SEGMENT", 32)
    monkeypatch.setattr(span, "MOST", 256)
    results = span.bench_span(rounds=1)
    assert set(span.LIMITS) <= set(results)
    assert all(value > 0 for value in results.values())
    short, long = (span._model(share).stack.depth.blocks[0].attention.score for share in (64 / 256, 1.0))
    assert (short.reach(0), long.reach(0)) == (128, 257)


def test_the_evaluation_bench_fills_the_memory_and_slides_one_window(monkeypatch):
    monkeypatch.setattr(evaluation, "SIZES", dict(vocab=256, dim=16, heads=2, layers=1, hidden=32))
    monkeypatch.setattr(evaluation, "SEGMENT", 8)
    widths = []

    def looked(spec):
        model = build(spec)
        model.register_forward_pre_hook(lambda module, given: widths.append(given[0].shape[1]))
        return model

    monkeypatch.setattr(evaluation, "build", looked)
    monkeypatch.setattr("formers.model.respecify.build", looked)
    results = evaluation.bench_evaluation((20,), rounds=1)
    assert results["speedup_20"] == pytest.approx(results["sliding_20_seconds"] / results["memory_20_seconds"])
    assert widths == [8] * 3 + ([8] * evaluation.SEGMENTS + [20]) * 2
