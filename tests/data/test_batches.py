"""Batches: pure functions of (seed, step), shifted, masked and padded as the models expect."""

from __future__ import annotations

import pytest
import torch

from formers.data import Bytes, Language, Masked, Pairs
from formers.data.pairs import read_pairs
from helpers import refused

STREAM = torch.arange(200, dtype=torch.uint8)
MASKING = Bytes(specials=("mask",))
PAIRING = Bytes(specials=("begin", "end"))


def makers():
    pairs = [([1, 2, i], [i, 3]) for i in range(50)]
    return [Language(STREAM, STREAM, 16), Masked(STREAM, STREAM, 16, MASKING), Pairs(pairs, pairs, PAIRING)]


@pytest.mark.parametrize("data", makers(), ids=lambda d: type(d).__name__)
def test_a_batch_is_a_pure_function_of_seed_and_step(data):
    one, again = data.train_batch(4, seed=1, step=7), data.train_batch(4, seed=1, step=7)
    assert one.keys() == again.keys()
    assert all(one[name].equal(again[name]) for name in one)
    for other in (data.train_batch(4, seed=2, step=7), data.train_batch(4, seed=1, step=8)):
        assert any(one[name].shape != other[name].shape or not one[name].equal(other[name]) for name in one)


def test_targets_are_the_next_tokens():
    batch = Language(STREAM, STREAM, 16).train_batch(8, 0, 0)
    assert batch["tokens"].shape == (8, 16)
    assert batch["targets"].equal(batch["tokens"] + 1)


@pytest.mark.parametrize("length", [1, 7, 16, 199, 500])
@pytest.mark.parametrize("size", [1, 3])
def test_evaluation_predicts_every_byte_but_the_first_once(length, size):
    batches = list(Language(STREAM, STREAM, length).eval_batches(size))
    targets = torch.cat([b["targets"].flatten() for b in batches])
    assert targets.tolist() == list(range(1, 200))
    assert all(b["targets"].equal(b["tokens"] + 1) for b in batches)


def test_a_text_shorter_than_the_window_is_taken_whole():
    batch = Language(STREAM[:5], STREAM[:5], 16).train_batch(2, 0, 0)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("length", [1, 7, 50, 500])
def test_masked_evaluation_reads_every_byte_once(length):
    batches = list(Masked(STREAM, STREAM, length, MASKING, share=1.0).eval_batches(3))
    assert torch.cat([b["targets"].flatten() for b in batches]).tolist() == list(range(200))


def test_masking_hides_about_fifteen_percent_and_only_those_are_targets():
    stream = torch.full((100_000,), 65, dtype=torch.uint8)
    batch = Masked(stream, stream, 200, MASKING).train_batch(200, 0, 0)
    chosen = batch["targets"] != -100
    shown = batch["tokens"][chosen]
    assert abs(chosen.float().mean() - 0.15) < 0.01
    assert (batch["targets"][chosen] == 65).all()
    assert (batch["tokens"][~chosen] == 65).all()
    assert abs((shown == 256).float().mean() - 0.8) < 0.02
    assert abs((shown == 65).float().mean() - 0.1) < 0.02


def test_pairs_are_padded_and_masked_with_begin_and_end():
    batch = Pairs([([1], [2])], [([1, 2, 3], [4]), ([5], [6, 7])], PAIRING)
    (made,) = batch.eval_batches(2)
    assert made["source"].tolist() == [[1, 2, 3], [5, 0, 0]]
    assert made["source_mask"].tolist() == [[True] * 3, [True, False, False]]
    assert made["target"].tolist() == [[256, 4, 0], [256, 6, 7]]
    assert made["targets"].tolist() == [[4, 257, -100], [6, 7, 257]]
    assert made["mask"].tolist() == [[True, True, False], [True] * 3]


def test_pairs_of_a_file_never_share_a_source_between_the_parts(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"word {i % 300}\tWORT {i}\n" for i in range(900)) + "\n")
    pairs = read_pairs(path, PAIRING)
    train, valid = ({tuple(a) for a, _ in part} for part in (pairs.train, pairs.valid))
    assert len(pairs.train) + len(pairs.valid) == 900
    assert valid
    assert not train & valid


def test_bad_pairs_are_refused(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\nc d\n")
    with refused("line 2", "tab"):
        read_pairs(path, PAIRING)
    path.write_text("a\tb\n")
    with refused("too few"):
        read_pairs(path, PAIRING)
    path.write_bytes(b"\xff\tb\n")
    with refused("UTF-8"):
        read_pairs(path, PAIRING)


@pytest.mark.parametrize("text", ["", "plain", "déjà vu — 日本語 🙂", "\x00\n\t"])
def test_bytes_come_back_as_the_text_they_were(text):
    assert PAIRING.decode(PAIRING.encode(text)) == text
    assert PAIRING.decode([256, *PAIRING.encode(text), 257]) == text
    assert PAIRING.vocab == 258
