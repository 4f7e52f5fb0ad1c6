"""The cache: made once, repaired when damaged, reported when it cannot be written."""

from __future__ import annotations

import os
import threading

import pytest

from formers.data import cache as module
from formers.data.cache import cache_folder, digest, key_of, made, written
from helpers import refused


def make(calls, content=b"content"):
    def write(sink):
        calls.append(1)
        sink.write(content)

    return write


def test_a_file_is_made_once(cache):
    calls = []
    path = made("things", "key", make(calls))
    assert path.read_bytes() == b"content"
    assert cache in path.parents
    assert made("things", "key", make(calls)) == path
    assert len(calls) == 1


@pytest.mark.parametrize("damage", ["cut off", "other bytes", "empty note", "no note", "gone", "note of another type"])
def test_a_damaged_file_is_made_anew(damage):
    calls = []
    path = made("things", "key", make(calls))
    note = path.with_name("key.json")
    if damage == "cut off":
        path.write_bytes(b"cont")
    elif damage == "other bytes":
        path.write_bytes(b"CONTENT")
    elif damage == "empty note":
        note.write_bytes(b"")
    elif damage == "no note":
        note.unlink()
    elif damage == "gone":
        path.unlink()
    else:
        note.write_text("[1]")
    assert made("things", "key", make(calls)).read_bytes() == b"content"
    assert len(calls) == 2


def test_what_fails_half_way_leaves_nothing_behind(cache):
    def fail(sink):
        sink.write(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        made("things", "key", fail)
    assert list((cache / "things").iterdir()) == []


def test_two_writers_at_once_leave_one_whole_file(cache):
    ready = threading.Barrier(2)

    def slowly(sink):
        sink.write(b"con")
        ready.wait(timeout=10)
        sink.write(b"tent")

    both = [threading.Thread(target=made, args=("things", "key", slowly)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert (cache / "things" / "key").read_bytes() == b"content"
    assert sorted(p.name for p in (cache / "things").iterdir()) == ["key", "key.json"]


def test_a_cache_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "file"))
    with refused("cannot be written", "FORMERS_CACHE"):
        made("things", "key", make([]))


def test_a_full_disk_is_reported(monkeypatch, cache):
    with refused("full", "FORMERS_CACHE"), written(cache / "things" / "key"):
        raise OSError(28, "No space left on device")
    assert list((cache / "things").iterdir()) == []


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("FORMERS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "formers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "formers"


def test_the_sum_of_a_big_file_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BIG", 4)
    path = tmp_path / "big"
    path.write_bytes(b"12345")
    os.utime(path, ns=(1, 1))
    first = digest(path)
    with monkeypatch.context() as patch:
        patch.setattr(module.hashlib, "new", None)
        assert digest(path) == first  # without reading it
    path.write_bytes(b"54321")
    assert digest(path) != first


def test_a_file_that_has_just_changed_is_not_taken_from_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BIG", 4)
    path = tmp_path / "big"
    path.write_bytes(b"12345")
    stamp = path.stat().st_mtime_ns
    first = digest(path)
    path.write_bytes(b"54321")
    os.utime(path, ns=(stamp, stamp))
    assert digest(path) != first


def test_keys_differ_when_facts_do():
    assert key_of("a", 1) == key_of("a", 1)
    assert len({key_of("a"), key_of("b"), key_of("a", 1), key_of("a", "1")}) == 4
