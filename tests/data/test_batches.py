"""Batches: pure functions of (seed, step), shifted, masked and padded as the models expect."""

from __future__ import annotations

import pytest
import torch

from formers.data import Bytes, Characters, Labelled, Language, LastWord, Masked, Pairs, Streams
from formers.data.bpe import train_bpe
from helpers import refused, sweep

STREAM = torch.arange(200, dtype=torch.uint8)
BOTH = {"train": STREAM, "valid": STREAM}
MASKING = Bytes(specials=("mask",))
PAIRING = Bytes(specials=("begin", "end"))
TEXTS = [("x" * (i % 7 + 1), "even" if i % 2 == 0 else "odd") for i in range(40)]


def makers():
    pairs = [([1, 2, i] * (i % 3 + 1), [i, 3]) for i in range(50)]
    return [
        Language(BOTH, 16),
        Streams(BOTH, 16),
        Masked(BOTH, 16, MASKING),
        Pairs({"train": pairs, "valid": pairs}, PAIRING),
        Labelled({"train": TEXTS, "valid": TEXTS}, ("even", "odd"), 16, Bytes()),
    ]


each = sweep("data", makers())


@each
def test_a_batch_is_a_pure_function_of_seed_and_step(data):
    one, again = data.train_batch(4, seed=1, step=7), data.train_batch(4, seed=1, step=7)
    assert one.keys() == again.keys()
    assert all(one[name].equal(again[name]) for name in one)
    for other in (data.train_batch(4, seed=2, step=7), data.train_batch(4, seed=1, step=8)):
        assert any(one[name].shape != other[name].shape or not one[name].equal(other[name]) for name in one)


@each
@pytest.mark.parametrize("rows", [slice(0, 2), slice(2, 4), slice(1, 4, 2), slice(3, None)])
def test_some_rows_are_those_of_the_whole_batch(data, rows):
    whole, some = data.train_batch(4, 1, 7), data.train_batch(4, 1, 7, rows)
    for name, value in some.items():
        wanted = whole[name][rows]
        if value.dim() == 2:
            width = value.shape[1]
            rest = wanted[:, width:]
            assert ((rest == 0) | (rest == -100)).all()  # what was left out is padding
            wanted = wanted[:, :width]
        assert value.equal(wanted)


@each
def test_a_part_that_is_not_there_is_refused(data):
    with refused("no test part", "--split valid"):
        next(iter(data.eval_batches(4, "test")))


@sweep("data", makers()[1:])
def test_only_windows_overlap(data):
    with refused("stride=4"):
        next(iter(data.eval_batches(4, stride=4)))


def test_targets_are_the_next_tokens():
    batch = Language(BOTH, 16).train_batch(8, 0, 0)
    assert batch["tokens"].shape == (8, 16)
    assert batch["targets"].equal(batch["tokens"] + 1)


@sweep("length", [1, 7, 16, 199, 500])
@sweep("size", [1, 3])
def test_evaluation_predicts_every_byte_but_the_first_once(length, size):
    batches = list(Language(BOTH, length).eval_batches(size))
    targets = torch.cat([b["targets"].flatten() for b in batches])
    assert targets.tolist() == list(range(1, 200))
    assert all(b["targets"].equal(b["tokens"] + 1) for b in batches)


@sweep("length", [1, 7, 16, 198, 199, 200, 500])
@sweep("stride", [1, 3, 7, 16])
@sweep("size", [1, 4])
def test_with_a_stride_every_byte_is_evaluated_once_with_more_before_it(length, stride, size):
    stride = min(stride, length)
    evaluated = []
    for batch in Language(BOTH, length).eval_batches(size, stride=stride):
        for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
            for place in (targets != -100).nonzero().flatten().tolist():
                target = int(targets[place])
                assert target == int(tokens[place]) + 1
                assert place + 1 >= min(target, length - stride + 1)  # how many tokens stand before it
                evaluated.append(target)
    assert evaluated == list(range(1, 200))


