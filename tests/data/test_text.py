"""Text: what is read, how it is split, and what is refused."""

from __future__ import annotations

import gzip
import json
import os

import pytest

from formers.data import Bytes, Characters, Reading, open_text, read_text, token_stream
from formers.data.text import held_out
from helpers import refused


def parts(data, reading=Reading()):
    """The bytes of every part."""
    opened = open_text(data, reading)
    return {part: token_stream(opened, part, Bytes()).numpy().tobytes() for part in opened.parts}


def folder(tmp_path, **files):
    for name, content in files.items():
        path = tmp_path / "texts" / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "texts"


def test_a_file_is_split_into_its_beginning_and_its_last_twentieth(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(200)))
    text = read_text(path)
    assert bytes(text.train.tolist()) == bytes(range(190))
    assert bytes(text.valid.tolist()) == bytes(range(190, 200))
    assert "last 10 bytes held out" in text.about


@pytest.mark.parametrize("size", [4, 5, 19, 41])
def test_no_byte_of_a_small_file_is_lost_and_both_parts_have_some(tmp_path, size):
    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * size)
    found = parts(path)
    assert found["train"] + found["valid"] == b"x" * size
    assert min(map(len, found.values())) >= 2


@pytest.mark.parametrize("character", ["é", "語", "🙂"])
@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut_in_two(tmp_path, character, shift):
    text = "a" * shift + character * 50
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    found = parts(path)
    assert found["train"].decode() + found["valid"].decode() == text


def test_a_file_of_one_character_keeps_two_bytes_in_each_part(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("🙂", encoding="utf-8")
    assert [len(part) for part in parts(path).values()] == [2, 2]


def test_a_mark_before_utf8_is_skipped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"abcd" * 10)
    found = parts(path)
    assert found["train"] + found["valid"] == b"abcd" * 10


def test_a_compressed_file_is_its_content(tmp_path, cache):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(bytes(range(100)) * 2))
    found = parts(path)
    assert found["train"] + found["valid"] == bytes(range(100)) * 2
    assert any(cache.rglob("*"))
    path.write_bytes(gzip.compress(b"x" * 100)[:-12])
    with refused("text.txt.gz cannot be unpacked"):
        open_text(path)


def test_a_few_files_are_joined_in_the_order_of_their_names_and_each_is_cut(tmp_path):
    root = folder(tmp_path, b_txt=b"b" * 40, a__z_txt=b"a" * 40, c_txt=b"")
    (root / ".hidden").write_bytes(b"h" * 40)
    (root / ".git").mkdir()
    (root / ".git" / "x").write_bytes(b"h" * 40)
    os.mkfifo(root / "pipe")
    assert parts(root) == {"train": b"a" * 38 + b"\n" + b"b" * 38 + b"\n", "valid": b"aa\nbb"}
    assert "last twentieth of each of 3 files" in open_text(root).about
    assert parts(f"{root}/**/*.txt") == parts(root)


def test_names_say_what_a_file_is_for(tmp_path):
    root = folder(tmp_path, wiki_train_txt=b"train", wiki_val_txt=b"valid", wiki_test_txt=b"test!", README=b"read me", x_test_txt=b"again")
    assert parts(root) == {"train": b"train", "valid": b"valid", "test": b"test!\nagain"}
    about = open_text(root).about
    assert "names of its files (1 without a part in their name left out)" in about


@pytest.mark.parametrize("word", ["valid", "val", "validation", "dev", "VALID"])
def test_words_for_the_held_out_part(tmp_path, word):
    root = folder(tmp_path, **{f"{word}__a_txt": b"held", "train__a_txt": b"learn"})
    assert parts(root) == {"train": b"learn", "valid": b"held"}


def test_names_that_only_contain_the_words_say_nothing(tmp_path):
    root = folder(tmp_path, training_txt=b"a" * 40, latest_txt=b"b" * 40, test_txt=b"c" * 40)
    assert list(parts(root)) == ["train", "valid"]


def test_training_files_without_held_out_ones_are_cut(tmp_path):
    root = folder(tmp_path, train_txt=b"a" * 40, test_txt=b"b" * 40)
    assert parts(root) == {"train": b"a" * 38, "valid": b"aa", "test": b"b" * 40}


