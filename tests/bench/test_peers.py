"""`formers bench peers`: ours and theirs compute the same, or as much; a peer that is not there is named."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from formers.bench import peers
from formers.cli.bench import app
from formers.core import FormersError
from formers.patterns import Blocks, Local
from helpers import one_sentence, refused

SMALL = dict(vocab=256, dim=32, heads=2, layers=1, hidden=64, length=256)


@pytest.fixture
def small(monkeypatch):
    """Sizes at which the peers still do what they do at large ones."""
    pytest.importorskip("local_attention")
    pytest.importorskip("transformers")
    for name, value in dict(LENGTH=64, WINDOW=8, SIZES=SMALL, BLOCK=16).items():
        monkeypatch.setattr(peers, name, value)


def test_all_peers_are_timed_and_attention_is_the_same(small):
    done = CliRunner().invoke(app, ["peers", "--rounds", "1", "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert [row["name"] for row in facts["rows"]] == ["local", "blocks", "bigbird"]
    for row in facts["rows"]:
        assert facts[f"{row['name']}_speedup"] == row["speedup"] == pytest.approx(row["their_seconds"] / row["our_seconds"])
    assert max(row["difference"] for row in facts["rows"][:2]) < peers.NEAR
    assert "random blocks" in facts["note"]
    assert facts["rows"][2]["theirs_parameters"] > facts["rows"][2]["ours_parameters"]


def test_models_differ_by_one_norm_and_the_kinds_of_tokens(small):
    ours, theirs = (sum(p.numel() for p in model.parameters()) for model in (peers.our_bigbird(), peers.their_bigbird()))
    assert theirs - ours == 2 * SMALL["dim"] + 2 * SMALL["dim"]


def test_another_mask_is_never_timed(small):
    for wrong, exact in ((Local(window=8), True), (Local(window=9), False), (Blocks(query=8, memory=8), True)):
        with refused("local-attention", "something else"):
            peers._beside_local_attention("local", wrong, exact, 1, lambda: None)


def test_a_peer_that_computes_all_pairs_is_never_timed(small, monkeypatch):
    monkeypatch.setattr(peers, "SIZES", {**SMALL, "length": 64})
    with refused("all pairs", "64"):
        peers._beside_transformers(1, lambda: None)


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(peers, "PEERS", {"no_such_module": "no-such-package"})
    with pytest.raises(FormersError, match="pip install no-such-package") as caught:
        CliRunner().invoke(app, ["peers"], catch_exceptions=False)
    one_sentence(str(caught.value))