def test_a_stride_that_would_miss_tokens_is_refused():
    for stride in (0, 17):
        with refused(f"stride={stride}", "length=16"):
            next(iter(Language(BOTH, 16).eval_batches(4, stride=stride)))


def test_a_text_shorter_than_the_window_is_taken_whole():
    batch = Language({"train": STREAM[:5]}, 16).train_batch(2, 0, 0)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3]] * 2


@sweep("length", [1, 7, 50, 500])
def test_masked_evaluation_reads_every_byte_once(length):
    batches = list(Masked(BOTH, length, MASKING, share=1.0).eval_batches(3))
    assert torch.cat([b["targets"].flatten() for b in batches]).tolist() == list(range(200))


def test_masking_hides_about_fifteen_percent_and_only_those_are_targets():
    stream = torch.full((100_000,), 65, dtype=torch.uint8)
    batch = Masked({"train": stream}, 200, MASKING).train_batch(200, 0, 0)
    chosen = batch["targets"] != -100
    shown = batch["tokens"][chosen]
    assert abs(chosen.float().mean() - 0.15) < 0.01
    assert (batch["targets"][chosen] == 65).all()
    assert (batch["tokens"][~chosen] == 65).all()
    assert abs((shown == 256).float().mean() - 0.8) < 0.02
    assert abs((shown == 65).float().mean() - 0.1) < 0.02


def test_pairs_are_padded_and_masked_with_begin_and_end():
    (made,) = Pairs({"valid": [([1, 2, 3], [4]), ([5], [6, 7])]}, PAIRING).eval_batches(2)
    assert made["source"].tolist() == [[1, 2, 3], [5, 0, 0]]
    assert made["source_mask"].tolist() == [[True] * 3, [True, False, False]]
    assert made["target"].tolist() == [[256, 4, 0], [256, 6, 7]]
    assert made["targets"].tolist() == [[4, 257, -100], [6, 7, 257]]
    assert made["mask"].tolist() == [[True, True, False], [True] * 3]


def test_labelled_texts_are_padded_cut_off_and_numbered():
    data = Labelled({"valid": [("abc", "no"), ("b", "yes"), ("abcdef", "no")]}, ("no", "yes"), 4, Characters(characters="abcdef"))
    first, last = data.eval_batches(2)
    assert first["tokens"].tolist() == [[0, 1, 2], [1, 0, 0]]
    assert first["mask"].tolist() == [[True] * 3, [True, False, False]]
    assert first["targets"].tolist() == [0, 1]
    assert last["tokens"].tolist() == [[0, 1, 2, 3]]


PASSAGES = ["the cat sat on the mat", "a dog — déjà vu", "word"]


@sweep("tokenizer", [Bytes(), train_bpe(["the cat sat on the mat " * 50], 290)])
def test_only_the_last_word_is_evaluated(tokenizer):
    data = LastWord({"test": PASSAGES}, 100, tokenizer)
    for batch, passage in zip(data.eval_batches(1, "test"), PASSAGES, strict=True):
        targets = batch["targets"][0]
        evaluated = tokenizer.decode(targets[targets != -100].tolist())
        words = passage.rsplit(" ", 1)
        assert evaluated.strip() == (words[1] if len(words) == 2 else tokenizer.decode(tokenizer.encode("word")[1:]))
        assert targets[-1] != -100
        assert tokenizer.decode(batch["tokens"][0].tolist()) == tokenizer.decode(tokenizer.encode(passage)[:-1])


def test_of_a_long_passage_the_end_is_read():
    (batch,) = LastWord({"test": PASSAGES[:2]}, 8, Bytes()).eval_batches(2, "test")
    assert [Bytes().decode(row.tolist()) for row in batch["tokens"]] == ["n the ma", "déjà v"]
    assert batch["targets"].shape == batch["tokens"].shape == batch["mask"].shape
    with refused("testing only"):
        LastWord({"test": PASSAGES}, 8, Bytes()).train_batch(1, 0, 0)
