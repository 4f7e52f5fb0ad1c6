"""What a member is chosen for: the task and the length that data say, and data drawn like them."""

from __future__ import annotations

import numpy as np
import pytest

from formers.choose import situation
from helpers import refused, sweep


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder with a text, labels, pairs and images, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("to be, or not to be\n" * 200)
    (tmp_path / "labels.tsv").write_text("".join(f"{'x' * 30} {n}\t{('good', 'bad')[n % 2]}\n" for n in range(100)))
    (tmp_path / "pairs.tsv").write_text("".join(f"one {n}\t{'un' * 9} {n}\n" for n in range(100)))
    np.save(tmp_path / "images.npy", np.zeros((30, 6, 5, 1), dtype=np.uint8))
    return tmp_path


@sweep(
    ("data", "task", "length"),
    [
        ("my.txt", "text", 256), ("labels.tsv", "classify", 34), ("pairs.tsv", "translate", 22), ("images.npy", "images", 30),
        ("numbers", "translate", None), ("task:copy,length=5", "exercise", None),
    ],
)  # fmt: skip
def test_data_say_the_task_and_the_length(here, data, task, length):
    found = situation(data)
    assert found.task == task
    if length is not None:
        assert abs(found.length - length) <= 2


@sweep(
    ("task", "member"),
    [("text", "decoder"), ("masked", "encoder"), ("classify", "encoder"), ("translate", "transformer"), ("images", "decoder")],
)
def test_drawn_data_have_rows_of_the_length(tmp_path, task, member):
    job = situation(None, 48, task)
    made = job.prepare(member, tmp_path)
    batch = made.batches.train_batch(2, 0, 0, slice(0, 2))
    widest = max(value.shape[1] for name, value in batch.items() if name in ("tokens", "source", "target"))
    assert 0.4 * job.length <= widest <= job.length + 1
    assert job.short(12).length <= 48


@sweep(
    ("task", "member", "word"),
    [("text", "encoder", "masked"), ("masked", "decoder", "text"), ("classify", "rnn", "classes"), ("translate", "decoder", "encoder"),
     ("text", "transformer", "translate"), ("text", "image-transformer", "images")],
)  # fmt: skip
def test_a_member_for_another_job_is_refused_with_the_reason(tmp_path, task, member, word):
    with refused(member, word):
        situation(None, 32, task).prepare(member, tmp_path)


def test_what_describes_no_job_is_refused(here):
    with refused("--data", "--length"):
        situation()
    with refused("txt", "did you mean 'text'"):
        situation(None, 32, "txt")
    with refused("length=2"):
        situation(None, 2)
    with refused("classify", "my.txt", "plain text"):
        situation("my.txt", None, "classify")
