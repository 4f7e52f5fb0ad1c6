"""Folders are split by bytes and by kind of file, and what is held out is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from formers.data import Reading, open_text
from formers.data.kinds import HELD_OUT, kind_of_file, split_by_kind


def write(root: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(((name.encode() + b" is a line of text\n") * (size // 18))[:size])
    return root


def shares(stretches) -> dict[str, float]:
    """Bytes by kind."""
    found: dict[str, float] = {}
    for stretch in stretches:
        found[kind_of_file(stretch.name)] = found.get(kind_of_file(stretch.name), 0) + stretch.size
    return found


@pytest.fixture
def mixed(tmp_path) -> Path:
    """112 files: sources, pages, one large table, and rare ones."""
    sizes = {f"src/module{i}.py": 2000 + 137 * (i % 29) for i in range(70)}
    sizes |= {f"docs/page{i}.md": 500 + 91 * (i % 13) for i in range(35)}
    sizes |= {"table.csv": 60_000, "LICENSE": 1000, "setup.cfg": 300, "a.toml": 200, "b.ini": 100, "c.in": 80, "old.log.1": 90}
    return write(tmp_path / "project", sizes)


def test_of_each_kind_about_a_twentieth_of_the_bytes_is_held_out(mixed):
    opened = open_text(mixed)
    train, valid = (shares(opened.parts[part]) for part in ("train", "valid"))
    for kind in (".py", ".md", ".csv"):
        assert valid[kind] / (train[kind] + valid[kind]) == pytest.approx(HELD_OUT, abs=0.01), kind
    assert sum(valid.values()) / sum((*train.values(), *valid.values())) == pytest.approx(HELD_OUT, abs=0.005)
    assert not opened.notices


def test_no_byte_is_in_both_parts_and_none_is_lost(mixed):
    opened = open_text(mixed)
    places = {part: {(s.name, s.start, s.stop) for s in opened.parts[part]} for part in ("train", "valid")}
    assert not places["train"] & places["valid"]
    found = sum(s.size for part in ("train", "valid") for s in opened.parts[part])
    assert found == sum(path.stat().st_size for path in mixed.rglob("*") if path.is_file())
    assert open_text(mixed).fingerprint == opened.fingerprint


def test_what_is_held_out_is_named(mixed):
    opened = open_text(mixed)
    whole = [s.name for s in opened.parts["valid"] if s.name.endswith((".py", ".md"))]
    assert f"{sum(n.endswith('.py') for n in whole)} of 70 .py files" in opened.about
    assert sum(s.name in opened.about for s in opened.parts["valid"]) >= 8
    assert "more" in opened.about


def test_files_of_equal_size_are_held_out_one_in_twenty(tmp_path):
    opened = open_text(write(tmp_path / "texts", {f"f{i:03}.txt": 1000 for i in range(100)}))
    assert len(opened.parts["valid"]) == 5
    assert len(opened.parts["train"]) == 95


def test_a_folder_of_one_large_file_and_many_small_ones_holds_out_of_both(tmp_path):
    root = write(tmp_path / "texts", {"book.txt": 200_000, **{f"note{i}.txt": 400 for i in range(40)}})
    sizes = {s.name: s.size for s in open_text(root).parts["valid"]}
    assert sizes["book.txt"] == 10_000
    assert sum(name.startswith("note") for name in sizes) == 2


def test_files_of_numbered_suffixes_are_of_one_kind(tmp_path):
    opened = open_text(write(tmp_path / "mail", {f"message.{i}": 600 for i in range(60)}))
    assert len(opened.parts["valid"]) == 3
    assert all(s.start == 0 for s in opened.parts["valid"])


def test_records_in_a_folder_are_cut_by_document(tmp_path):
    root = write(tmp_path / "texts", {f"f{i}.txt": 1000 for i in range(30)})
    lines = [json.dumps({"text": f"document {i} " * 5}) for i in range(400)]
    (root / "all.jsonl").write_text("\n".join(lines))
    opened = open_text(root)
    held = next(s for s in opened.parts["valid"] if s.name == "all.jsonl")
    assert 0 < held.size < 0.1 * sum(len(line) for line in lines)


def test_old_rules_split_by_the_hash_of_names(mixed):
    old = open_text(mixed, Reading(rules=1))
    assert "by the hash of their names" in old.about
    assert old.fingerprint != open_text(mixed).fingerprint
    held = {s.name for s in old.parts["valid"]}
    assert held == {name for name in held if not name.endswith(".csv")}
    assert {s.name for s in old.parts["train"]}.isdisjoint(held)


def test_the_standard_library_keeps_its_split():
    assert open_text("stdlib").fingerprint == open_text("stdlib", Reading(rules=1)).fingerprint
    assert open_text("stdlib").notices == ()


def test_little_and_unlike_held_out_files_are_warned_about(tmp_path):
    root = write(tmp_path / "texts", {f"train/f{i}.py": 3000 for i in range(30)} | {"valid/a.md": 1200})
    little, unlike = open_text(root).notices
    assert little.startswith("only 1,200 bytes")
    assert "--valid" in little
    assert "100% of it is .md files, of the training part 0%" in unlike
    write(root, {f"valid/f{i}.py": 3000 for i in range(5)})
    assert open_text(root).notices == ()
    assert open_text(root, Reading(valid=str(root / "valid/a.md"))).notices == ()


def test_empty_files_are_not_chosen(tmp_path):
    root = write(tmp_path / "texts", {f"f{i}.txt": 500 for i in range(30)})
    for i in range(20):
        (root / f"empty{i}.txt").write_bytes(b"")
    assert all(s.size for s in open_text(root).parts["valid"])
    assert split_by_kind([]).held == set()
