"""Text: what is read, how it is parted, and what is refused."""

from __future__ import annotations

import pytest

from formers.data import read_text
from formers.data.text import held_out, read_stdlib
from helpers import refused


def test_a_file_is_parted_into_its_beginning_and_its_last_twentieth(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(200)))
    text = read_text(path)
    assert bytes(text.train.tolist()) == bytes(range(190))
    assert bytes(text.valid.tolist()) == bytes(range(190, 200))


@pytest.mark.parametrize("size", [4, 5, 19, 41])
def test_no_byte_of_a_small_file_is_lost_and_both_parts_have_some(tmp_path, size):
    path = tmp_path / "text.txt"
    path.write_bytes(b"x" * size)
    text = read_text(path)
    assert len(text.train) + len(text.valid) == size
    assert len(text.train) >= 2
    assert len(text.valid) >= 2


def test_bad_files_are_refused(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "one").write_bytes(b"x")
    with refused("empty is empty"):
        read_text(tmp_path / "empty")
    with refused("1 bytes", "at least 4"):
        read_text(tmp_path / "one")
    with refused("missing is not there", "stdlib"):
        read_text(tmp_path / "missing")
    with refused("folder"):
        read_text(tmp_path)


def test_the_standard_library_is_parted_by_file_the_same_way_every_time():
    first, second = read_stdlib(), read_stdlib()
    assert first.train.equal(second.train)
    assert first.valid.equal(second.valid)
    train, valid = (bytes(part.numpy().tobytes()) for part in (first.train, first.valid))
    assert b"class Thread" in train + valid
    assert 0.01 < len(valid) / len(train + valid) < 0.1
    held = b"def " in valid
    assert held
    assert b"import unittest\n\nclass BoolTest" not in train + valid


def test_holding_out_is_a_function_of_the_name():
    names = [f"folder/module{i}.py" for i in range(4000)]
    share = sum(map(held_out, names)) / len(names)
    assert 0.035 < share < 0.065
    assert [held_out(n) for n in names] == [held_out(n) for n in names]
