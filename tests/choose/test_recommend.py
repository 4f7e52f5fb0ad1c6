"""What is recommended: members that can do the job and fit, by their costs, with what would change it and no claim of quality."""

from __future__ import annotations

import json

import pytest

from commands import command
from formers.choose import choose, recommend, situation
from formers.choose.measure import Priced, StepFlops, StepTime
from helpers import refused


@pytest.fixture
def few(monkeypatch):
    """A family of five."""
    names = ("decoder", "sparse-transformer", "encoder", "rnn", "image-transformer")
    monkeypatch.setattr(recommend, "MEMBERS", {name: recommend.MEMBERS[name] for name in names})
    return ["--set", "dim=32", "--set", "layers=1"]


def test_short_rows_get_the_plain_member_first_and_no_claim_of_quality(few):
    found = choose(situation(None, 64), "cpu", options={"dim": 32, "layers": 1})
    assert [row["member"] for row in found["rows"]].count("decoder") == 1
    assert found["recommended"][0]["member"] == "decoder"
    assert "rnn" not in [each["member"] for each in found["recommended"]], "a baseline"
    assert set(found["cannot"]) == {"encoder", "image-transformer"}
    assert found["quality"] == "not measured"
    assert any("quality" in change for change in found["changes"])
    assert found["compare"].startswith("formers compare decoder")
    json.dumps(found)


def test_what_does_not_fit_is_not_recommended(few):
    found = choose(situation(None, 64), "cpu", ram=1e-6, options={"dim": 32, "layers": 1})
    assert found["recommended"] == []
    assert any("memory: decoder needs" in change for change in found["changes"])
    with refused("ram=0"):
        choose(situation(None, 64), "cpu", ram=0)


def test_the_command_prints_a_table_or_json(few, tmp_path):
    done = command("choose", "--length", "32", "--device", "cpu", *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("Try first", "What would change this", "tokens/s", "formers compare decoder"):
        assert words in done.stdout
    found = json.loads(command("choose", "--length", "32", "--device", "cpu", *few, "--json", cwd=tmp_path).stdout)
    assert {"rows", "recommended", "changes", "cannot", "cross_overs", "quality"} <= found.keys()
    wrong = command("choose", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--length" in wrong.stderr


def test_a_cross_over_is_where_two_curves_meet():
    def priced(dense, pairs, power):
        curve = {n: StepFlops(dense * n, pairs * n**power) for n in (128, 1024, 16384)}
        return Priced(None, 128, 1, 1, curve[128], 1, 1.0, (), StepTime(0.0, 1e-9, 1e-9), curve)  # type: ignore[arg-type]

    full, sparse = priced(100.0, 1.0, 2.0), priced(1100.0, 0.0, 1.0)
    length, cheaper_when_short = recommend.cross_over(full, sparse)
    assert length == pytest.approx(1000, rel=0.12)
    assert not cheaper_when_short
    assert recommend.cross_over(full, priced(50.0, 0.0, 1.0)) == (None, True)