def test_the_old_rules_hold_out_whole_files_by_their_names(tmp_path):
    root = folder(tmp_path, **{f"f{i}_txt": b"%d" % i for i in range(100)})
    found = parts(root, Reading(rules=1))
    held = {i for i in range(100) if held_out(f"f{i}.txt")}
    assert {int(n) for n in found["valid"].split()} == held
    assert {int(n) for n in found["train"].split()} == set(range(100)) - held
    assert 0 < len(held) < 20
    assert found == parts(f"{root}/*.txt", Reading(rules=1))


def test_of_twenty_files_at_least_one_is_held_out(tmp_path):
    for start in range(0, 200, 20):
        root = folder(tmp_path / str(start), **{f"f{start + i}_txt": b"%d\n" % i for i in range(20)})
        assert parts(root)["valid"]


def test_documents_of_records_are_held_out_by_their_text(tmp_path):
    path = tmp_path / "documents.jsonl"
    texts = [f"document {i}\nof two lines" for i in range(200)]
    path.write_text("\n".join(json.dumps({"id": i, "text": t}) for i, t in enumerate(texts)) + "\n\n")
    found = parts(path)
    assert found["train"].decode() == "\n\n".join(t for t in texts if not held_out(t))
    assert found["valid"].decode() == "\n\n".join(t for t in texts if held_out(t))
    zipped = tmp_path / "documents.jsonl.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert parts(zipped) == found
    path.write_text("\n".join(json.dumps({"body": t}) for t in texts))
    assert parts(path, Reading(field="body")) == found


def test_bad_records_are_refused(tmp_path):
    path = tmp_path / "documents.jsonl"
    for line, words in {
        "[1]": ("line 2", "not a JSON object"),
        "{": ("line 2", "not a JSON object"),
        '{"body": "x"}': ("line 2", "'text'", "'body'"),
        '{"text": null}': ("line 2", "'text'"),
        '{"text": "\\ud800"}': ("line 2", "lone surrogate", "invalid=replace"),
    }.items():
        path.write_text('{"text": "x"}\n' + line + "\n")
        with refused("documents.jsonl", *words):
            open_text(path)
    path.write_text('{"text": "x"}\n')
    with refused("too few documents"):
        open_text(path)


def test_given_held_out_data_leave_all_the_rest_for_training(tmp_path):
    path, held = tmp_path / "text.txt", tmp_path / "held.txt"
    path.write_bytes(b"training text")
    held.write_bytes(b"held-out text")
    assert parts(path, Reading(valid=str(held))) == {"train": b"training text", "valid": b"held-out text"}
    assert "held.txt" in open_text(path, Reading(valid=str(held))).about
    root = folder(tmp_path, train_txt=b"one", valid_txt=b"two", test_txt=b"three", other=b"four")
    assert parts(root, Reading(valid=str(held))) == {"train": b"four\none\ntwo", "valid": b"held-out text", "test": b"three"}
    with refused("gone.txt does not exist"):
        open_text(path, Reading(valid="gone.txt"))


def test_a_reading_finds_its_files_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Reading(valid="held.txt").resolved().valid == str(tmp_path / "held.txt")
    assert Reading().resolved() == Reading()
    for name in ("a.en", "b.fr"):
        (tmp_path / name).write_text("x")
    assert Reading(valid="a.en,b.fr").resolved().valid == f"{tmp_path}/a.en,{tmp_path}/b.fr"


def test_bad_files_are_refused(tmp_path):
    for content, words in {b"": ("is empty",), b"\xef\xbb\xbf": ("is empty",), b"x": ("1 bytes", "at least 4")}.items():
        (tmp_path / "text").write_bytes(content)
        with refused("text", *words):
            read_text(tmp_path / "text")
    with refused("missing does not exist", "stdlib", "glob"):
        read_text(tmp_path / "missing")
    with refused("did you mean 'enwik8'?"):
        read_text("enwik9")
    with refused("no file matches"):
        read_text(str(tmp_path / "*.nothing"))
    (tmp_path / "hollow").mkdir()
    with refused("no file matches", "hollow"):
        read_text(tmp_path / "hollow")
    os.mkfifo(tmp_path / "pipe")
    with refused("neither a file nor a folder"):
        read_text(tmp_path / "pipe")
    with refused("has pairs"):
        read_text("numbers")
    with refused("testing only", "--split test"):
        read_text("lambada")


