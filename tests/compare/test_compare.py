"""Members side by side: equal parameters, each trained once, judged alike, and a table with its command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import formers
from formers.cli.options import parse_set
from formers.compare import Budget, fitting, runs, table
from formers.compare import compare as whole
from formers.family.variants import variant
from helpers import refused, sweep


@sweep("member", ["transformer-xl", "adaptive-span", "character-transformer"])
def test_the_feed_forward_network_makes_members_equal(member):
    _, wanted = fitting.fitted("decoder", {}, None)
    options, count = fitting.fitted(member, {}, wanted)
    assert abs(count - wanted) <= 0.01 * wanted
    assert options["hidden"] % 8 == 0
    model = formers.create(member, vocab=256, **options)
    assert model.parameter_count(training=False) == count


@sweep("member", ["rnn", "act-rnn", "word-window", "seq2seq"])
@sweep("data", ["my.txt", "task:copy,length=3"])
def test_members_without_one_are_made_equal_by_their_width(member, data):
    _, wanted = fitting.fitted("decoder", {"dim": 64}, None, data)
    options, count = fitting.fitted(member, {"dim": 64}, wanted, data)
    assert abs(count - wanted) <= 0.05 * wanted
    assert options["dim"] % 2 == 0
    nearest = [fitting.count_parameters(member, {**options, "dim": options["dim"] + more}, data) for more in (-2, 2)]
    assert all(abs(count - wanted) <= abs(other - wanted) for other in nearest)


def test_tasks_are_compared_with_their_own_tokens_and_exact_scores(commands, monkeypatch, tmp_path):
    answered = runs.formers
    exact = {"loss": 0.5, "accuracy": 0.9, "exact": 0.75, "protocol": "all 5 rows"}
    monkeypatch.setattr(runs, "formers", lambda *words: answered(*words) and exact)
    variants = [variant(text, parse_set) for text in ("decoder", "rnn")]
    found = whole(variants, "task:copy,length=3", tmp_path, {"dim": 32}, Budget("steps", 5), say=lambda _: None)
    assert not any("--tokens" in words for words in commands)
    page = table.markdown(found, "formers compare")
    assert "| | parameters | loss | accuracy | exact | tokens/s | steps | peak memory |" in page
    assert " 0.500 | 90.0% | 75.0% |" in page


def test_what_a_variant_says_itself_is_not_fitted(commands, tmp_path):
    variants = [variant(text, parse_set) for text in ("decoder", "decoder:dim=32", "rnn:dim=32", "decoder:hidden=64")]
    found = whole(variants, "my.txt", tmp_path, {"dim": 64}, Budget("steps", 5), say=lambda _: None)
    first, fitted, narrow, small = (row["parameters"] for row in found["rows"])
    assert abs(fitted - first) < 0.02 * first  # by its feed-forward network
    assert narrow == formers.create("rnn", vocab=256, dim=32).parameter_count()
    assert small == formers.create("decoder", vocab=256, dim=64, hidden=64).parameter_count()


def test_whose_number_cannot_be_met_is_named(tmp_path):
    variants = [variant(text, parse_set) for text in ("rnn", "decoder")]
    with refused("decoder cannot have", "as rnn has"):
        whole(variants, "task:copy,length=3", tmp_path, {"dim": 32}, Budget("steps", 5), say=lambda _: None)


def test_what_cannot_be_equal_is_refused():
    with refused("decoder", "1,000 parameters", "--parameters"):
        fitting.fitted("decoder", {}, 1000)
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

    monkeypatch.setattr(runs, "formers", answer)
    return ran


def test_each_is_trained_once_and_judged_on_the_same_slice(commands, tmp_path):
    variants = [variant(text, parse_set) for text in ("decoder", "decoder:layers=2,batch=4")]
    for again in (False, True):
        commands.clear()
        found = whole(variants, "my.txt", tmp_path, {"dim": 64}, Budget("time", 3), limit=50, say=lambda _: None)
        trained = [words for words in commands if words[0] == "train"]
        judged = [words for words in commands if words[0] == "eval"]
        assert len(trained) == len(judged) == (0 if again else 2)
        assert all(words[-2:] == ("--limit", "50") for words in judged)
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
    page = table.markdown(found, "formers compare decoder")
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
                whole(one, "my.txt", tmp_path, {}, Budget("time", minutes), say=lambda _: None)
            assert not commands
        whole(one, "my.txt", tmp_path, {}, Budget("time", minutes), overwrite=True, say=lambda _: None)
        assert commands[0][0] == "train"
        assert ("--overwrite" in commands[0]) == (minutes == 2)
    with refused("bytes", "tokens"):
        whole([variant("decoder:tokens=words", parse_set)], "my.txt", tmp_path, {}, Budget("time", 1))


def test_another_seed_is_another_command(commands, tmp_path):
    for seed in (0, 3):
        commands.clear()
        one = [variant("decoder", parse_set)]
        found = whole(one, "my.txt", tmp_path, {}, Budget("steps", 1), seed=seed, overwrite=True, say=lambda _: None)
        assert commands[0][0] == "train"
        assert ("--seed" in commands[0]) == (seed == 3), "0 is what `train` takes by itself"
        assert found["seed"] == seed


def test_the_same_twice_is_refused(commands, tmp_path):
    with refused("two variants"):
        whole([variant("decoder", parse_set)] * 2, "my.txt", tmp_path, {}, Budget("time", 1))
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
        whole([variant(text, parse_set) for text in texts], data, tmp_path, {"dim": 32}, Budget("steps", 5), say=lambda _: None)
    assert not commands


def test_a_command_that_fails_ends_the_comparison(tmp_path):
    with refused("formers eval", "code 2"):
        runs.formers("eval", str(tmp_path / "nothing"))


def test_several_seeds_give_means_their_spread_and_a_verdict(commands, monkeypatch, tmp_path):
    scores = {"decoder": [2.0, 2.01, 2.02], "rnn": [2.5, 2.51, 2.49]}
    answered = runs.formers

    def answer(*words):
        name, _, seed = Path(words[1]).name.partition("-")
        return answered(*words) if words[0] != "eval" else {"bits_per_byte": scores[name][int(seed or 0)], "protocol": "windows"}

    monkeypatch.setattr(runs, "formers", answer)
    variants = [variant(text, parse_set) for text in ("decoder", "rnn")]
    found = whole(variants, "my.txt", tmp_path, {"dim": 64}, Budget("steps", 5), seeds=3, say=lambda _: None)
    first = found["rows"][0]
    assert first["bits_per_byte"] == pytest.approx(2.01)
    assert first["spread"]["bits_per_byte"] == pytest.approx(0.01)
    assert [run["seed"] for run in first["runs"]] == [0, 1, 2]
    assert found["verdict"]["best"] == "decoder"
    assert "better than rnn" in found["verdict"]["sentences"][0]
    assert "2.010 ± 0.010" in table.markdown(found, "formers compare")
    kept = json.loads((tmp_path / "comparison.json").read_text())
    assert kept["rows"] == json.loads(json.dumps(found["rows"]))
    assert kept["whole"]


def test_a_run_that_diverges_is_counted_and_the_others_go_on(commands, monkeypatch, tmp_path):
    answered = runs.formers

    def answer(*words):
        if words[0] == "train" and words[1] == "rnn":
            raise runs.Diverging("it diverged.")
        return answered(*words)

    monkeypatch.setattr(runs, "formers", answer)
    variants = [variant(text, parse_set) for text in ("rnn", "decoder")]
    found = whole(variants, "my.txt", tmp_path, {"dim": 64}, Budget("steps", 5), seeds=2, say=lambda _: None, parameters=230_000)
    assert [row["diverged"] for row in found["rows"]] == [2, 0]
    assert "rnn diverged with 2" in found["verdict"]["sentences"][0]
    assert "diverged" in table.markdown(found, "formers compare")


def test_an_interrupted_run_goes_on_and_one_that_never_saved_begins_again(tmp_path):
    words = ["train", "decoder", "--out", str(tmp_path / "run")]
    folder = tmp_path / "run"
    assert runs.next_words(folder, words) == words
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"command": ["formers", *words], "finished": False}))
    assert runs.next_words(folder, words) == [*words, "--overwrite"]
    model = formers.create("decoder", vocab=5, dim=8, heads=1, layers=1)
    from formers.model.files import manifest

    step = folder / "ckpt" / "step-00000003"
    model.save_pretrained(step)
    (step / "manifest.json").write_bytes(manifest({file.name: file for file in step.iterdir() if file.name != "manifest.json"}))
    assert runs.next_words(folder, words) == ["resume", str(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("data", ["text.txt", "pairs.tsv", "labels.tsv", "task:copy,length=3", "digits"])
def test_every_kind_of_data_is_compared_with_real_runs(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("to be, or not to be, that is the question\n" * 300)
    Path("pairs.tsv").write_text("".join(f"one {n}\tun {n}\n" for n in range(300)))
    Path("labels.tsv").write_text("".join(f"word {n}\t{('odd', 'even')[n % 2]}\n" for n in range(300)))
    pairs = {"pairs.tsv": ("transformer", "transformer:layers=1"), "labels.tsv": ("encoder", "encoder:layers=1")}
    variants = [variant(text, parse_set) for text in pairs.get(data, ("decoder", "decoder:layers=1"))]
    common = {"dim": 16, "heads": 2, "eval_batches": 1, "final_batches": 1, "batch": 4, "sample_tokens": 0}
    found = whole(variants, data, tmp_path / "out", common, Budget("steps", 3), seeds=2, limit=20, say=lambda _: None)
    assert all(len(row["runs"]) == 2 and row["diverged"] == 0 for row in found["rows"])
    assert found["verdict"]["sentences"]
    ran: list[object] = []
    monkeypatch.setattr(runs, "formers", lambda *words: ran.append(words))
    again = whole(variants, data, tmp_path / "out", common, Budget("steps", 3), seeds=2, limit=20, say=lambda _: None)
    assert not ran
    assert again["rows"] == found["rows"]


@pytest.mark.slow
def test_a_comparison_that_is_stopped_goes_on_where_it_was(tmp_path):
    """SIGTERM reaches the run, which saves itself; the same command then resumes it and trains no other again."""
    (tmp_path / "my.txt").write_text("to be, or not to be, that is the question\n" * 300)
    sizes = ["dim=16", "heads=2", "layers=1", "length=32", "batch=2", "eval_batches=1", "final_batches=1", "sample_tokens=0"]
    words = ["compare", "decoder", "decoder:layers=2", "--data", "my.txt", "--out", "out", "--steps", "3000", "--limit", "500", "--json"]
    command = [sys.executable, "-m", "formers", *words, *(word for size in sizes for word in ("--set", size))]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "out" / "decoder" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and len(metrics.read_bytes().splitlines()) > 50):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    reached = len(metrics.read_bytes().splitlines())
    assert not json.loads((tmp_path / "out" / "decoder" / "run.json").read_text())["finished"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "decoder: " in done.stderr
    assert ", resumed" in done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["steps"] for row in rows] == [3000, 3000]
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if '"norm"' in line]
    assert steps == list(range(1, 3001))
    assert reached > 50
