"""Buckets, seen: what is counted is what attention does, in the order of the given tokens, and a later token moves nothing but chunks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import formers
from formers.attention import LSH
from formers.attention.lsh.hashing import in_order
from formers.attention.lsh.layer import ByLayer
from formers.attention.lsh.reference import Rules, pair_counts
from formers.attention.multihead import DotProduct
from formers.cli.show import app
from formers.inspect import buckets_facts, buckets_of, draw_buckets, dropped_share, moved, moved_facts, save_buckets
from formers.inspect.draw.buckets import bucket_names
from formers.inspect.measure.buckets import figures
from formers.inspect.measure.leak import Moved
from helpers import refused, sweep

TEXT = "the quick brown fox jumps over the lazy dog"


def model(member: str = "decoder", **options) -> formers.Model:
    torch.manual_seed(0)
    part = LSH(**{"rounds": 2, "chunk": 4, "reach": "chunk", **options})
    return formers.build(formers.spec(member, vocab=256, dim=32, heads=2, layers=2, length=48).replace(attention=part))


def tokens(text: str = TEXT) -> torch.Tensor:
    return torch.tensor([list(text.encode())])


def test_the_share_that_chunks_drop_is_counted_by_hand() -> None:
    # One bucket of 6 tokens in chunks of 2 that look one back: of 15 earlier keys a query misses those two chunks before, 2 x 2 pairs.
    one = in_order(torch.zeros(1, 1, 1, 6, dtype=torch.int32))
    assert dropped_share(one, Rules(causal=True, chunk=2)) == 4 / 15
    assert dropped_share(one, Rules(causal=True, chunk=3)) == 0.0
    assert dropped_share(one, Rules(causal=True, chunk=2, look_back=0)) == 12 / 15
    assert dropped_share(one, Rules(causal=False, chunk=2, look_ahead=1)) == 8 / 30
    # A second round in which the far pairs share a small bucket lets them meet.
    far = torch.tensor([[[[0, 0, 0, 0, 0, 0], [0, 0, 1, 2, 0, 0]]]], dtype=torch.int32)
    assert dropped_share(in_order(far), Rules(causal=True, chunk=2)) == 0.0
    assert dropped_share(in_order(torch.arange(6, dtype=torch.int32).view(1, 1, 1, 6)), Rules(causal=True, chunk=2)) is None


@sweep("reach", ["chunk", "bucket"])
@sweep("member", ["decoder", "encoder"])
def test_figures_are_those_of_the_meetings(member: str, reach: str) -> None:
    seen = buckets_of(model(member, reach=reach), tokens())
    assert [layer.step for layer in seen.layers] == [0, 1]
    for layer in seen.layers:
        found = figures(layer)
        apart = ~torch.eye(len(TEXT), dtype=torch.bool)
        met = pair_counts(layer.hashed, layer.rules)[0] * apart
        often = pair_counts(layer.hashed, layer.rules._replace(duplicates=True))[0] * apart
        assert found.keys == pytest.approx(float(met.sum()) / (2 * len(TEXT)))
        assert found.most_keys == int(met.sum(dim=2).max())
        assert found.alone == pytest.approx(float((met.sum(dim=2) == 0).double().mean()))
        assert found.several == pytest.approx(float((often == 2).sum() / (often > 0).sum()))
        whole = pair_counts(layer.hashed, layer.rules._replace(reach="bucket"))[0] * apart
        near = pair_counts(layer.hashed, layer.rules._replace(reach="chunk"))[0] * apart
        assert found.dropped == pytest.approx(1 - float(near.sum() / whole.sum()))
        used = [len(set(row.tolist())) for row in layer.hashed.buckets[0].flatten(0, 1)]
        assert found.used == sum(used) / len(used)
        assert 1 < found.used < layer.buckets == 24


def test_only_layers_that_hash_have_buckets_and_others_are_refused() -> None:
    spec = formers.spec("decoder", vocab=256, dim=32, heads=2, layers=4, length=48)
    mixed = formers.build(spec.replace(attention=ByLayer(DotProduct(), LSH(chunk=4))))
    seen = buckets_of(mixed, tokens())
    assert [layer.step for layer in seen.layers] == [1, 3]
    assert seen.chosen().step == 1
    with refused("layer=0", "1, 3"):
        seen.chosen(0)
    with refused("head=2", "0 ... 1"):
        seen.chosen(3, 2)
    with refused("round=5", "0 ... 1"):
        seen.chosen(3, 0, 5)
    with refused("no LSH attention"):
        buckets_of(formers.build(spec), tokens())
    with refused("3,000 tokens", "2,048"):
        buckets_of(mixed, tokens("a" * 3000))


def test_an_inspection_has_the_buckets_of_padded_rows_in_the_order_of_their_tokens() -> None:
    built, row = model(), tokens()
    alone = built.inspect(row).notes["buckets"]
    places = torch.tensor([0, 3, *range(5, 5 + len(TEXT) - 2)])
    padded, mask = torch.zeros(2, 46, dtype=torch.long), torch.zeros(2, 46, dtype=torch.bool)
    padded[0, places], mask[0, places] = row[0], True
    padded[1, : len(TEXT)], mask[1, : len(TEXT)] = row[0], True
    for found, wanted in zip(built.inspect(padded, mask=mask).notes["buckets"], alone, strict=True):
        assert found[0, ..., places].equal(wanted[0])
        assert found[1, ..., : len(TEXT)].equal(wanted[0])
        assert (found.transpose(1, -1)[~mask] == -1).all()


def test_a_later_token_moves_chunks_and_never_whole_buckets() -> None:
    chunked, whole = model(), model(reach="bucket")
    found = moved(chunked, buckets_of(chunked, tokens()))
    assert found is not None
    assert found.places == 16
    assert 0 < found.queries[0] < 1
    assert 0 < found.keys[0] < found.queries[0]
    assert 0 < (found.predictions or 0) < 0.2
    still = moved(whole, buckets_of(whole, tokens()), places=3)
    assert still == Moved(3, {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}, 0.0)
    assert moved(model("encoder"), buckets_of(model("encoder"), tokens())) is None
    assert moved_facts(None) is None
    with refused("places=0"):
        moved(whole, buckets_of(whole, tokens()), places=0)


def test_the_drawing_has_the_letter_of_its_bucket_below_every_token() -> None:
    seen = buckets_of(model(), tokens("ab cab cab"), "mine")
    shown = seen.layers[1]
    names = bucket_names(shown.hashed.buckets[0, 1, 1])
    drawing = draw_buckets(seen, 1, 1, 1).plain
    lines = drawing.splitlines()
    assert lines[0] == " ab␣cab␣cab"
    assert lines[1] == " " + "".join(names[b] for b in shown.hashed.buckets[0, 1, 1].tolist())
    rows = [line.split()[1:] for line in lines if line[:2].strip().isdigit() and ("·" in line or "■" in line)]
    keys = [[j for j, mark in enumerate(row) if mark == "■"] for row in rows]
    assert keys == buckets_facts(seen, 1, 1)["keys"]
    assert "mine, layer 1, head 1" in drawing
    assert draw_buckets(seen, encoding="ascii").plain.isascii()
    long = buckets_of(model(), tokens())
    assert all(len(line) <= 40 for line in draw_buckets(long, columns=40).plain.splitlines())


def test_names_go_on_after_z() -> None:
    names = bucket_names(torch.arange(0, 60, 2))
    assert (names[0], names[50], names[52], names[58]) == ("a", "z", "aa", "ad")


@pytest.mark.parametrize("reach", ["chunk", "bucket"])
def test_a_picture_is_written(reach: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = save_buckets(buckets_of(model(reach=reach), tokens("a $x$ line\n")), tmp_path / "buckets.svg")
    assert "<svg" in out.read_text()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buckets") / "model"
    model().save_pretrained(folder)
    return folder


def test_the_command_prints_drawing_figures_and_json(saved: Path, tmp_path: Path) -> None:
    def call(*words: str) -> str:
        done = CliRunner().invoke(app, ["buckets", str(saved), *words], catch_exceptions=False, env={"COLUMNS": "80"})
        assert done.exit_code == 0
        return done.stdout

    said = call("--text", TEXT)
    assert "the␣quick" in said
    assert "moved" in said
    facts = json.loads(call("--text", TEXT, "--layer", "1", "--round", "1", "--json"))
    assert [each["layer"] for each in facts["layers"]] == [0, 1]
    assert (facts["layer"], facts["round"], len(facts["buckets"])) == (1, 1, len(TEXT))
    assert set(facts["moved"]["queries"]) == {"0", "1"}
    text = tmp_path / "notes.txt"
    text.write_text(TEXT * 30)
    assert len(json.loads(call("--data", str(text), "--length", "20", "--json"))["tokens"]) == 20
    assert len(json.loads(call("--data", str(text), "--json"))["tokens"]) == 48
    with refused("--text and --data"):
        call()
    with refused("empty"):
        call("--text", "")
    with refused("--length 9"):
        call("--text", "a", "--length", "9")
    with refused("buckets.pdf"):
        call("--text", "a", "--out", "buckets.pdf")


def test_a_member_without_buckets_is_refused() -> None:
    with refused("decoder, untrained has no LSH attention"):
        CliRunner().invoke(app, ["buckets", "decoder", "--text", "a"], catch_exceptions=False)
