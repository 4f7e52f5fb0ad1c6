r"""Printable labels of tokens: one label per token, and different tokens have different labels.

A space is ␣, a line break ⏎, a tab ⇥; a byte that is only a part of a character is \xc3; a character that nothing shows, or that
another label is made of, is \u00ad; a special token is ⟨begin⟩. So a label can be read back: `label_bytes` gives the token's bytes.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from formers.data import Tokenizer

MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
"""What is shown for white space."""
OPEN, CLOSE = "⟨", "⟩"
"""What stands around the name of a special token."""
PLAIN = str.maketrans({"␣": r"\s", "⏎": r"\n", "⇥": r"\t", OPEN: r"\<", CLOSE: ">"})
"""The same marks where only ASCII can be shown."""
OWN = {*MARKS.values(), OPEN, CLOSE}
"""Characters that mean something in a label, and are written by number where they stand for themselves."""
ESCAPE = re.compile(r"\\(?:(\\)|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))|(.)", re.DOTALL)


def token_labels(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """The label of each token: what it stands for, made visible; a special token's name, or the number of an id without a text."""
    return [_label(tokenizer, i) for i in ids]


def visible(data: bytes) -> str:
    """The text of some bytes with nothing in it that cannot be seen."""
    return "".join(_seen(character, first=place == 0) for place, character in enumerate(data.decode("utf-8", errors="surrogateescape")))


def label_bytes(label: str) -> bytes | None:
    """The bytes that a label was made of; None for a special token, which stands for none."""
    if label.startswith(OPEN):
        return None
    found = b""
    for slash, byte, short, long, character in ESCAPE.findall(label):
        if byte:
            found += bytes([int(byte, 16)])
        else:
            found += (chr(int(short or long, 16)) if short or long else slash or _BACK.get(character, character)).encode()
    return found


def plain_label(label: str) -> str:
    """The label in ASCII only, still different from any other."""
    return "".join(c if c.isascii() else _number(c) for c in label.translate(PLAIN))


_BACK = {mark: character for character, mark in MARKS.items()}


def _label(tokenizer: Tokenizer, token: int) -> str:
    if tokenizer.plain <= token < tokenizer.vocab:
        return f"{OPEN}{tokenizer.specials[token - tokenizer.plain]}{CLOSE}"
    return visible(tokenizer.to_bytes([token])) or f"{OPEN}{token}{CLOSE}"


def _seen(character: str, first: bool) -> str:
    """A character as it is shown; an accent needs a letter before it, so that one which comes first is shown by its number."""
    if character in MARKS:
        return MARKS[character]
    if character == "\\":
        return r"\\"
    if "\udc80" <= character <= "\udcff":  # a byte of no character, as `surrogateescape` carries it
        return f"\\x{ord(character) - 0xDC00:02x}"
    kind = unicodedata.category(character)
    if character in OWN or kind[0] in "CZ" or (first and kind[0] == "M"):
        return f"\\x{ord(character):02x}" if character.isascii() else _number(character)
    return character


def _number(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
