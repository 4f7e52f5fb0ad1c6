"""Tasks: the member decides what is read, the data decide vocabulary and classes, and mistakes are reported before anything is read."""

from __future__ import annotations

import hashlib
import json

import pytest

from formers import FormersError, build, spec
from formers.data import BPE, Bytes, Characters, Labelled, Language, LastWord, Masked, Pairs, Reading, Streams
from formers.data.catalogue import SETS, Named, Package
from formers.heads import Classify
from formers.memory import Memory
from formers.training.task import prepare, task_of
from helpers import refused

TINY = {"dim": 16, "heads": 2, "layers": 1, "length": 16}
SENTENCE = "the cat sat on the mat; déjà vu.\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no folder of data."""
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FORMERS_DATA", raising=False)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(SENTENCE * 100, encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{i}\t{'even' if i % 2 == 0 else 'odd'} number\n" for i in range(200)))
    return path


@pytest.fixture
def labelled(tmp_path):
    path = tmp_path / "labelled.tsv"
    path.write_text("".join(f"the number {i}\t{('even', 'odd')[i % 2]}\n" for i in range(200)))
    return path


def learns(task):
    """The loss of a model on the first batch, which must exist."""
    model = build(task.spec)
    batch = task.batches.train_batch(4, 0, 0)
    batch.pop("fresh", None)
    loss = model(**batch).loss
    assert loss is not None
    return loss.isfinite()


@pytest.mark.parametrize(("member", "kind"), [("decoder", Language), ("encoder", Masked)])
@pytest.mark.parametrize("tokens", ["bytes", "characters", "bpe"])
def test_a_text_is_read_as_the_member_needs_it(text, member, kind, tokens):
    task = prepare(member, text, None, TINY, Reading(tokens=tokens))
    assert isinstance(task.batches, kind)
    assert isinstance(task.tokenizer, {"bytes": Bytes, "characters": Characters, "bpe": BPE}[tokens])
    assert task.spec.vocab == task.tokenizer.vocab
    assert task.tokenizer.specials == (("mask",) if member == "encoder" else ())
    assert (task.text is not None) == (tokens == "bytes")
    assert task.batches.tokenizer == task.tokenizer
    assert task.labels is None
    assert learns(task)
    stream = task.batches.parts["train"]
    assert task.tokenizer.decode(stream.tolist()) == (SENTENCE * 100).encode()[: round(3500 * 0.95)].decode()


def test_bytes_can_be_counted(text):
    task = prepare("decoder", text, None, TINY)
    assert task.text is not None
    assert task.text.train.numpy().tobytes() + task.text.valid.numpy().tobytes() == text.read_bytes()


def test_a_member_with_a_memory_reads_lanes(text):
    class Remembering(Memory):
        """Some memory; defined here, so that no sweep over parts meets it."""

    plain = prepare("decoder", text, None, TINY)
    task = task_of(plain.spec.replace(memory=Remembering()), plain.tokenizer, text)
    assert isinstance(task.batches, Streams)
    assert task.batches.continues
    assert not plain.batches.continues
    assert "fresh" in task.batches.train_batch(2, 0, 0)


@pytest.mark.parametrize("tokens", [None, "characters", "bpe"])
def test_an_encoder_decoder_reads_pairs(pairs, tokens):
    task = prepare("transformer", pairs, None, TINY, Reading(tokens=tokens))
    assert isinstance(task.batches, Pairs)
    assert task.spec.vocab == task.tokenizer.vocab
    source, target = task.batches.parts["valid"][0]
    assert task.tokenizer.decode(target) == ("even" if int(task.tokenizer.decode(source)) % 2 == 0 else "odd") + " number"
    assert learns(task)


@pytest.mark.parametrize("given", [{}, {"classes": 2}])
@pytest.mark.parametrize("tokens", [None, "characters", "bpe"])
def test_an_encoder_learns_the_labels_of_a_table(labelled, given, tokens):
    task = prepare("encoder", labelled, None, {**TINY, **given}, Reading(tokens=tokens))
    assert isinstance(task.batches, Labelled)
    assert task.spec.head == Classify(classes=2)
    assert task.labels == ("even", "odd")
    assert task.tokenizer.specials == ()
    assert learns(task)
    again = task_of(task.spec, task.tokenizer, labelled, labels=list(task.labels))
    assert again.fingerprint == task.fingerprint
    assert again.labels == task.labels


def test_records_with_labels_are_labelled_and_others_are_text(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps({"text": f"number {i}", "label": i % 3}) + "\n" for i in range(200)))
    assert prepare("encoder", path, None, TINY).labels == ("0", "1", "2")
    assert isinstance(prepare("decoder", path, None, TINY).batches, Language)
    path.write_text("".join(json.dumps({"text": f"number {i}"}) + "\n" for i in range(200)))
    assert isinstance(prepare("encoder", path, None, TINY).batches, Masked)
    with refused("has no labels"):
        prepare("encoder", path, None, {**TINY, "classes": 3})


def test_classes_that_do_not_fit_are_refused(labelled):
    with refused("classes=5", "2 labels", "leave it out"):
        prepare("encoder", labelled, None, {**TINY, "classes": 5})


