"""Members side by side: equal parameters, each trained once, judged alike, and a table with its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import formers
from formers.bench import compare
from formers.cli.options import parse_set
from formers.family.variants import variant
from helpers import refused, sweep


@sweep("member", ["transformer-xl", "adaptive-span", "character-transformer"])
def test_the_feed_forward_network_makes_members_equal(member):
    _, wanted = compare.fitted("decoder", {}, None)
    options, count = compare.fitted(member, {}, wanted)
    assert abs(count - wanted) <= 0.01 * wanted
    assert options["hidden"] % 8 == 0
    model = formers.create(member, vocab=256, **options)
    assert model.parameter_count(training=False) == count


@sweep("member", ["rnn", "act-rnn", "word-window", "seq2seq"])
@sweep("data", ["my.txt", "task:copy,length=3"])
def test_members_without_one_are_made_equal_by_their_width(member, data):
    _, wanted = compare.fitted("decoder", {"dim": 64}, None, data)
    options, count = compare.fitted(member, {"dim": 64}, wanted, data)
    assert abs(count - wanted) <= 0.05 * wanted
    assert options["dim"] % 2 == 0
    nearest = [compare._count(member, {**options, "dim": options["dim"] + more}, data) for more in (-2, 2)]
    assert all(abs(count - wanted) <= abs(other - wanted) for other in nearest)


def test_tasks_are_compared_with_their_own_tokens_and_exact_scores(commands, monkeypatch, tmp_path):
    answered = compare._formers
    exact = {"loss": 0.5, "accuracy": 0.9, "exact": 0.75, "protocol": "all 5 rows"}
    monkeypatch.setattr(compare, "_formers", lambda *words: answered(*words) and exact)
    variants = [variant(text, parse_set) for text in ("decoder", "rnn")]
    found = compare.compare(variants, "task:copy,length=3", tmp_path, {"dim": 32}, steps=5, say=lambda _: None)
    assert not any("--tokens" in words for words in commands)
    page = compare.markdown(found, "formers compare")
    assert "| | parameters | loss | accuracy | exact | tokens/s | steps | peak memory |" in page
    assert " 0.500 | 90.0% | 75.0% |" in page


def test_what_a_variant_says_itself_is_not_fitted(commands, tmp_path):
    variants = [variant(text, parse_set) for text in ("decoder", "decoder:dim=32", "rnn:dim=32", "decoder:hidden=64")]
    found = compare.compare(variants, "my.txt", tmp_path, {"dim": 64}, steps=5, say=lambda _: None)
    first, fitted, narrow, small = (row["parameters"] for row in found["rows"])
    assert abs(fitted - first) < 0.02 * first  # by its feed-forward network
    assert narrow == formers.create("rnn", vocab=256, dim=32).parameter_count()
    assert small == formers.create("decoder", vocab=256, dim=64, hidden=64).parameter_count()


def test_whose_number_cannot_be_met_is_named(tmp_path):
    variants = [variant(text, parse_set) for text in ("rnn", "decoder")]
    with refused("decoder cannot have", "as rnn has"):
        compare.compare(variants, "task:copy,length=3", tmp_path, {"dim": 32}, steps=5, say=lambda _: None)


def test_what_cannot_be_equal_is_refused():
    with refused("decoder", "1,000 parameters", "--parameters"):
        compare.fitted("decoder", {}, 1000)
    with refused("no member", "decodr"):
        variant("decodr", parse_set)


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The commands that a comparison runs, which are answered without being run; beside them lies my.txt."""
    ran: list[tuple[str, ...]] = []
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("to be, or not to be, that is the question\n" * 100)

    def answer(*words: str) -> dict[str, object]:
        ran.append(words)
        if words[0] == "train":
            folder = Path(words[words.index("--out") + 1])
            folder.mkdir(parents=True, exist_ok=True)
            results = {"tokens_per_second": 1234.5, "steps": 7, "peak_memory_bytes": 5e8}
            (folder / "run.json").write_text(json.dumps({"finished": True, "command": ["formers", *words, "--json"], "results": results}))
        return {"bits_per_byte": 2.5, "loss": 1.7, "targets": 10, "protocol": "windows of 3 tokens"}

    monkeypatch.setattr(compare, "_formers", answer)
    return ran


