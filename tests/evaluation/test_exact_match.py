"""Exact scores against counting by hand: symbols, steps of several places, rows, and by difficulty."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import formers
from formers.core import IGNORED
from formers.evaluation.evaluate import evaluate
from formers.evaluation.exact_match import ExactMatch, ExactMatchMetrics, by_difficulty
from formers.heads import Tag
from formers.model.model import Output
from formers.training.task import prepare, task_of
from helpers import sweep

TINY = dict(dim=16, heads=2, layers=1, hidden=16, length=32, dropout=0.0)


def evaluated(predicted: Tensor, targets: Tensor, end: int | None = None) -> ExactMatchMetrics:
    """The score of a model that tells these classes."""
    model = formers.create("decoder", vocab=5, **TINY)
    metrics = ExactMatchMetrics(model, end)
    logits = torch.nn.functional.one_hot(predicted, 5).float()
    metrics.update(targets, Output(logits, None, {"cross_entropy": torch.tensor(1.0)}, None, None))
    return metrics


def test_symbols_and_rows() -> None:
    no = IGNORED
    targets = torch.tensor([[no, 1, 2, 4], [no, 3, 4, no], [no, no, no, no], [no, 0, no, no]])
    predicted = torch.tensor([[1, 1, 2, 3], [0, 3, 4, 0], [1, 1, 1, 1], [0, 0, 3, 3]])
    metrics = evaluated(predicted, targets)
    figures = metrics.results()
    assert figures["accuracy"] == 5 / 6
    assert figures["exact"] == 2 / 3  # the row that asks for nothing is none
    assert figures["targets"] == 6
    assert metrics.by_difficulty(torch.tensor([7, 7, 7, 3])) == {3: ExactMatch(1.0, 1.0, 1), 7: ExactMatch(4 / 5, 1 / 2, 2)}


def test_an_end_is_no_symbol_but_a_row_must_end() -> None:
    no, end = IGNORED, 4
    targets = torch.tensor([[no, 1, 2, end], [no, 3, end, no], [2, 1, 0, end]])
    predicted = torch.tensor([[1, 1, 2, 3], [0, 3, end, 0], [2, 1, 1, end]])
    metrics = evaluated(predicted, targets, end)
    assert metrics.extra_results() == {"accuracy": 5 / 6, "exact": 1 / 3}
    assert metrics.results()["targets"] == 9


def test_a_step_is_right_when_all_its_places_are() -> None:
    no = [IGNORED] * 2
    targets = torch.tensor([[no, [1, 2], [3, 4]], [no, [0, 0], no]])
    predicted = torch.tensor([[[0, 0], [1, 2], [3, 0]], [[0, 0], [0, 0], [1, 1]]])
    metrics = evaluated(predicted, targets)
    assert metrics.sums["symbols"] == 3
    assert metrics.extra_results() == {"accuracy": 2 / 3, "exact": 1 / 2}
    assert metrics.sums["targets"] == 6


def test_labels() -> None:
    metrics = evaluated(torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]))
    assert metrics.extra_results() == {"accuracy": 2 / 3, "exact": 2 / 3}


@sweep("member", ["decoder", "encoder", "transformer"])
def test_scores_by_difficulty_add_up_to_those_of_all(member: str) -> None:
    task = prepare(member, "task:addition,digits=3,rows=30", None, TINY)
    model = formers.build(task.spec).eval()
    figures = evaluate(model, task.batches, task.tokenizer)
    found = by_difficulty(model, task.batches)
    assert list(found) == [1, 2, 3]
    assert sum(each.rows for each in found.values()) == 30
    assert figures["exact"] == pytest.approx(sum(each.exact * each.rows for each in found.values()) / 30)
    assert figures["protocol"].startswith("all 30 rows of valid, digits 1 to 3")
    assert ("right ones before" in figures["protocol"]) == (member != "encoder")
    assert evaluate(model, task.batches, task.tokenizer, first=7)["protocol"].startswith("the first 7 of the 30 rows of valid")
    assert "digits 20" in evaluate(model, task.batches, task.tokenizer, part="test", first=2)["protocol"]


def test_exact_is_what_the_model_writes() -> None:
    task = prepare("decoder", "task:parity,bits=3,rows=40", None, TINY)
    torch.manual_seed(0)
    model = formers.build(task.spec)
    model.tokenizer = task.tokenizer
    for step in range(20):
        model.zero_grad()
        model(**task.batches.train_batch(16, 0, step)).loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight.sub_(0.3 * weight.grad)
    rows = list(task.batches.parts["valid"])
    texts = formers.generate(model, [f"{source}=" for source, _ in rows], max_new_tokens=4, temperature=0.0)
    right = sum(text == f"{source}={answer}" for text, (source, answer) in zip(texts, rows, strict=True))
    assert 0 < right < 40
    assert evaluate(model, task.batches, task.tokenizer)["exact"] == right / 40


def test_vectors_are_evaluated_by_steps() -> None:
    spec = formers.spec("encoder", features=50, classes=2, **TINY).replace(head=Tag(classes=11, places=6))
    task = task_of(spec, None, "task:addition,rows=20")
    model = formers.build(spec).eval()
    figures = evaluate(model, task.batches, task.tokenizer, size=7)
    found = by_difficulty(model, task.batches)
    assert list(found) == [2, 3, 4, 5]  # of one number nothing is asked
    assert sum(each.rows for each in found.values()) == 16
    assert figures["targets"] == 4 * 6 * (1 + 2 + 3 + 4)
    assert figures["protocol"] == "all 20 rows of valid, numbers 1 to 5, of which 4 have no targets and are not counted"
