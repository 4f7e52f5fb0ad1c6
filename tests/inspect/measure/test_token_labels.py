"""Labels of tokens: everything in them can be seen, and each can be read back."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from formers.data import Bytes, Characters
from formers.data.bpe import train_bpe
from formers.inspect import token_labels
from formers.inspect.measure.token_labels import label_bytes, plain_label, visible
from helpers import sweep

NASTY = [
    "plain",
    "déjà vu — 日本語 🙂 e\u0301 👩\u200d👧 \u202e\ufeff\u00a0\u2028",
    "\x00\x01\t\r\n\r\n  two  spaces \n\n\n\x7f",
    "␣ ⏎ ⇥ ⟨begin⟩ \\ \\n \\x41 \\u0041",
    "<script>alert(1)</script> [MASK] Ġ $x$",
    "\u0301 an accent first",
]
BYTE_PAIRS = train_bpe(["the cat sat on the mat, déjà vu\n" * 20], 300, ("begin", "end"))
ALL = [
    Bytes(specials=("begin", "end")),
    Characters(characters="".join(sorted({c for text in NASTY for c in text})), specials=("begin", "end")),
    BYTE_PAIRS,
]


@sweep("tokenizer", ALL)
@sweep("text", NASTY)
def test_labels_can_be_read_back_and_seen(tokenizer, text) -> None:
    ids = tokenizer.encode(text)
    labels = token_labels(tokenizer, ids)
    assert [label_bytes(label) for label in labels] == [tokenizer.to_bytes([i]) for i in ids]
    for label in labels:
        assert label
        assert all(unicodedata.category(c)[0] not in "CZ" for c in label), label
        assert unicodedata.category(label[0])[0] != "M"
        assert plain_label(label).isascii()
        assert not any(c.isspace() for c in plain_label(label))


def test_different_tokens_have_different_labels() -> None:
    tokens = Bytes(specials=("begin", "end"))
    labels = token_labels(tokens, range(tokens.vocab))
    assert len(set(labels)) == len({plain_label(label) for label in labels}) == tokens.vocab
    marks = [
        " ",
        "\n",
        "\t",
        "␣",
        "⏎",
        "⇥",
        "⟨begin⟩",
        "\\",
        "\\n",
        "\\s",
        "\\x0a",
        "\u00a0",
        "\ufeff",
        "é",
        "e\u0301",
        "<begin>",
        "\\<begin>",
    ]
    shown = [visible(mark.encode()) for mark in marks] + token_labels(tokens, [tokens.special("begin"), 0xC3, 0xA0])
    assert len(set(shown)) == len(shown)
    assert len({plain_label(label) for label in shown}) == len(shown)


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_any_bytes_come_back_from_their_label(first: bytes, second: bytes) -> None:
    assert label_bytes(visible(first)) == first
    assert (visible(first) == visible(second)) == (first == second)
    assert (plain_label(visible(first)) == plain_label(visible(second))) == (first == second)


def test_labels_are_what_one_expects() -> None:
    assert token_labels(Bytes(specials=("begin",)), [256, *"aé \n\t\r\\".encode()]) == [
        "⟨begin⟩", "a", r"\xc3", r"\xa9", "␣", "⏎", "⇥", r"\x0d", r"\\",
    ]  # fmt: skip
    assert token_labels(BYTE_PAIRS, BYTE_PAIRS.encode("the cat"))[-1].startswith("␣")
    assert visible("déjà vu".encode()) == "déjà␣vu"
    assert visible("\u00a0\u0301".encode()) == r"\u00a0" + "\u0301"
    assert token_labels(Bytes(), [300]) == ["⟨300⟩"]
    assert label_bytes("⟨begin⟩") is None
    assert plain_label("⟨begin⟩") == r"\<begin>"
    assert plain_label("␣日🙂⏎") == r"\s\u65e5\U0001f642\n"
