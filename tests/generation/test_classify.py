"""Labels and translations: as the model computes them, for one text or many; a model of another kind is refused in a sentence."""

from __future__ import annotations

import io
import json
import math
import sys

import pytest
import torch

import formers
from commands import command
from helpers import refused, sweep

TINY = dict(dim=16, heads=2, layers=1, batch=4, eval_batches=1, final_batches=1, sample_tokens=0, quiet=True, track="none")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with the runs of a classifier, a translator, a writer and a filler."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "labels.tsv").write_text("".join(f"{'yes' if n % 2 else 'no'} {n}\t{('bad', 'good')[n % 2]}\n" for n in range(200)))
    (folder / "pairs.tsv").write_text("".join(f"one {n}\tun {n}\n" for n in range(200)))
    (folder / "my.txt").write_text("to be, or not to be\n" * 200)
    formers.train("encoder", folder / "labels.tsv", folder / "classifier", steps=30, learning_rate=0.02, length=16, **TINY)
    formers.train("transformer", folder / "pairs.tsv", folder / "translator", steps=3, **TINY)
    formers.train("decoder", folder / "my.txt", folder / "writer", steps=2, length=16, **TINY)
    formers.train("encoder", folder / "my.txt", folder / "filler", steps=2, length=16, **TINY)
    return folder


def test_probabilities_are_the_softmax_of_the_logits_for_one_text_or_many(here):
    model = formers.load(here / "classifier")
    texts = ["yes 3", "no 144", "a text that is much longer than the sixteen tokens that it can read"]
    found = formers.classify(model, texts, batch=2)
    for text, each in zip(texts, found, strict=True):
        ids = torch.tensor([model.tokenizer.encode(text)[:16]])
        with torch.no_grad():
            wanted = model.eval()(ids).logits.double().softmax(-1)[0]
        assert [each.probabilities[label] for label in model.labels] == pytest.approx(wanted.tolist(), abs=1e-5)
        assert math.isclose(sum(each.probabilities.values()), 1.0, rel_tol=1e-9)
        assert each.label == max(each.probabilities, key=each.probabilities.get) == next(iter(each.probabilities))
    assert formers.classify(model, texts[0]).probabilities == pytest.approx(found[0].probabilities, abs=1e-6)
    assert [each.label for each in found[:2]] == ["good", "bad"]


def test_a_translation_is_what_generate_writes(here):
    model = formers.load(here / "translator")
    texts = ["one 3", "one 77"]
    greedy = formers.generate(model, texts, max_new_tokens=9, temperature=0.0)
    assert formers.translate(model, texts, 9) == greedy
    assert formers.translate(model, texts[0], 9) == greedy[0]
    assert formers.translate(model, texts, 9, beams=2) == formers.generate(model, texts, max_new_tokens=9, beams=2)


@sweep(("verb", "run", "word"), [
    ("classify", "writer", "formers generate"), ("classify", "translator", "formers translate"), ("classify", "filler", "masked"),
    ("translate", "writer", "formers generate"), ("translate", "classifier", "formers classify"),
])  # fmt: skip
def test_the_wrong_kind_of_run_is_refused_with_the_verb_to_use(here, verb, run, word):
    model = formers.load(here / run)
    with refused(word):
        getattr(formers, verb)(model, "a text")
    done = command(verb, str(here / run), "a text")
    assert done.returncode == 2
    assert word in done.stderr


def test_texts_that_are_none_are_refused(here):
    model = formers.load(here / "classifier")
    for texts, word in (([], "empty"), (["a", ""], "text 2 is empty"), (3, "int"), (["a", 3], "list")):
        with refused(word):
            formers.classify(model, texts)
    with refused("str"):
        formers.classify("runs/x", "a")


def test_the_verbs_read_arguments_files_and_standard_input(here, tmp_path, monkeypatch):
    run = str(here / "classifier")
    lines = command("classify", run, "yes 3", "no 4", "--top", "2").stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("good ")
    assert "\tbad " in lines[0]
    assert lines[0].endswith("yes 3")
    (tmp_path / "texts.jsonl").write_text('{"text": "yes 3", "id": 7}\n{"text": "no 4", "id": 8}\n')
    records = [json.loads(line) for line in command("classify", run, "--file", str(tmp_path / "texts.jsonl"), "--json").stdout.splitlines()]
    assert [(record["id"], record["label"]) for record in records] == [(7, "good"), (8, "bad")]
    assert set(records[0]["probabilities"]) == {"good", "bad"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one 3\none 4\n")))
    found = command("translate", str(here / "translator"), "--file", "-", "--max-new-tokens", "5", "--json").stdout.splitlines()
    assert [json.loads(line)["text"] for line in found] == ["one 3", "one 4"]
    for words in (["classify", run], ["classify", run, "a", "--file", "b"], ["classify", run, "--file", "nothing.txt"]):
        wrong = command(*words)
        assert wrong.returncode == 2
        assert len(wrong.stderr.strip().splitlines()) == 1
