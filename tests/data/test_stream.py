"""Token streams: mapped, cached, small, and free of cost in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from formers.data import BPE, Bytes, Characters, Reading, find_tokenizer, open_text, token_stream
from formers.data.batches import Language
from formers.data.bpe import train_bpe
from formers.data.stream import smallest
from helpers import refused

TEXT = "the cat sat on the mat; déjà vu — 日本語\n" * 200


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_bytes_of_one_file_are_mapped_where_they_lie(path, cache):
    opened = open_text(path)
    assert token_stream(opened, "train", Bytes()).numpy().tobytes() == path.read_bytes()[: opened.parts["train"][0].stop]
    assert not (cache / "streams").exists()


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_a_stream_has_the_ids_of_the_text_and_is_made_once(path, cache, kind):
    opened = open_text(path)
    tokenizer = find_tokenizer(kind, opened, vocab=300)
    found = token_stream(opened, "train", tokenizer)
    stretch = opened.parts["train"][0]
    text = path.read_bytes()[stretch.start : stretch.stop].decode()
    assert found.tolist() == tokenizer.encode(text)
    assert found.dtype == (torch.uint16 if kind == "bpe" else torch.uint8)
    stamps = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}
    assert token_stream(open_text(path), "train", find_tokenizer(kind, open_text(path), vocab=300)).equal(found)
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()} == stamps


def test_a_damaged_stream_is_made_anew(path, cache):
    opened = open_text(path)
    tokenizer = find_tokenizer("characters", opened)
    wanted = token_stream(opened, "train", tokenizer).tolist()
    (file,) = (f for f in (cache / "streams").iterdir() if f.suffix != ".json")
    file.write_bytes(file.read_bytes()[:-5])
    assert token_stream(opened, "train", tokenizer).tolist() == wanted
    file.write_bytes(b"\0" * file.stat().st_size)
    assert token_stream(opened, "train", tokenizer).tolist() == wanted


def test_files_are_joined_by_a_line_end(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 40)
    opened = open_text(tmp_path / "*.txt")
    tokenizer = Characters(characters="\nab")
    assert tokenizer.decode(token_stream(opened, "train", tokenizer).tolist()) == "a" * 38 + "\n" + "b" * 38


def test_types_are_as_small_as_the_ids():
    assert [smallest(n).name for n in (2, 256, 257, 65_536, 65_537)] == ["uint8", "uint8", "uint16", "uint16", "uint32"]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
def test_windows_can_be_cut_from_every_type(tmp_path, kind):
    np.arange(200, dtype=kind).tofile(tmp_path / "ids")
    stream = torch.from_numpy(np.memmap(tmp_path / "ids", dtype=kind, mode="c"))
    language = Language({"train": stream, "valid": stream}, 16)
    batch = language.train_batch(4, 0, 0)
    assert batch["tokens"].dtype == torch.int64
    assert batch["targets"].equal(batch["tokens"] + 1)
    assert torch.cat([b["targets"].flatten() for b in language.eval_batches(3)]).tolist() == list(range(1, 200))


def test_characters_are_those_of_all_parts_and_byte_pairs_those_of_the_training_part(tmp_path):
    for part, text in {"train": "ab" * 100, "valid": "cd" * 100, "test": "ef" * 100}.items():
        (tmp_path / f"{part}.txt").write_text(text)
    opened = open_text(tmp_path)
    assert find_tokenizer("characters", opened, ("mask",)) == Characters(characters="abcdef", specials=("mask",))
    learned = find_tokenizer("bpe", opened, ("mask",), 270)
    assert isinstance(learned, BPE)
    assert len(learned.encode("ab" * 100)) < 10
    assert len(learned.encode("cd" * 100)) == 200
    assert learned == train_bpe(opened.sample(), 270, ("mask",))


def test_a_text_without_two_tokens_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("🙂")
    opened = open_text(path, Reading(valid=str(path)))
    with refused("fewer than 2 tokens"):
        token_stream(opened, "train", Characters(characters="🙂"))


MEASURE = """
import resource, sys
from formers.data import Bytes, Characters, Reading, open_text, token_stream
from formers.data.batches import Language

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

small, big, line = sys.argv[1:]
alphabet = Characters(characters=" abcdefghijklmnopqrstuvwxyz")

def read(path, tokenizer):
    opened = open_text(path, Reading())
    language = Language({part: token_stream(opened, part, tokenizer) for part in opened.parts}, 256, tokenizer)
    for step in range(5):  # a window of a mapped file brings a few pages along
        language.train_batch(16, 0, step)
    next(iter(language.eval_batches(16)))

read(small, Bytes())
read(small, alphabet)
before = peak()
read(big, Bytes())
middle = peak()
read(line, alphabet)
print(middle - before, peak() - middle)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
def test_a_hundred_megabytes_cost_no_memory(tmp_path, cache):
    small, big, line = tmp_path / "small", tmp_path / "big", tmp_path / "line"
    small.write_bytes(b"words and words " * 1000)
    with big.open("wb") as file:
        file.truncate(100_000_000)  # without holding the bytes
    line.write_bytes(b"all on one line " * 1_500_000)
    done = subprocess.run([sys.executable, "-c", MEASURE, *map(str, (small, big, line))], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    mapped, encoded = map(float, done.stdout.split())
    assert mapped < 16
    assert encoded < 16
