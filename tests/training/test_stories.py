"""Stories: they decide the sizes of the member that reads them; a run answers, is evaluated by task, and goes on bit for bit."""

from __future__ import annotations

import random

import pytest
import torch

import formers
from formers.data import Stories, story
from formers.data.words import Words
from formers.evaluation.evaluate import evaluate
from formers.heads import Classify
from formers.inspect.draw.ponder import draw_ponder, save_ponder
from formers.inspect.measure.ponder import ponder_of
from formers.training import evaluate_run
from formers.training.task import prepare
from helpers import refused

PEOPLE, PLACES = ("Mary", "John", "Sandra"), ("garden", "kitchen", "office")
TINY = {"dim": 16, "heads": 2, "layers": 1, "dropout": 0.0}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no folder of data."""
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FORMERS_DATA", raising=False)


def tales(count, seed):
    draw = random.Random(seed)
    made = ""
    for _ in range(count):
        where = {}
        for number, who in enumerate(draw.sample(PEOPLE, 2), start=1):
            place = draw.choice(PLACES)
            where[who] = (place, number)
            made += f"{number} {who} went to the {place}.\n"
        who = draw.choice(list(where))
        made += f"3 Where is {who}?\t{where[who][0]}\t{where[who][1]}\n"
    return made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tales").mkdir()
    for task in (1, 4):
        for part, count in (("train", 60), ("valid", 12), ("test", 10)):
            (tmp_path / "tales" / f"qa{task}_{part}.txt").write_text(tales(count, f"{task} {part}"))
    return tmp_path / "tales"


@pytest.mark.parametrize(("member", "options"), [("encoder", TINY), ("universal-transformer", {"dim": 16, "heads": 2, "act": "graves"})])
def test_stories_fit_the_member_to_themselves(folder, member, options):
    task = prepare(member, folder, options=options)
    assert (task.spec.fact, task.spec.length, task.spec.head) == (5, 3, Classify(classes=3, pool="last"))
    assert isinstance(task.tokenizer, Words)
    assert task.spec.vocab == task.tokenizer.vocab
    assert task.labels == PLACES
    assert isinstance(task.batches, Stories)
    loss = formers.build(task.spec)(**task.batches.train_batch(4, 0, 0)).loss
    assert loss is not None
    assert loss.isfinite()


def test_options_count_more_and_what_is_left_out_is_said(folder, caplog):
    task = prepare("encoder", folder, options={**TINY, "length": 2, "fact": 4, "pool": "mean"})
    assert (task.spec.fact, task.spec.length, task.spec.head) == (4, 2, Classify(classes=3))
    said = " ".join(caplog.messages)
    assert "164 of 164 rows have more than length=2 facts: their oldest are left out" in said
    assert "facts have more than fact=4 words: their last are left out" in said


def test_mistakes(folder, tmp_path):
    with refused("which decoder does not read", "train encoder or universal-transformer"):
        prepare("decoder", folder, options=TINY)
    with refused("classes=7", "3 answers"):
        prepare("encoder", folder, options={**TINY, "classes": 7})
    with refused("decoder_steps=2 makes a decoder", "leave decoder_steps out"):
        prepare("universal-transformer", folder, options={"dim": 16, "heads": 2, "decoder_steps": 2})
    with refused("dim=15"):
        prepare("encoder", "babi:1", options={**TINY, "dim": 15})  # before anything is fetched
    (tmp_path / "text.txt").write_text("some text\n" * 50)
    with refused("has no facts", "fact=3", "babi:1"):
        prepare("encoder", tmp_path / "text.txt", options={**TINY, "classes": 2, "fact": 3})


def test_a_run_is_evaluated_by_task_and_answers_in_words(folder, tmp_path):
    run = tmp_path / "run"
    trained = formers.train("encoder", folder, run, steps=120, batch=32, learning_rate=1e-2, weight_decay=0.0, quiet=True, **TINY)
    assert trained.results["accuracy"] > 0.9
    figures = evaluate_run(run, part="test")
    assert figures["targets"] == 20
    assert figures["accuracy"] == pytest.approx((figures["accuracy_task_1"] + figures["accuracy_task_4"]) / 2)
    assert figures["failed_tasks"] == sum(figures[f"accuracy_task_{task}"] < 0.95 for task in (1, 4))
    assert figures["protocol"] == "all 20 questions of test"
    alone = evaluate_run(run, data=f"{folder}:4", part="test")
    assert alone["accuracy"] == figures["accuracy_task_4"]
    assert "accuracy_task_4" not in alone
    assert evaluate_run(run, data=str(folder / "qa1_test.txt"))["accuracy"] == figures["accuracy_task_1"]
    model = formers.load(run)
    asked = story("John went to the office. Mary went to the garden. Where is John?", model.tokenizer, model.spec.fact)
    assert model.labels[model(asked).logits.argmax()] == "office"
    (tmp_path / "text.txt").write_text("some text\n" * 50)
    with refused("has no facts"):
        evaluate_run(run, data=str(tmp_path / "text.txt"))


def test_sentences_ponder_as_tokens_do(folder, tmp_path):
    options = {"dim": 16, "heads": 2, "steps": 4, "act": "graves", "halt_bias": -1.0}
    trained = formers.train("universal-transformer", folder, steps=2, batch=4, quiet=True, member_sizes=options)
    text = "John went to the office. Mary went to the garden. Where is John?"
    seen, flops = ponder_of(trained.model, text)
    assert seen[0].labels == ["john went to the office", "mary went to the garden", "where is john"]
    assert seen[0].steps.shape == (3,)
    assert flops.skipping <= flops.whole
    drawn = draw_ponder(seen, flops).plain
    assert "john went to the office" in drawn
    save_ponder(seen, tmp_path / "story.png", flops)
    assert (tmp_path / "story.png").stat().st_size > 1000
    with refused("does not know the word"):
        ponder_of(trained.model, "Sandra flew.")


def test_tasks_are_counted_whatever_the_batches_and_the_processes(folder):
    task = prepare("encoder", folder, options=TINY)
    model = formers.build(task.spec).eval()
    whole = evaluate(model, task.batches, task.tokenizer, 64, part="test")
    small = evaluate(model, task.batches, task.tokenizer, 3, part="test")
    names = ("accuracy", "accuracy_task_1", "accuracy_task_4", "failed_tasks", "targets")
    assert [small[name] for name in names] == [whole[name] for name in names]
    first = evaluate(model, task.batches, task.tokenizer, 3, part="test", first=10)
    assert first["accuracy"] == whole["accuracy_task_1"]


def test_a_run_goes_on_bit_for_bit(folder, tmp_path):
    options = {**TINY, "batch": 4, "dropout": 0.1, "save_every": 3, "quiet": True}
    formers.train("encoder", folder, tmp_path / "whole", steps=6, schedule="constant", warmup=0, **options)
    formers.train("encoder", folder, tmp_path / "parts", steps=3, schedule="constant", warmup=0, **options)
    formers.resume(tmp_path / "parts", steps=6, quiet=True)
    whole, parts = (formers.load(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
