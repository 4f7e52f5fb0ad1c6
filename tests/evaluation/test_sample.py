"""Evaluation on the way: on a sample that is spread over the held-out part, the same each time, and a part of the full evaluation."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from torch.nn.functional import cross_entropy

import formers
from formers.core import IGNORED
from formers.data import Bytes, Language, Stories, Streams
from formers.data.babi import Story
from formers.data.spread import spread
from formers.data.words import build_words
from formers.evaluation.evaluate import evaluate
from formers.evaluation.protocol import Protocol, apply_protocol
from formers.model.files import MANIFEST, checkpoints, manifest

WORDS = ("to", "be", "or", "not", "question", "Gemüt", "☺")
DRAW = random.Random(5)
TEXT = " ".join(DRAW.choice(WORDS) for _ in range(400)).encode()
STREAM = torch.tensor(list(TEXT))
SMALL = dict(dim=16, heads=2, layers=1)
TINY = {**SMALL, "length": 16, "batch": 2, "eval_batches": 5, "sample_tokens": 0, "track": "none"}


def nats_of(model, batches, size, sample=None):
    """The nats of every counted target in the order of the batches, float64; the state goes on as `fresh` says."""
    found, state = [], None
    with torch.no_grad():
        for batch in batches.eval_batches(size, "valid", None, sample):
            if batches.continues:
                fresh = batch["fresh"]
                state = model.initial_state(len(fresh)) if bool(fresh.all()) else state
                out = model(batch["tokens"], state=state)
                state = out.state
            else:
                out = model(batch["tokens"])
            each = cross_entropy(out.logits.transpose(1, 2), batch["targets"], reduction="none", ignore_index=IGNORED)
            found.append((each, batch["targets"], batch["tokens"]))
    return found


def test_without_a_memory_the_sample_is_the_mean_over_its_targets_in_the_full_evaluation():
    model = formers.create("decoder", vocab=256, length=16, **SMALL).double().eval()
    data = Language({"valid": STREAM}, 16)
    windows = [each[targets != IGNORED] for each, targets, _ in nats_of(model, data, 1)]
    for size, sample in ((2, 5), (4, 7), (3, 1)):
        chosen = [windows[i] for i in spread(len(windows), size * sample).tolist()]
        found = evaluate(model, data, Bytes(), size, sample=sample)
        assert found["loss"] == pytest.approx(float(torch.cat(chosen).mean()), abs=1e-10)
        assert found["targets"] == sum(map(len, chosen))
        assert found["evaluated"] == f"{found['targets']:,} of {len(TEXT) - 1:,} tokens"
        assert f"{found['targets']:,} of the {len(TEXT) - 1:,} tokens of valid, spread over it" in found["protocol"]
    whole, everything = (evaluate(model, data, Bytes(), 2, sample=sample) for sample in (None, 10_000))
    assert everything["evaluated"] == f"all {len(TEXT) - 1:,} tokens"
    assert {**everything, "tokens_per_second": 0} == {**whole, "tokens_per_second": 0}


def test_bytes_characters_and_words_of_the_windows_add_up_to_those_of_the_text():
    model = formers.create("decoder", vocab=256, length=16, **SMALL)
    data = Language({"valid": STREAM}, 16)
    names = ("bytes", "characters", "words")
    found = evaluate(model, data, Bytes(), 3, sample=8)
    begins = [i == 1 or TEXT[i - 1 : i].isspace() for i in range(len(TEXT))]
    starts = [16 * window + 1 for window in spread(-(-(len(TEXT) - 1) // 16), 24).tolist()]
    evaluated = [i for start in starts for i in range(start, min(start + 16, len(TEXT)))]
    words = sum(begins[i] and not TEXT[i : i + 1].isspace() for i in evaluated)
    assert [found[name] for name in names] == [len(evaluated), sum(TEXT[i] & 0xC0 != 0x80 for i in evaluated), words]
    parts = [evaluate(model, data, Bytes(), 3, sample=8, share=(rank, 2)) for rank in range(2)]
    assert [sum(part[name] for part in parts) for name in names] == [found[name] for name in names]


@pytest.mark.parametrize("member", ["transformer-xl", "rnn"])
def test_with_a_memory_the_sample_is_what_a_full_pass_computes_once_it_is_warm(member):
    layers, memory, length = 2, 8, 4
    own = {"memory": memory, "heads": 2} if member == "transformer-xl" else {}
    model = formers.create(member, vocab=256, dim=16, layers=layers, length=length, **own).double().eval()
    reach = layers * memory // length if member == "transformer-xl" else 30  # an rnn forgets at its own rate
    stream = STREAM[:700]
    data = Streams({"valid": stream}, length, warm=reach)
    full = torch.cat([each[0] for each, _, _ in nats_of(model, data, 1)])  # of the targets 1, 2, ... of one lane
    sampled = Streams({"valid": torch.arange(len(stream))}, length, warm=reach)  # the same cuts, of places instead of tokens
    size, sample = 3, 43
    places = torch.cat([b["targets"][b["targets"] != IGNORED] for b in sampled.eval_batches(size, "valid", None, size * sample)])
    assert 0 < len(places) < len(stream) - 1
    found = evaluate(model, data, Bytes(), size, sample=sample)
    tolerance = 1e-10 if member == "transformer-xl" else 1e-6
    assert found["loss"] == pytest.approx(float(full[places - 1].mean()), abs=tolerance)
    assert found["targets"] == len(places)
    assert f"stretches of {2 * reach} after {reach} that fill the memory" in found["protocol"]
    nats = torch.cat([each[targets != IGNORED] for each, targets, _ in nats_of(model, data, size, size * sample)])
    assert (nats - full[places - 1]).abs().max() < tolerance


def test_training_reads_a_memory_and_a_segment_before_each_stretch():
    model = formers.create("transformer-xl", vocab=256, length=8, memory=20, **SMALL)
    read = apply_protocol(Protocol(), model, Streams({"valid": STREAM}, 8))
    assert read.batches.warm == 3 + 1
    carried = formers.create("rnn", vocab=256, dim=16, layers=1, length=8)
    assert apply_protocol(Protocol(), carried, Streams({"valid": STREAM}, 8)).batches.warm == 2


def test_answers_about_stories_are_counted_by_task_in_a_sample_too():
    answers = {1: "garden", 2: "kitchen", 3: "garden"}
    rows = [Story(("Mary went", "where is Mary"), answers[1 + i % 3], 1, 1 + i % 3) for i in range(30)]
    tokenizer = build_words(["Mary went where is Mary\n"])
    data = Stories({"valid": rows}, ("garden", "kitchen"), 4, 3, tokenizer)
    model = formers.create("encoder", vocab=tokenizer.vocab, classes=2, length=4, fact=3, **SMALL).eval()
    found = evaluate(model, data, None, 2, sample=5)
    tasks = [1 + i % 3 for i in spread(30, 10).tolist()]
    always = "garden" if found["accuracy"] == sum(answers[task] == "garden" for task in tasks) / 10 else "kitchen"  # all rows are alike
    assert set(tasks) == {1, 2, 3}
    assert [found[f"accuracy_task_{task}"] for task in answers] == [float(answer == always) for answer in answers.values()]
    assert found["protocol"] == "10 of the 30 questions of valid, spread over it"


@pytest.fixture
def files(tmp_path):
    """A text, and held-out data whose first tenth is nothing like it."""
    (tmp_path / "text.txt").write_bytes(b"abcdefghij" * 300)
    noise = bytes(DRAW.randrange(32, 127) for _ in range(400))
    (tmp_path / "valid.txt").write_bytes(noise + b"abcdefghij" * 400)
    return tmp_path


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("member", ["decoder", "transformer-xl"])
def test_the_figure_on_the_way_is_near_the_one_at_the_end(files, member, capsys):
    run = files / "run"
    own = {"memory": 16} if member == "transformer-xl" else {}
    options = {**TINY, **own, "eval_batches": 20, "learning_rate": 1e-2, "valid": str(files / "valid.txt")}
    done = formers.train(member, files / "text.txt", run, steps=40, eval_every=20, **options)
    found, lines = done.results, [line for line in metrics(run) if "valid_loss" in line]
    # Noise is an eleventh of the part. On the first batches alone the figures on the way were 4.19 and 3.29, at the end 1.14 and 0.91.
    assert found["sample_loss"] == lines[-1]["valid_loss"] == pytest.approx(found["loss"], abs=0.15)
    assert found["best_sample_loss"] == min(line["valid_loss"] for line in lines)
    assert found["best_step"] == 40
    assert found["sample_bits_per_byte"] == pytest.approx(found["sample_loss"] / math.log(2))
    targets = lines[-1]["valid_targets"]
    assert found["sample_evaluated"] == f"{targets:,} of 4,399 tokens"
    assert found["evaluated"] == "all 4,399 tokens"
    assert f"on {targets:,} of 4,399 tokens of held-out data" in capsys.readouterr().err.replace("\n", " ")
    read = apply_protocol(done.task.protocol.during_training(), done.model, done.task.batches)
    again = evaluate(read.model, read.batches, done.task.tokenizer, 2, sample=20)
    assert again["loss"] == pytest.approx(found["sample_loss"], abs=1e-6)


def test_an_end_that_does_not_read_all_is_a_sample_and_says_so(files):
    done = formers.train("decoder", files / "text.txt", steps=2, valid=str(files / "valid.txt"), quiet=True, **{**TINY, "final_batches": 7})
    assert done.results["evaluated"] == "224 of 4,399 tokens"
    assert "224 of the 4,399 tokens of valid, spread over it" in done.results["protocol"]


def test_a_run_that_an_older_version_saved_goes_on(files):
    run = files / "run"
    options = {**TINY, "valid": str(files / "valid.txt"), "quiet": True}
    formers.train("decoder", files / "text.txt", run, steps=4, eval_every=2, save_every=1, **options)
    last = checkpoints(run)[0]
    saved = json.loads((last / "training.json").read_text())
    assert saved.pop("sample")["loss"] == saved.pop("best_sample")["loss"] == saved["best_loss"]
    (last / "training.json").write_text(json.dumps({**saved, "best_loss": 1e-3}))  # of other data than the sample
    (last / MANIFEST).write_bytes(manifest({file.name: file for file in last.iterdir() if file.name != MANIFEST}))
    done = formers.resume(run, steps=6, quiet=True)
    assert done.results["best_sample_loss"] > 1e-3
    assert done.results["best_step"] == 6
    assert formers.load(run, checkpoint="best").spec == done.model.spec