def test_fingerprints_know_content_and_parting_but_not_names(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(b"0123456789" * 10)
    other.write_bytes(b"0123456789" * 10)
    mark = open_text(path).fingerprint
    assert len(mark) == 64
    assert open_text(other).fingerprint == mark
    assert open_text(path, Reading(valid=str(other))).fingerprint != mark
    other.write_bytes(b"0123456788" * 10)
    assert open_text(other).fingerprint != mark


def test_a_source_opens_the_data_again_from_another_folder(tmp_path, monkeypatch):
    root = folder(tmp_path, a_txt=b"a" * 40, b_txt=b"b" * 40)
    monkeypatch.chdir(tmp_path)
    for data in ("texts", "texts/a.txt", "texts/*.txt"):
        opened = open_text(data)
        monkeypatch.chdir(root)
        assert open_text(opened.source).fingerprint == opened.fingerprint
        monkeypatch.chdir(tmp_path)


LETTERS = Characters(characters="".join(map(chr, range(1, 256))) + "\ufffd")


def test_bytes_that_are_no_text_are_refused_with_their_place_or_replaced_or_skipped(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a" * 70_000 + b"\xff" + b"b" * 10)
    with refused("text.txt is not UTF-8 at byte 70000", "invalid=replace"):
        token_stream(open_text(path, Reading(valid=str(path))), "train", LETTERS)
    for policy, between in {"replace": "\ufffd", "skip": ""}.items():
        reading = Reading(invalid=policy, valid=str(path))
        ids = token_stream(open_text(path, reading), "train", LETTERS).tolist()
        assert LETTERS.decode(ids) == "a" * 70_000 + between + "b" * 10
    assert parts(path, Reading(valid=str(path)))["train"] == path.read_bytes()


def test_a_character_cut_off_at_the_end_is_reported(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdef\xc3")
    with refused("not UTF-8 at byte 6"):
        token_stream(open_text(path, Reading(valid=str(path))), "train", LETTERS)


def test_a_file_of_many_is_named_with_its_own_place(tmp_path):
    root = folder(tmp_path, a_txt=b"a" * 50, b_txt=b"bb\xffb" + b"b" * 50)
    with refused("b.txt is not UTF-8 at byte 2"):
        token_stream(open_text(root), "train", LETTERS)


@pytest.mark.parametrize(("encoding", "name"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32")])
def test_wide_encodings_are_named_by_the_old_rules(tmp_path, encoding, name):
    path = tmp_path / "text.txt"
    path.write_text("some words to read", encoding=encoding)
    with refused(f"text.txt is {name}", "save it as UTF-8"):
        token_stream(open_text(path, Reading(rules=1)), "train", LETTERS)
    assert sum(map(len, parts(path, Reading(rules=1)).values())) == path.stat().st_size


def test_the_standard_library_is_split_by_file_the_same_way_every_time():
    first, second = parts("stdlib"), parts("stdlib")
    assert first == second
    train, valid = first["train"], first["valid"]
    assert b"class Thread" in train + valid
    assert 0.01 < len(valid) / len(train + valid) < 0.1
    assert b"def " in valid
    assert b"import unittest\n\nclass BoolTest" not in train + valid


def test_holding_out_is_a_function_of_the_name():
    names = [f"folder/module{i}.py" for i in range(4000)]
    assert 0.035 < sum(map(held_out, names)) / len(names) < 0.065
    assert [i for i in range(100) if held_out(str(i))] == [28, 43, 77]  # pinned: another rule would change every split


@pytest.mark.parametrize("suffix", [".zip", ".bz2", ".xz"])
def test_a_packed_file_is_not_taken_for_text(tmp_path, suffix):
    path = tmp_path / f"text{suffix}"
    path.write_bytes(b"not text at all " * 10)
    with refused("packed", ".gz"):
        read_text(path)