def test_the_vocabulary_may_be_larger_than_the_data_but_not_smaller(text):
    assert prepare("decoder", text, None, {**TINY, "vocab": 300}).spec.vocab == 300
    with refused("vocab=200", "256 ids"):
        prepare("decoder", "not-there", None, {**TINY, "vocab": 200})  # checked before the data are read
    with refused("vocab=256", "258 ids"):
        prepare("transformer", "not-there.tsv", None, {**TINY, "vocab": 256}, Reading(tokens="bpe"))
    assert prepare("decoder", text, None, {**TINY, "vocab": 270}, Reading(tokens="bpe")).spec.vocab == 270
    small = prepare("decoder", text, None, {**TINY, "vocab": 5000}, Reading(tokens="bpe"))
    assert small.spec.vocab == small.tokenizer.vocab < 300  # there are no more pairs in so small a text
    assert prepare("decoder", text, None, {**TINY, "vocab": 30}, Reading(tokens="characters")).spec.vocab == 30
    with refused("vocab=3 "):
        prepare("decoder", text, None, {**TINY, "vocab": 3}, Reading(tokens="characters"))


def test_a_bad_spec_is_refused_before_the_data_are_read():
    with refused("heads=3"):
        prepare("decoder", "not-there", None, {**TINY, "heads": 3})
    with refused("no option 'layer'"):
        prepare("encoder", "not-there.jsonl", None, {"layer": 3})
    with refused("not-there does not exist"):
        prepare("decoder", "not-there", None, TINY)
    with refused("tokens"):
        Reading(tokens="letters")


def test_a_saved_run_finds_its_data_again(text, tmp_path, monkeypatch):
    held = tmp_path / "held.txt"
    held.write_text(SENTENCE)
    monkeypatch.chdir(tmp_path)
    reading = Reading(tokens="characters", valid="held.txt")
    task = prepare("decoder", "text.txt", None, TINY, reading)
    reading = reading.resolved()
    monkeypatch.chdir("/")
    again = task_of(task.spec, task.tokenizer, task.source, reading)
    assert again.fingerprint == task.fingerprint
    assert all(again.batches.parts[part].equal(task.batches.parts[part]) for part in ("train", "valid"))
    text.write_text(SENTENCE * 99)
    assert task_of(task.spec, task.tokenizer, task.source, reading).fingerprint != task.fingerprint


def test_other_data_with_a_strange_character_are_refused(text, tmp_path):
    task = prepare("decoder", text, None, TINY, Reading(tokens="characters"))
    other = tmp_path / "other.txt"
    other.write_text("the cat sat on the Mat " * 3)
    with refused("'M' (U+004D) at position 19"):
        task_of(task.spec, task.tokenizer, other).batches.parts["valid"]
        task_of(task.spec, task.tokenizer, other).batches.parts["train"]


def test_a_text_shorter_than_a_segment_works_and_is_reported(tmp_path, caplog):
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefgh")
    task = prepare("decoder", path, None, TINY)
    assert learns(task)
    assert "6 bytes for training, fewer than length=16" in caplog.text


def test_labelled_texts_that_are_cut_off_are_reported(labelled, caplog):
    task = prepare("encoder", labelled, None, {**TINY, "length": 12})
    assert task.batches.train_batch(8, 0, 0)["tokens"].shape[1] <= 12
    assert "190 texts of more than length=12 tokens" in caplog.text
    caplog.clear()
    prepare("encoder", labelled, None, TINY)
    assert caplog.text == ""


def test_pairs_beyond_learned_positions_are_refused(pairs):
    assert prepare("transformer", pairs, None, {**TINY, "length": 12, "position": "learned"}).spec.length == 12
    with refused("up to 12 tokens", "length=8", "--set length=12"):
        prepare("transformer", pairs, None, {**TINY, "length": 8, "position": "learned"})
    with refused("numbers has texts of up to", "--set length="):
        prepare("transformer", "numbers", None, {**TINY, "position": "learned"})


def test_numbers_are_translated():
    task = prepare("transformer", "numbers", None, TINY)
    assert task.source == "numbers"
    assert isinstance(task.tokenizer, BPE)
    assert task.tokenizer.decode(task.tokenizer.encode("quatre-vingt-dix-neuf")) == "quatre-vingt-dix-neuf"
    assert len(task.tokenizer.encode("quatre-vingt-dix-neuf mille deux cents")) < 16
    assert learns(task)


def test_data_of_another_kind_are_refused(text, pairs):
    with refused("transformer is trained on pairs"):
        prepare("transformer", text, None, TINY)
    with refused("has pairs"):
        prepare("decoder", "numbers", None, TINY)
    with refused("testing only"):
        prepare("decoder", "lambada", None, TINY)


def test_passages_are_for_evaluation_only(tmp_path, monkeypatch, text):
    content = b'{"text": "the cat sat on the mat"}\n{"text": "a word"}\n'
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "data" / "mine" / "it.jsonl").write_bytes(content)
    package = Package({"it.jsonl": "sha256:" + hashlib.sha256(content).hexdigest()}, ())
    monkeypatch.setitem(SETS, "mine", Named((package,), {"test": ("it.jsonl", 0, None)}, kind="passages"))
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "data"))
    trained = prepare("decoder", text, None, TINY)
    task = task_of(trained.spec, trained.tokenizer, "mine")
    assert isinstance(task.batches, LastWord)
    (batch,) = task.batches.eval_batches(2, "test")
    assert [bytes(row[row != -100].tolist()) for row in batch["targets"]] == [b"mat", b"word"]
    with refused("mine has no valid part", "--split test"):
        next(iter(task.batches.eval_batches(2, "valid")))
    with refused("testing only"):
        prepare("decoder", "mine", None, TINY)
    with refused("does not do"):
        task_of(spec("encoder", vocab=257, **TINY), Bytes(specials=("mask",)), "mine")


def test_errors_are_of_one_kind(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    for data in ("empty.txt", "gone.txt"):
        with pytest.raises(FormersError):
            prepare("decoder", tmp_path / data, None, TINY)
