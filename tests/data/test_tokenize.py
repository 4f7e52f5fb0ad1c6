"""Tokenizers: every text comes back as it was, and the same text always gives the same ids."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from formers.data import BPE, Bytes, Characters, Tokenizer
from formers.data.bpe import PIECE, recut, train_bpe
from helpers import refused, sweep

NASTY = [
    "",
    "plain",
    "déjà vu — 日本語 🙂 e\u0301 👩\u200d👩\u200d👧 \u202e",
    "\x00\x01\t\r\n\r\n  two  spaces \n\n\n",
    "\ufeffmark inside \ufeff",
    "<|endoftext|> [MASK] Ġ",
    "'ll 've don't   x" + " " * 200 + "y" * 300,
]
LEARN = "the cat sat on the mat, the cat's hat. déjà vu; 日本語 日本語\n" * 20
BYTE_PAIRS = train_bpe([LEARN], 280, ("begin", "end"))
ALPHABET = Characters(characters="".join(sorted({c for text in NASTY for c in text})), specials=("begin", "end"))
ALL = [Bytes(specials=("begin", "end")), ALPHABET, BYTE_PAIRS]


@sweep("tokenizer", ALL)
@sweep("text", NASTY)
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(0 <= i < tokenizer.plain for i in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.to_bytes(ids) == text.encode()
    assert tokenizer.decode([tokenizer.special("begin"), *ids, tokenizer.special("end")]) == text
    assert b"".join(tokenizer.to_bytes([i]) for i in ids) == text.encode()
    assert tokenizer.vocab == tokenizer.plain + 2


@given(st.text())
def test_byte_pairs_bring_back_any_text(text):
    assert BYTE_PAIRS.decode(BYTE_PAIRS.encode(text)) == text


@sweep("tokenizer", ALL)
def test_a_tokenizer_survives_json_and_can_be_a_key(tokenizer):
    again = Tokenizer.read(tokenizer.model_dump(mode="json"))
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)
    assert again.encode("plain") == tokenizer.encode("plain")


@sweep("tokenizer", ALL)
def test_a_stream_has_the_ids_of_the_whole_text_however_it_is_cut(tokenizer):
    text = "plain words and\nlines " * 3000 + "y" * 40_000
    wanted = tokenizer.encode(text)
    for size in (1000, 7777, len(text)):
        pieces = (text[i : i + size] for i in range(0, len(text), size))
        assert np.concatenate(list(tokenizer.encode_stream(pieces))).tolist() == wanted


def test_pieces_depend_on_the_text_alone_and_none_is_too_long():
    text = "a word " * 5000 + "\n" + "x" * (3 * PIECE)
    one = list(recut([text]))
    assert one == list(recut(text[i : i + 100] for i in range(0, len(text), 100)))
    assert "".join(one) == text
    assert 0 < max(map(len, one)) <= PIECE
    assert all(piece.startswith(" ") for piece in one[1:2])  # a line of words is cut before a space
    assert all(piece.endswith("\n") for piece in list(recut(["two words\n" * 5000]))[:-1])


def test_a_character_nobody_knows_is_named_with_its_place():
    tokenizer = Characters(characters="abc")
    with refused("'é' (U+00E9) at position 3", "3 that"):
        tokenizer.encode("abcé")
    with refused("position 5"):
        list(tokenizer.encode_stream(["abc", "abz"]))
    with refused("sorted"):
        Characters(characters="ba")
    with refused("sorted"):
        Characters(characters="")


def test_ids_of_characters_are_in_the_order_of_code_points():
    tokenizer = Characters(characters="\nab🙂", specials=("mask",))
    assert tokenizer.encode("b\n🙂a") == [2, 0, 3, 1]
    assert tokenizer.special("mask") == 4


def test_training_byte_pairs_twice_gives_the_same_definition():
    text = Path(ast.__file__).read_text()  # a thousand lines with many pairs that are equally frequent
    first = train_bpe([text], 600)
    assert first.vocab == 600
    assert all(train_bpe([text], 600).definition == first.definition for _ in range(3))
    assert train_bpe([text], 500).definition != first.definition


def test_byte_pairs_are_as_many_as_asked_for_and_shorten_the_text():
    assert BYTE_PAIRS.vocab == 280
    assert len(BYTE_PAIRS.encode(LEARN)) < len(LEARN.encode()) / 2
    assert len(BYTE_PAIRS.encode("\U0001f9ff")) == 4  # never seen, so byte by byte
    with refused("vocab=257", "at least 258"):
        train_bpe([LEARN], 257, ("begin", "end"))


@sweep("definition", ["", "{}", '{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'])
def test_a_definition_that_is_none_is_refused(definition):
    with refused("definition"):
        BPE(definition=definition)


def test_half_a_character_does_no_harm():
    assert BYTE_PAIRS.decode(BYTE_PAIRS.encode("a\ud800b"))[0] == "a"
    assert Bytes().decode(Bytes().encode("a\udcffb")) == "a\ufffdb"
    with refused("U+D800"):
        ALPHABET.encode("\ud800")
