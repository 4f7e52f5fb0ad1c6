"""An explanation says which executor runs and why not the others, and what a model costs; its words fit a plain terminal."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.console import Console

import formers
from formers.attention import EXECUTORS
from formers.attention.attend import Executor
from formers.inspect import explain_facts, explanation, subject
from formers.inspect.measure.units import in_bytes, in_flops
from formers.patterns import Causal, Local
from helpers import refused, sweep

SIZES = {"dim": 32, "heads": 4, "hidden": 128, "layers": 3, "length": 64}


def facts_of(member, lengths=(), batch=1, **options):
    what = subject(member, options=SIZES | options)
    return what, explain_facts(what, lengths, batch)


def printed(what, facts, encoding="utf-8", width=80):
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(explanation(what, facts, encoding))
    return out.getvalue()


def test_a_decoder_is_explained():
    what, facts = facts_of("decoder", [64, 16])
    assert json.loads(json.dumps(facts)) == facts
    assert [row["length"] for row in facts["lengths"]] == [16, 64]
    (training,) = facts["passes"]["training"]["attention"]
    assert training["layers"] == [0, 1, 2]
    assert [e["name"] for e in training["executors"]] == list(EXECUTORS)
    assert [e["runs"] for e in training["executors"]] == [name == "sdpa" for name in EXECUTORS]
    assert "causal" in next(e["about"] for e in training["executors"] if e["runs"])
    assert facts["passes"]["training"]["kernels"] == ["_scaled_dot_product_flash_attention_for_cpu"]
    text = printed(what, facts)
    for words in ("0-2", "dense", "not needed: sdpa comes first", "feed-forward", f"{facts['parameters']['total']:,}", "a token"):
        assert words in text


def test_attention_costs_as_much_as_all_else_where_the_formula_says():
    _, facts = facts_of("decoder", [128])
    d, f, v, n = 32, 128, 256, 3
    assert facts["even"] == round((n * (8 * d * d + 4 * d * f) + 2 * d * v) / (n * 4 * d))
    _, facts = facts_of("decoder", position="learned")
    assert facts["even"] == pytest.approx((n * (8 * d * d + 4 * d * f) + 2 * d * v) / (n * 4 * d), abs=1)


def test_figures_are_a_tokens_whatever_the_batch():
    _, one = facts_of("decoder", [32])
    _, four = facts_of("decoder", [32], batch=4)
    alone, together = one["lengths"][0], four["lengths"][0]
    assert together["flops_per_token"] == pytest.approx(alone["flops_per_token"])
    assert together["bytes"]["activations"] == pytest.approx(4 * alone["bytes"]["activations"], rel=0.05)
    assert together["bytes"]["state_per_token"] == alone["bytes"]["state_per_token"] == 2 * 3 * 32 * 4


def test_lengths_end_where_positions_do():
    what, facts = facts_of("decoder", position="learned", length=200)
    assert [row["length"] for row in facts["lengths"]] == [128, 200]
    assert "512 tokens do not fit" in facts["beyond"]
    assert facts["passes"]["training"]["length"] == 200
    assert facts["passes"]["decoding"]["length"] == 128
    assert "Longer rows are left out" in printed(what, facts).replace("\n", " ")
    with refused("201 tokens", "length=200"):
        facts_of("decoder", [201], position="learned", length=200)


def test_executors_that_refuse_are_named_with_their_reason(monkeypatch):
    picky = Executor(lambda request, q, k, v: f"it wants {q.shape[2] + 1} queries", EXECUTORS["dense"].run, "never content")
    only_long = Executor(lambda request, q, k, v: None if q.shape[2] >= 32 else "it is short", EXECUTORS["dense"].run, "for long rows")
    monkeypatch.setattr(sys.modules["formers.attention.attend"], "EXECUTORS", {"picky": picky, "long": only_long, **EXECUTORS})
    what, facts = facts_of("decoder", [16, 32])
    (training,) = facts["passes"]["training"]["attention"]
    why_not = {e["name"]: e["why_not"] for e in training["executors"]}
    assert {name: why_not[name] for name in ("picky", "long", "sdpa", "dense")} == {
        "picky": "it wants 33 queries",
        "long": None,
        "sdpa": None,
        "dense": None,
    }
    assert [e["name"] for e in training["executors"] if e["runs"]] == ["long"]
    (decoding,) = facts["passes"]["decoding"]["attention"]
    assert {e["name"]: e["why_not"] for e in decoding["executors"]}["long"] == "it is short"
    text = " ".join(printed(what, facts, width=200).split())
    assert "cannot: it wants 33 queries" in text
    assert "not needed: long comes first" in text
    assert "At length 16 attention in training runs sdpa." in text
    assert facts["passes"]["training"]["kernels"] == ["bmm"]


def test_layers_that_differ_stand_apart(monkeypatch):
    monkeypatch.setattr(Local, "at", lambda self, layer: Causal() if layer == 1 else self)
    what = subject("decoder", options=SIZES)
    groups = explain_facts(what._replace(spec=what.spec.replace(pattern=Local(window=3))), [24])["passes"]["training"]["attention"]
    assert [group["layers"] for group in groups] == [[0], [1], [2]]
    running = [next(e["about"] for e in group["executors"] if e["runs"]) for group in groups]
    assert "24 x 24 bytes" in running[0]
    assert "causal" in running[1]


def test_a_run_is_explained(tmp_path):
    model = formers.build(formers.spec("decoder", vocab=50, **SIZES).replace(pattern=Local(window=8)))
    model.save_pretrained(tmp_path / "mine")
    what = subject(str(tmp_path / "mine"))
    facts = explain_facts(what, [32])
    assert facts["parameters"]["total"] == model.parameter_count()
    assert facts["member"] == "decoder"
    assert facts["lengths"][0]["pairs_allowed"] == pytest.approx(Local(window=8).mask(32).double().mean().item())
    text = printed(what, facts, width=200)
    assert "Local(window=8) allows" in text
    assert "mine: decoder" in text
    with refused("mine", "--preset"):
        subject(str(tmp_path / "mine"), preset="base")
    with refused("config.json"):
        subject(str(tmp_path))


@sweep("member", ["transformer", "encoder", "decoder"])
def test_explanations_fit_a_plain_terminal(member):
    what, facts = facts_of(member, [100, 32768])
    text = printed(what, facts, encoding="ascii")
    # The rules of rich's tables follow the console, which here can show them.
    assert all(c.isascii() or c == "─" for c in text)
    assert max(map(len, text.splitlines())) <= 80
    assert "32,768" in text
    assert ("decoding" in facts["passes"]) == (member != "encoder")
    assert ("the state is" in text) == (member != "encoder")


def test_mistakes_are_one_sentence():
    with refused("decodr", "did you mean 'decoder'", "run"):
        subject("decodr")
    for lengths, batch, word in (([1], 1, "length=1"), ([1 << 40], 1, "length="), ([8], 0, "batch=0")):
        with refused(word):
            explain_facts(subject("decoder"), lengths, batch)


def test_units_are_readable():
    assert [in_flops(n) for n in (0, 7, 1.5, 999, 1234, 12_345, 999_960, 1.5e9, 2e12)] == [
        "0 FLOP", "7 FLOP", "1.50 FLOP", "999 FLOP", "1.23 kFLOP", "12.3 kFLOP", "1.00 MFLOP", "1.50 GFLOP", "2.00 TFLOP",
    ]  # fmt: skip
    assert [in_bytes(n) for n in (0, 512, 1023, 1024, 4 << 20, 1536 << 20)] == [
        "0 B", "512 B", "1.00 KiB", "1.00 KiB", "4.00 MiB", "1.50 GiB",
    ]  # fmt: skip


@sweep(
    ("dim", "rank", "options", "ever"),
    [
        (64, 16, {}, False),
        (64, 16, {"sharing": "none"}, False),
        (8, 512, {"sharing": "headwise"}, False),  # the projections cost as much as the scores
        (8, 512, {"sharing": "layerwise"}, True),
        (8, 2048, {"projection": "mean"}, True),
    ],
)
def test_where_attention_over_projected_keys_costs_as_much_as_all_else(dim, rank, options, ever):
    facts = explain_facts(
        subject("linformer", vocab=9, options=dict(dim=dim, heads=4, layers=1, rank=rank, hidden=8, length=2048, **options))
    )
    assert (facts["even"] is not None) == ever
    for row in facts["lengths"]:
        more = row["scores_share"]["forward"] >= 0.5
        assert more == (ever and row["length"] >= facts["even"]), row
    assert [row["length"] for row in facts["lengths"]] == [128, 512, 2048]
    assert "8192 tokens" in facts["beyond"]


def test_rows_that_are_computed_token_by_token_are_short_unless_asked_for() -> None:
    fed = subject("seq2seq", vocab=20, options={"dim": 8})
    facts = explain_facts(fed)
    assert [row["length"] for row in facts["lengths"]] == [2, 8]
    assert "token by token" in facts["beyond"]
    assert [row["length"] for row in explain_facts(fed, [3])["lengths"]] == [3]
