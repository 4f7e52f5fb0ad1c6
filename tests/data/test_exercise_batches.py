"""Batches of exercises: the same rows for every kind of model, targets where something is asked, and the difficulty of each row."""

from __future__ import annotations

import torch

from formers.core import IGNORED
from formers.data.tasks import Answers, Blanks, DrawnLabels, DrawnPairs, DrawnVectors, open_strings, open_vectors
from formers.data.tasks.batches import tokenizer_of
from formers.data.tasks.exercise import Held
from helpers import refused, sweep

SUMS = open_strings("task:addition,digits=3,test_digits=5,rows=20")
BITS = open_strings("task:parity,bits=6,test_bits=9,rows=20")
GRAVES = open_vectors("task:addition,rows=20")


def batches(kind):
    if kind is DrawnPairs:
        return DrawnPairs(SUMS, tokenizer_of(SUMS, ("begin", "end")))
    if kind is DrawnLabels:
        return DrawnLabels(BITS, 16, tokenizer_of(BITS, ()))
    if kind is DrawnVectors:
        return DrawnVectors(GRAVES)
    return kind(SUMS, tokenizer_of(SUMS, ("end", "mask")))


KINDS = sweep("made", [batches(k) for k in (DrawnPairs, DrawnLabels, DrawnVectors, Answers, Blanks)])


@KINDS
def test_a_training_batch_is_a_function_of_seed_and_step_and_a_process_gets_its_rows(made) -> None:
    whole, again = made.train_batch(8, 1, 2), made.train_batch(8, 1, 2)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    some = made.train_batch(8, 1, 2, slice(2, 5))
    for name, value in some.items():
        shape = value.shape
        assert torch.equal(value, whole[name][2:5][tuple(slice(size) for size in shape)])
    name = next(iter(whole))
    for other in (made.train_batch(8, 1, 3), made.train_batch(8, 2, 2)):
        assert whole[name].shape != other[name].shape or not torch.equal(whole[name], other[name])


@KINDS
def test_a_part_is_its_fixed_rows_in_order_each_as_hard_as_it_is_said(made) -> None:
    for part in ("valid", "test"):
        found = list(made.eval_batches(8, part))
        assert [len(batch["targets"]) for batch in found] == [8, 8, 4]
        assert len(made.parts[part]) == 20 == len(made.difficulty(part))
        asked = [batch["targets"][batch["targets"] != IGNORED].tolist() for batch in (next(iter(made.eval_batches(20, part))), *found)]
        assert asked[0] == [*asked[1], *asked[2], *asked[3]]
    assert made.difficulty("valid").tolist() == made.exercise.difficulties("valid")
    assert not made.continues
    with refused("task:", "has no later part"):
        list(made.eval_batches(8, "later"))
    with refused("stride=2"):
        list(made.eval_batches(8, "valid", stride=2))


def test_a_language_model_reads_source_and_answer_and_is_asked_for_the_answer() -> None:
    made = batches(Answers)
    tokenizer = made.tokenizer
    batch = next(iter(made.eval_batches(20)))
    for tokens, targets, mask, (source, answer) in zip(batch["tokens"], batch["targets"], batch["mask"], Held(SUMS, "valid"), strict=True):
        assert tokenizer.decode(tokens[mask].tolist()) == f"{source}={answer}"
        asked = targets != IGNORED
        assert targets[asked].tolist() == [*tokenizer.encode(answer), tokenizer.special("end")]
        assert asked.nonzero()[0] == len(source)  # at the equals sign
        assert not (asked & ~mask).any()
    assert made.shown() == (f"{Held(SUMS, 'valid')[2][0]}=", "=".join(Held(SUMS, "valid")[2]))


@sweep(("part", "blanks"), [("valid", 5), ("test", 7)])
def test_a_masked_model_gets_as_many_blanks_in_every_row_of_a_part(part: str, blanks: int) -> None:
    made = batches(Blanks)
    tokenizer = made.tokenizer
    batch = next(iter(made.eval_batches(20, part)))
    for tokens, targets, mask, (source, answer) in zip(batch["tokens"], batch["targets"], batch["mask"], Held(SUMS, part), strict=True):
        assert tokenizer.decode(tokens[mask].tolist()) == f"{source}="
        assert tokens[mask].tolist()[len(source) + 1 :] == [tokenizer.special("mask")] * blanks
        assert targets[targets != IGNORED].tolist() == [*tokenizer.encode(answer), tokenizer.special("end")]
        assert (targets != IGNORED).nonzero()[0] == len(source) + 1


def test_an_encoder_decoder_reads_pairs_and_a_classifier_labels() -> None:
    made = batches(DrawnPairs)
    batch = next(iter(made.eval_batches(3)))
    assert [made.tokenizer.decode(row[mask].tolist()) for row, mask in zip(batch["source"], batch["source_mask"], strict=True)] == [
        source for source, _ in Held(SUMS, "valid")[:3]
    ]
    assert made.parts["valid"][0] == tuple(made.tokenizer.encode(side) for side in Held(SUMS, "valid")[0])
    labels = next(iter(batches(DrawnLabels).eval_batches(20)))["targets"]
    assert labels.tolist() == [source.count("1") % 2 for source, _ in Held(BITS, "valid")]


def test_vectors_are_as_long_as_the_longest_row_and_know_how_hard_each_step_is() -> None:
    made = batches(DrawnVectors)
    held = GRAVES.held("valid")
    batch = next(iter(made.eval_batches(3)))
    assert batch["tokens"].shape == (3, 3, 50)
    assert batch["targets"].shape == (3, 3, 6)
    assert torch.equal(batch["tokens"], held.tokens[:3, :3])
    assert torch.equal(made.step_difficulty("valid"), held.difficulty)


def test_the_characters_are_those_of_the_task() -> None:
    assert tokenizer_of(SUMS, ()).characters == "+0123456789="
    assert tokenizer_of(BITS, ("end",)).vocab == 4
    assert tokenizer_of(open_strings("task:copy,symbols=3"), ()).characters == "012="