def test_each_is_trained_once_and_judged_on_the_same_slice(commands, tmp_path):
    variants = [variant(text, parse_set) for text in ("decoder", "decoder:layers=2,batch=4")]
    for again in (False, True):
        commands.clear()
        found = compare.compare(variants, "my.txt", tmp_path, {"dim": 64}, minutes=3, limit=50, say=lambda _: None)
        trained = [words for words in commands if words[0] == "train"]
        judged = [words for words in commands if words[0] == "eval"]
        assert len(judged) == 2
        assert all(words[-2:] == ("--limit", "50") for words in judged)
        assert len(trained) == (0 if again else 2)
        for words in trained:
            assert words[:4] == ("train", "decoder", "--data", "my.txt")
            assert words[6:8] == ("--minutes", "3")
            assert "dim=64" in words
        if trained:
            assert {"layers=2", "batch=4"} <= set(trained[1])
            assert any(word.startswith("hidden=") for word in trained[1])
    rows = found["rows"]
    assert [row["variant"] for row in rows] == ["decoder", "decoder:layers=2,batch=4"]
    assert abs(rows[1]["parameters"] - rows[0]["parameters"]) < 0.01 * rows[0]["parameters"]
    page = compare.markdown(found, "formers compare decoder")
    assert "$ formers compare decoder" in page
    assert "| `decoder:layers=2,batch=4` |" in page
    assert "| 2.500 | 1,234 | 7 | 500 MB |" in page
    assert "windows of 3 tokens" in page


def test_a_run_of_another_command_stays_unless_it_may_be_overwritten(commands, tmp_path):
    one = [variant("decoder", parse_set)]
    for minutes in (1, 2):
        commands.clear()
        if minutes == 2:
            with refused("decoder", "another command", "--overwrite"):
                compare.compare(one, "my.txt", tmp_path, {}, minutes=minutes, say=lambda _: None)
            assert not commands
        compare.compare(one, "my.txt", tmp_path, {}, minutes=minutes, overwrite=True, say=lambda _: None)
        assert commands[0][0] == "train"
        assert ("--overwrite" in commands[0]) == (minutes == 2)
    with refused("bytes", "tokens"):
        compare.compare([variant("decoder:tokens=words", parse_set)], "my.txt", tmp_path, {}, minutes=1)


def test_another_seed_is_another_command(commands, tmp_path):
    for seed in (0, 3):
        commands.clear()
        one = [variant("decoder", parse_set)]
        found = compare.compare(one, "my.txt", tmp_path, {}, steps=1, seed=seed, overwrite=True, say=lambda _: None)
        assert commands[0][0] == "train"
        assert ("--seed" in commands[0]) == (seed == 3), "0 is what `train` takes by itself"
        assert found["seed"] == seed


def test_the_same_twice_is_refused(commands, tmp_path):
    with refused("two variants"):
        compare.compare([variant("decoder", parse_set)] * 2, "my.txt", tmp_path, {}, minutes=1)
    assert not commands


@pytest.mark.parametrize(
    ("texts", "data", "words"),
    [
        (("decoder", "rnn:cel=gru"), "my.txt", ["cel", "cell"]),
        (("decoder", "seq2seq"), "my.txt", ["my.txt", "pairs"]),
        (("rnn", "seq2seq"), "two.tsv", ["rnn learns from", "seq2seq from", "read the data alike"]),
        (("decoder", "act-rnn"), "task:parity,bits=5", ["decoder learns from", "act-rnn from", "read the data alike"]),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(commands, tmp_path, texts, data, words):
    Path("two.tsv").write_text("".join(f"one {n}\tun {n}\n" for n in range(200)))
    with refused(*words):
        compare.compare([variant(text, parse_set) for text in texts], data, tmp_path, {"dim": 32}, steps=5, say=lambda _: None)
    assert not commands


def test_a_command_that_fails_ends_the_comparison(tmp_path):
    with refused("formers eval", "code 2"):
        compare._formers("eval", str(tmp_path / "nothing"))
