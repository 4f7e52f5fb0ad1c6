"""Lanes: each row goes on where it ended, and in evaluation no token is lost."""

from __future__ import annotations

import torch

from formers.data import Streams
from helpers import sweep

STREAM = torch.arange(1000)


@sweep("size", [1, 4, 7])
@sweep("length", [1, 16, 33])
def test_rows_go_on_where_they_ended_unless_they_are_fresh(size, length):
    data, before = Streams({"train": STREAM}, length), None
    steps = 999 // size // length
    for step in range(3 * steps):
        batch = data.train_batch(size, 5, step)
        assert batch["tokens"].shape == (size, length)
        assert batch["targets"].equal((batch["tokens"] + 1) % 1000)
        assert batch["fresh"].tolist() == [step % steps == 0] * size
        if before is not None and not batch["fresh"][0]:
            assert batch["tokens"][:, 0].equal(before["targets"][:, -1])
        before = batch


def test_an_epoch_evaluates_no_token_twice_and_nearly_all_once():
    data = Streams({"train": STREAM}, 16)
    seen = torch.cat([data.train_batch(4, 0, step)["targets"].flatten() for step in range(999 // 4 // 16)])
    assert len(seen.unique()) == len(seen) == 4 * 15 * 16


def test_every_epoch_begins_at_another_place():
    data = Streams({"train": STREAM}, 16)
    begins = {int(data.train_batch(4, 0, 15 * epoch)["tokens"][0, 0]) for epoch in range(10)}
    assert len(begins) > 8
    assert data.train_batch(4, 0, 0)["tokens"].tolist() != data.train_batch(4, 1, 0)["tokens"].tolist()


@sweep(("count", "size"), [(2, 4), (5, 4), (40, 4), (65, 4)])
def test_a_short_text_makes_short_segments(count, size):
    batch = Streams({"train": torch.arange(count)}, 16).train_batch(size, 0, 3)
    assert batch["targets"].equal((batch["tokens"] + 1) % count)
    assert batch["tokens"].shape == (size, min(16, max(1, (count - 1) // size)))


@sweep("count", [2, 3, 17, 100, 129, 1000])
@sweep("size", [1, 3, 8])
@sweep("length", [1, 16, 64])
def test_every_token_but_the_first_is_evaluated_once_in_lanes_that_continue(count, size, length):
    batches = list(Streams({"valid": torch.arange(count)}, length).eval_batches(size))
    rows = min(size, count - 1)
    lanes = [[] for _ in range(rows)]
    for number, batch in enumerate(batches):
        assert batch["fresh"].tolist() == [number == 0] * rows
        real = batch["targets"] != -100
        assert bool(real.all()) or number == len(batches) - 1
        assert batch["targets"][real].equal(batch["tokens"][real] + 1)
        for lane, targets, kept in zip(lanes, batch["targets"], real, strict=True):
            lane += targets[kept].tolist()
    assert [token for lane in lanes for token in lane] == list(range(1, count))
    assert all(lane == list(range(lane[0], lane[-1] + 1)) for lane in lanes)
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1
