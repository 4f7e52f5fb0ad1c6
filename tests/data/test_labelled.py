"""Labelled texts: which column is the label, that every class is learned, and what is refused."""

from __future__ import annotations

import json

import pytest

from formers.data import Reading, open_labelled
from formers.data.text import held_out
from helpers import refused

ROWS = [(f"text number {i}", ("bad", "fair", "good")[i % 3]) for i in range(300)]


def write(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def test_every_form_gives_the_same_texts(tmp_path):
    plain = write(tmp_path / "a.tsv", ROWS)
    wanted = open_labelled(plain)
    assert sorted(two for part in wanted.parts.values() for two in part) == sorted(ROWS)
    assert wanted.labels == ("bad", "fair", "good")
    assert all(held_out(text) for text, _ in wanted.parts["valid"])
    turned = write(tmp_path / "b.tsv", [(label, text) for text, label in ROWS])
    headed = write(tmp_path / "c.tsv", [("id", "Label", "text"), *((str(i), label, text) for i, (text, label) in enumerate(ROWS))])
    records = tmp_path / "d.jsonl"
    records.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in ROWS))
    for path in (turned, headed, records):
        found = open_labelled(path)
        assert dict(found.parts) == dict(wanted.parts)
        assert found.labels == wanted.labels
    assert open_labelled(plain) == wanted


def test_of_columns_with_as_many_values_the_last_is_the_label(tmp_path):
    path = write(tmp_path / "a.tsv", [(f"x{i}", f"y{i}") for i in range(60)])
    (tmp_path / "held.tsv").write_text("x1\ty1\n")
    assert open_labelled(path, Reading(valid=str(tmp_path / "held.tsv"))).labels[0] == "y0"


def test_labels_may_be_numbers_and_fields_have_names(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"body": f"t{i}", "label": i % 2}) + "\n" for i in range(200)))
    assert open_labelled(path, Reading(field="body")).labels == ("0", "1")


def test_a_class_that_would_be_held_out_altogether_is_learned(tmp_path):
    held = next(f"rare {i}" for i in range(1000) if held_out(f"rare {i}"))
    found = open_labelled(write(tmp_path / "a.tsv", [*ROWS, (held, "rare"), (held, "bad")]))
    assert (held, "rare") in found.parts["train"]
    assert not {text for text, _ in found.parts["train"]} & {text for text, _ in found.parts["valid"]}
    assert found.parts["valid"]


def test_known_labels_keep_their_numbers(tmp_path):
    path = write(tmp_path / "a.tsv", [row for row in ROWS if row[1] != "fair"])
    assert open_labelled(path, labels=("bad", "fair", "good")).labels == ("bad", "fair", "good")
    with refused("label 'good'", "does not know", "bad, fair"):
        open_labelled(path, labels=("bad", "fair"))


def test_given_held_out_texts(tmp_path):
    path, held = write(tmp_path / "a.tsv", ROWS), write(tmp_path / "b.tsv", [("other", "good"), ("more", "bad"), ("such", "bad")])
    found = open_labelled(path, Reading(valid=str(held)))
    assert found.parts["train"] == ROWS
    assert found.parts["valid"] == [("other", "good"), ("more", "bad"), ("such", "bad")]
    write(held, [("other", "worse"), ("more", "bad"), ("such", "bad")])
    with refused("label 'worse'"):
        open_labelled(path, Reading(valid=str(held)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a\tb\tc\n", ("line 1", "3 cells")),
        ("text\tlabel\tid\nx\tgood\n", ("line 2", "2 cells, not 3")),
        ("text\tlabel\nx\tgood\n\tgood\n", ("line 3", "empty text")),
        ("text\tlabel\nx\t \n", ("line 2", "empty label")),
        ("x\tgood\ny\tbad\n", ("2 labelled texts", "too few")),
        ("", ("0 labelled texts", "too few")),
        ("".join(f"{i}\tgood\n" for i in range(200)), ("only one label, 'good'",)),
    ],
)
def test_bad_labelled_texts_are_refused(tmp_path, content, words):
    path = tmp_path / "a.tsv"
    path.write_text(content)
    with refused("a.tsv", *words):
        open_labelled(path)


def test_data_without_labels_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    for data in (tmp_path / "a.jsonl", "stdlib", tmp_path / "a.txt"):
        with refused("has no labels", ".tsv"):
            open_labelled(data)


def test_the_header_of_a_well_known_set_is_no_class(tmp_path):
    path = tmp_path / "sst.tsv"
    path.write_text("sentence\tlabel\n" + "".join(f"text {i}\t{'pos' if i % 2 else 'neg'}\n" for i in range(200)))
    data = open_labelled(path)
    assert data.labels == ("neg", "pos")
    assert "2 classes: neg, pos" in data.about
    path.write_text("label\tsentence\n" + "".join(f"{'pos' if i % 2 else 'neg'}\ttext {i}\n" for i in range(200)))
    assert open_labelled(path).labels == ("neg", "pos")
