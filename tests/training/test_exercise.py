"""Members learn tasks: each in its own form, evaluated exactly, resumed bit for bit, and refused in a sentence where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import PositiveInt

import formers
from formers import Spec
from formers.data import Bytes, Characters, Reading
from formers.data.tasks import Answers, Blanks, DrawnLabels, DrawnPairs, DrawnVectors
from formers.data.tasks.naming import written
from formers.family.members import MEMBERS, Member
from formers.heads import Classify, LanguageModel, Tag
from formers.training.run import evaluate_run
from formers.training.task import prepare, task_of
from helpers import refused, sweep

TINY: dict[str, Any] = dict(dim=8, heads=2, layers=1, hidden=8)
STEPS: dict[str, Any] = dict(batch=4, schedule="constant", warmup=0, quiet=True, eval_every=3, eval_batches=1, final_batches=1)


def tagger(
    *,
    features: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    places: PositiveInt = 1,
    dim: PositiveInt = 8,
    heads: PositiveInt = 2,
    layers: PositiveInt = 1,
    hidden: PositiveInt = 8,
) -> Spec:
    spec = formers.spec("decoder", vocab=5, dim=dim, heads=heads, layers=layers, hidden=hidden, position="none")
    return spec.replace(name="tagger", vocab=None, features=features, head=Tag(classes=classes or 1, places=places))


@pytest.fixture(autouse=True)
def a_member_with_features(monkeypatch):
    monkeypatch.setitem(MEMBERS, "tagger", Member(tagger, {}))


KINDS = [
    ("decoder", "task:addition,digits=2,test_digits=3,rows=12", Answers, {}),
    ("transformer-xl", "task:recall,distance=3,rows=12", Answers, {"memory": 4}),
    ("transformer", "task:copy,length=3,test_length=5,rows=12", DrawnPairs, {}),
    ("encoder", "task:sort,length=3,test_length=5,rows=12", Blanks, {}),
    ("encoder", "task:agreement,rows=12", DrawnLabels, {}),
    ("linformer", "task:logic,gates=3,rows=12", DrawnLabels, {"rank": 4}),
    ("tagger", "task:addition,numbers=3,rows=12", DrawnVectors, {}),
    ("tagger", "task:parity,size=8,rows=12", DrawnVectors, {}),
]
SWEPT = pytest.mark.parametrize(("member", "data", "kind", "options"), KINDS, ids=[f"{m}-{d[5:].split(',')[0]}" for m, d, _, _ in KINDS])


@SWEPT
def test_every_kind_of_member_learns_is_evaluated_and_goes_on_bit_for_bit(
    tmp_path: Path, member: str, data: str, kind: type, options: dict[str, Any]
) -> None:
    whole = formers.train(member, data, tmp_path / "whole", steps=6, sample_tokens=0, **TINY, **options, **STEPS)
    assert isinstance(whole.task.batches, kind)
    assert all(0.0 <= whole.results[name] <= 1.0 for name in ("accuracy", "exact"))
    assert "exact_match" not in whole.results
    formers.train(member, data, tmp_path / "parts", steps=3, sample_tokens=0, **TINY, **options, **STEPS)
    parts = formers.resume(tmp_path / "parts", steps=6, quiet=True)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, parts.model.state_dict()[name]), name
    same = ("loss", "accuracy", "exact")
    assert {name: whole.results[name] for name in same} == {name: parts.results[name] for name in same}
    tested = evaluate_run(tmp_path / "whole", part="test")
    exercise = whole.task.batches.exercise
    assert tested["data"] == whole.task.source == written(exercise)
    assert tested["protocol"].startswith(f"all 12 rows of test, {exercise.dial} {exercise.span('test')[0]}")
    (step,) = [
        row
        for row in map(json.loads, (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
        if row.get("step") == 6 and "valid_loss" in row
    ]
    assert {"valid_accuracy", "valid_exact"} <= step.keys()


def test_the_task_decides_vocabulary_classes_and_length() -> None:
    task = prepare("decoder", "task:addition", None, TINY)
    assert task.tokenizer == Characters(characters="+0123456789=", specials=("end",))
    assert task.spec.vocab == 13
    assert task.spec.length == formers.spec("decoder", vocab=13).length
    assert prepare("transformer", "task:addition", None, TINY).tokenizer.specials == ("begin", "end")
    assert prepare("encoder", "task:addition", None, TINY).tokenizer.specials == ("end", "mask")
    long = prepare("decoder", "task:copy,length=10,test_length=300", None, TINY)
    assert long.spec.length == 601
    assert prepare("decoder", "task:copy,test_length=300", None, {**TINY, "length": 64}).spec.length == 64
    labels = prepare("encoder", "task:parity", None, TINY)
    assert labels.spec.head == Classify(classes=2)
    assert labels.labels == ("0", "1")
    assert prepare("decoder", "task:parity", None, TINY).spec.head == LanguageModel()
    vectors = prepare("tagger", "task:addition", None, {})
    assert (vectors.spec.features, vectors.spec.head, vectors.tokenizer) == (50, Tag(classes=11, places=6), Bytes())


def test_a_run_writes_answers(tmp_path: Path) -> None:
    for member, data, prompt in (("decoder", "task:addition,rows=4", "12+34="), ("transformer", "task:copy,rows=4", "123")):
        formers.train(member, data, tmp_path / member, steps=3, sample_tokens=5, **TINY, **STEPS)
        model = formers.load(tmp_path / member)
        text = formers.generate(model, prompt, max_new_tokens=5, temperature=0.0)
        assert text.startswith(prompt) == (member == "decoder")
        samples = [row for row in map(json.loads, (tmp_path / member / "metrics.jsonl").read_text().splitlines()) if "sample" in row]
        assert samples[0]["prompt"].endswith("=") == (member == "decoder")
        with refused("'x'", "tokenizer"):
            formers.generate(model, "x")


@sweep(
    ("member", "data", "options", "words"),
    [
        ("tagger", "task:copy", {}, ("tagger reads vectors", "task:copy", "decoder", "task:parity")),
        ("tagger", "task:parity", {"features": 9}, ("features=9", "64")),
        ("tagger", "task:addition", {"places": 2}, ("places=2", "6")),
        ("encoder", "task:copy", {"classes": 3}, ("classes=3", "task:copy", "task:parity")),
        ("encoder", "task:parity", {"classes": 3}, ("classes=3", "2")),
        ("decoder", "task:copy", {"vocab": 4}, ("vocab=4", "12 ids")),
        ("decoder", "task:copy", {"position": "learned", "length": 16}, ("41 tokens", "length=41")),
        ("decoder", "task:copi", {}, ("task:copi", "copy")),
    ],
)
def test_what_a_member_cannot_learn_is_refused(member: str, data: str, options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        prepare(member, data, None, options)


def test_other_ways_to_read_and_other_models_are_refused() -> None:
    with refused("tokens=bpe", "task:copy"):
        prepare("decoder", "task:copy", None, TINY, Reading(tokens="bpe"))
    with refused("valid=mine.txt", "task:copy"):
        prepare("decoder", "task:copy", None, TINY, Reading(valid="mine.txt"))
    task = prepare("decoder", "task:copy", None, TINY)
    with refused("task:addition", "other characters"):
        task_of(task.spec, task.tokenizer, "task:addition")
    assert task_of(task.spec, task.tokenizer, "task:reverse,test_length=60").batches.exercise.test_length == 60
    with refused("50 features", "train a new one"):
        task_of(prepare("tagger", "task:parity", None, {}).spec, Bytes(), "task:addition")
    with refused("NoHead", "decoder"):
        task_of(task.spec.replace(head=formers.heads.NoHead()), task.tokenizer, "task:copy")
