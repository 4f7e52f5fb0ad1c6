"""Pairs: what is read, that no source stands on both sides, and what is refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from num2words import num2words

from formers.data import Bytes, Reading, find_tokenizer, open_pairs
from formers.data.numbers import RANGE, NumberPairs, english, french, number_pairs
from formers.data.pairs import Encoded
from helpers import refused

WORDS = [(f"word {i % 300}", f"WORT {i}") for i in range(900)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\r\n" for a, b in WORDS) + "\n")
    return path


def test_no_source_stands_on_both_sides(path):
    pairs = open_pairs(path)
    train, valid = pairs.parts["train"], pairs.parts["valid"]
    assert sorted([*train, *valid]) == sorted(WORDS)
    assert valid
    assert not {a for a, _ in train} & {a for a, _ in valid}
    assert "900" not in pairs.about
    assert f"{len(valid)} held out" in pairs.about
    assert open_pairs(path) == pairs


def test_every_form_gives_the_same_pairs(path, tmp_path, monkeypatch):
    wanted = dict(open_pairs(path).parts)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in WORDS))
    (tmp_path / "a.en").write_text("".join(f"{a}\n" for a, _ in WORDS))
    (tmp_path / "b.fr").write_text("\n".join(b for _, b in WORDS))
    (tmp_path / "b.fr.gz").write_bytes(gzip.compress((tmp_path / "b.fr").read_bytes()))
    monkeypatch.chdir(tmp_path)
    for form in ("pairs.jsonl", "a.en,b.fr", "a.en,b.fr.gz"):
        found = open_pairs(form)
        assert dict(found.parts) == wanted
        monkeypatch.chdir("/")
        assert open_pairs(found.source).fingerprint == found.fingerprint
        monkeypatch.chdir(tmp_path)


def test_a_comma_in_a_name_does_not_part_it(tmp_path):
    (tmp_path / "a,b").mkdir()
    for name in ("pairs.tsv", "x.en", "y.fr"):
        (tmp_path / "a,b" / name).write_text("".join(f"{i}\t{i}\n" if name == "pairs.tsv" else f"{i}\n" for i in range(200)))
    one = open_pairs(tmp_path / "a,b" / "pairs.tsv")
    two = open_pairs(f"{tmp_path}/a,b/x.en,{tmp_path}/a,b/y.fr")
    assert dict(one.parts) == dict(two.parts)


def test_given_held_out_pairs_leave_all_the_rest_for_training(path, tmp_path):
    held = tmp_path / "held.tsv"
    held.write_text("a\tb\n")
    pairs = open_pairs(path, Reading(valid=str(held)))
    assert pairs.parts["train"] == WORDS
    assert pairs.parts["valid"] == [("a", "b")]
    assert pairs.fingerprint != open_pairs(path).fingerprint


def test_bad_pairs_are_refused(tmp_path):
    path = tmp_path / "pairs.tsv"
    for content, words in {
        b"a\tb\nc d\n": ("line 2", "0 tabs"),
        b"a\tb\nc\td\te\n": ("line 2", "2 tabs"),
        b"a\tb\nc\t\n": ("line 2", "empty target"),
        b"a\tb\n \td\n": ("line 2", "empty source"),
        b"a\tb\n": ("1 pairs", "too few"),
        b"a\tb\n\xff\tb\n": ("not UTF-8 at byte 4", "invalid=replace"),
    }.items():
        path.write_bytes(content)
        with refused("pairs.tsv", *words):
            open_pairs(path)
    left, right = tmp_path / "a.en", tmp_path / "b.fr"
    left.write_text("a\nb\nc\n")
    right.write_text("a\nb\n")
    with refused("a.en has 3 lines", "b.fr has 2"):
        open_pairs(f"{left},{right}")
    right.write_text("a\n\nc\n")
    with refused("line 2 has an empty target"):
        open_pairs(f"{left},{right}")
    (tmp_path / "text.jsonl").write_text('{"text": "x"}\n')
    for data in ("stdlib", str(tmp_path / "text.jsonl"), str(tmp_path)):
        with refused("transformer is trained on pairs", "source, tab, target"):
            open_pairs(data, member="transformer")
    with refused("gone.tsv does not exist"):
        open_pairs(tmp_path / "gone.tsv")
    with refused("multi30k:en-xx", "cs, de, en, fr"):
        open_pairs("multi30k:en-xx")


def test_pairs_are_encoded_when_they_are_asked_for():
    class Counting(Bytes):
        def encode(self, text):
            calls.append(text)
            return super().encode(text)

    calls = []
    pairs = Encoded(WORDS, Counting())
    assert len(pairs) == 900
    assert calls == []
    assert pairs[3] == (list(b"word 3"), list(b"WORT 3"))
    assert pairs[-2:] == [pairs[898], pairs[899]]
    assert calls[:2] == ["word 3", "WORT 3"]


def test_numbers_are_spelt_as_num2words_spells_them():
    random = np.random.default_rng(0).integers(RANGE, size=1500).tolist()
    for n in [*range(0, 130), 999, 1000, 1001, 1099, 1100, 80_000, 80_080, 200_000, 200_200, 999_999, *random]:
        assert english(n) == num2words(n, lang="en")
        assert french(n) == num2words(n, lang="fr")


def test_held_out_numbers_are_a_hundredth_of_the_same_range():
    train, valid = number_pairs().values()
    assert isinstance(train, NumberPairs)
    both = np.concatenate([train.numbers, valid.numbers])
    assert np.array_equal(np.sort(both), np.arange(RANGE))
    assert abs(len(valid) / RANGE - 0.01) < 0.001
    assert valid.numbers[:5].tolist() == [573548, 70273, 390831, 164256, 185931]  # pinned: another hash would change the split
    assert all(abs((valid.numbers // 100_000 == k).mean() - 0.1) < 0.01 for k in range(10))
    assert valid[1] == ("seventy thousand, two hundred and seventy-three", "soixante-dix mille deux cent soixante-treize")
    assert list(valid[:2]) == [valid[0], valid[1]]


def test_the_longest_numbers_are_known_without_spelling_all():
    numbers = NumberPairs(np.arange(0, RANGE, 7))
    sizes = [(len(a.encode()), len(b.encode())) for a, b in (numbers[i] for i in range(len(numbers)))]
    longest = numbers.longest
    assert abs(max(len(a) for a, _ in longest) - max(a for a, _ in sizes)) <= 4  # ", " or " and "
    assert max(len(b.encode()) for _, b in longest) == max(b for _, b in sizes)


def test_numbers_open_at_once():
    opened = open_pairs("numbers")
    assert opened.source == "numbers"
    assert len(opened.parts["train"]) + len(opened.parts["valid"]) == RANGE
    assert opened.fingerprint == open_pairs("numbers").fingerprint


def test_the_characters_of_numbers_are_known_without_spelling_all():
    opened = open_pairs("numbers")
    characters = find_tokenizer("characters", opened).characters
    some = {c for part in opened.parts.values() for i in range(0, len(part), 97) for text in part[i] for c in text}
    assert set(characters) == some
