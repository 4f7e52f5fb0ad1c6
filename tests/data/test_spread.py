"""Samples: spread over all of a part, a function of its size alone, and their rows are those of the whole part."""

from __future__ import annotations

import pytest
import torch

from formers.core import IGNORED, Raster
from formers.data import Bytes, Labelled, Language, LastWord, Masked, Pairs, Streams
from formers.data.files import Parts
from formers.data.images import Cells, ImageBatches, ImageData, ImageSet
from formers.data.spread import spread
from formers.data.tasks import Addition, Answers, Blanks, DrawnVectors, ParityVectors
from formers.data.tasks.batches import tokenizer_of

STREAM = torch.randint(32, 127, (1000,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


@pytest.mark.parametrize(("total", "count"), [(1, 1), (7, 3), (1000, 320), (1000, 500), (100_000, 1), (65, 64)])
def test_a_sample_has_one_of_each_stretch(total, count):
    found = spread(total, count)
    edges = [i * total // count for i in range(count + 1)]
    assert len(found) == count
    assert found[0] == 0
    assert all(a <= i < b for i, a, b in zip(found.tolist(), edges[:-1], edges[1:], strict=True))
    assert found.equal(spread(total, count))


def test_without_enough_rows_all_are_taken():
    for count in (None, 5, 6):
        assert spread(5, count).tolist() == [0, 1, 2, 3, 4]


def test_rows_that_repeat_are_all_met():
    for period in (2, 3, 4, 5, 10):
        assert len((spread(1000, 500) % period).unique()) == period


def images(table):
    """Batches of images, all of them held out."""
    data = ImageData(Parts({"valid": ImageSet(table, None)}), (4, 5, 1), 256, None, "", "", "")
    return ImageBatches(data, Cells(Raster(height=4, width=5), 256))


def makers():
    texts = [("x" * (i % 7 + 1), "even" if i % 2 == 0 else "odd") for i in range(40)]
    pairs = [([1, 2, i], [i, 3]) for i in range(40)]
    addition = Addition(rows=40)
    return [
        Language({"valid": STREAM}, 16),
        Masked({"valid": STREAM}, 16, Bytes(specials=("mask",))),
        images(STREAM.view(50, 4, 5, 1)),
        Pairs({"valid": pairs}, Bytes(specials=("begin", "end"))),
        Labelled({"valid": texts}, ("even", "odd"), 16, Bytes()),
        LastWord({"valid": [f"the number {i}" for i in range(40)]}, 16, Bytes()),
        Answers(addition, tokenizer_of(addition, ("end",))),
        Blanks(addition, tokenizer_of(addition, ("end", "mask"))),
        DrawnVectors(ParityVectors(rows=40)),
    ]


def rows_of(batches):
    """The targets of each row, without those that do not count."""
    return [row[row != IGNORED].tolist() for batch in batches for row in batch["targets"].flatten(1 if batch["targets"].dim() > 1 else 0)]


@pytest.mark.parametrize("data", makers(), ids=lambda data: type(data).__name__)
def test_the_rows_of_a_sample_are_rows_of_the_part(data):
    whole = rows_of(data.eval_batches(1, "valid"))
    for sample in (1, 10, 39):
        found = rows_of(data.eval_batches(3, "valid", None, sample))
        assert found == [whole[i] for i in spread(len(whole), sample).tolist()]
    assert rows_of(data.eval_batches(3, "valid", None, 1000)) == whole


def test_windows_that_overlap_are_sampled_too():
    data = Language({"valid": STREAM}, 16)
    whole = rows_of(data.eval_batches(1, "valid", 5))
    assert rows_of(data.eval_batches(4, "valid", 5, 30)) == [whole[i] for i in spread(len(whole), 30).tolist()]


@pytest.mark.parametrize(("size", "sample", "warm"), [(1, 8, 2), (3, 12, 2), (4, 13, 1), (2, 60, 3), (5, 3, 2)])
def test_stretches_continue_are_spread_and_begin_with_a_warm_up_that_does_not_count(size, sample, warm):
    length, places = 16, torch.arange(1000)
    data = Streams({"valid": places}, length, warm=warm)
    counted, begins, ends = [], {}, {}
    for batch in data.eval_batches(size, "valid", None, sample):
        assert len(batch["tokens"]) <= size
        for row, (tokens, targets, fresh) in enumerate(zip(batch["tokens"], batch["targets"], batch["fresh"], strict=True)):
            first = int(tokens[0])
            if fresh:
                begins[row] = first
                assert first % length == 0
            elif first < 999:
                assert first == ends[row]
            ends[row] = int(tokens[-1]) + 1
            real = targets != IGNORED
            assert targets[real].equal(tokens[real] + 1)
            if real.any():
                assert first - begins[row] >= warm * length or begins[row] == 0
                counted += targets[real].tolist()
    assert len(set(counted)) == len(counted)
    assert (sample - data.stretch(sample)) * length < len(counted) <= sample * length
    stretches = sample // data.stretch(sample)
    assert max(counted) > 999 * (stretches - 1) // stretches - data.stretch(sample) * length
