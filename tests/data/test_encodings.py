"""Files that are not UTF-8 text are named, with what was found in them."""

from __future__ import annotations

import gzip

import pytest

from formers.data import Bytes, Reading, open_text, token_stream

LINE = "Ein schöner Satz über die Größe, déjà vu.\n"


def content(opened, part="train") -> bytes:
    return token_stream(opened, part, Bytes()).numpy().tobytes()


def notice(tmp_path, data: bytes, name: str = "notes.txt", **reading) -> str:
    """The one notice on the encoding of a file."""
    (tmp_path / name).write_bytes(data)
    found = [line for line in open_text(tmp_path / name, Reading(**reading)).notices if "held out" not in line]
    assert len(found) <= 1
    return found[0] if found else ""


@pytest.mark.parametrize("text", [LINE * 50, "plain\n" * 300, "日本語の文\n" * 100, "\x1b[31mred\x1b[0m\tand\ftabs\r\n" * 50])
def test_utf8_is_not_mentioned(tmp_path, text):
    assert notice(tmp_path, text.encode()) == ""


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (LINE.encode("latin-1") * 50, ["notes.txt is not UTF-8 (byte 0xF6 at 7)", "Latin-1", "iconv -f LATIN1"]),
        (LINE.encode("utf-16-le") * 50, ["notes.txt", "UTF-16 without a mark", "iconv -f UTF-16LE"]),
        (LINE.encode("utf-16-be") * 50, ["UTF-16 without a mark", "iconv -f UTF-16BE"]),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20, ["notes.txt has binary data (a PNG image)"]),
        (bytes(range(256)) * 20, ["binary data (20 zero bytes)", "glob"]),
        (bytes(range(1, 9)) * 200, ["control characters"]),
        ("Привет, мир ".encode("koi8-r") * 100, ["not UTF-8", "convert it to UTF-8"]),
    ],
)
def test_what_is_found_is_told_in_one_line(tmp_path, data, words):
    line = notice(tmp_path, data)
    for word in words:
        assert word in line, line
    assert "\n" not in line


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_mark_makes_the_text_be_decoded(tmp_path, encoding, cache):
    text = LINE * 60
    assert notice(tmp_path, text.encode(encoding)) == f"{tmp_path / 'notes.txt'} is {encoding.upper()}, and decoded"
    opened = open_text(tmp_path / "notes.txt")
    assert content(opened) + content(opened, "valid") == text.encode()
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(text.encode(encoding)))
    packed = open_text(tmp_path / "packed.txt.gz")
    assert content(packed) == content(opened)
    assert "and decoded" in packed.notices[0]


def test_old_rules_read_utf16_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_bytes((LINE * 60).encode("utf-16"))
    opened = open_text(tmp_path / "notes.txt", Reading(rules=1))
    assert content(opened).startswith(b"\xff\xfe")


def test_a_mark_before_other_bytes_stays_bytes(tmp_path):
    data = b"\xff\xfe" + b"\x00\xd8\x00\xd8" * 600
    assert "binary" in notice(tmp_path, data) or "UTF-16 without" in notice(tmp_path, data)
    assert content(open_text(tmp_path / "notes.txt")).startswith(b"\xff\xfe\x00\xd8")
    assert "decoded" in notice(tmp_path, data, invalid="replace")


def test_files_of_a_folder_are_counted_in_one_line(tmp_path):
    root = tmp_path / "texts"
    root.mkdir()
    for i in range(25):
        (root / f"page{i:02}.txt").write_bytes(LINE.encode("latin-1" if i < 3 else "utf-8") * 40)
    (root / "picture.txt").write_bytes(b"\x89PNG" + bytes(900))
    lines = open_text(root).notices
    assert len(lines) == 2
    assert any("other files are not UTF-8" in line and "page0" in line for line in lines)
    assert any(line.startswith("picture.txt has binary data") for line in lines)
