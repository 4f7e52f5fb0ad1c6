"""Batches made ahead in a thread: in order, with their exceptions, and the thread ends with its context."""

from __future__ import annotations

import threading

import pytest

from formers.training.prefetch import AHEAD, Prefetch


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_every_step_gets_its_own_batch_made_by_one_other_thread() -> None:
    made: list[tuple[int, int]] = []

    def make(step: int) -> int:
        made.append((step, threading.get_ident()))
        return step * step

    with Prefetch(make, stop=6) as ahead:
        assert [ahead.take(step) for step in range(6)] == [0, 1, 4, 9, 16, 25]
    assert [step for step, _ in made] == [0, 1, 2, 3, 4, 5]  # each once, none beyond the last step
    assert len({thread for _, thread in made}) == 1
    assert made[0][1] != threading.get_ident()
    assert threads() == []


def test_batches_are_made_before_they_are_taken_and_not_too_many() -> None:
    last, made = threading.Event(), []

    def make(step: int) -> int:
        made.append(step)
        if step == AHEAD:
            last.set()
        return step

    with Prefetch(make) as ahead:
        assert ahead.take(0) == 0
        assert last.wait(5)
        assert made == list(range(AHEAD + 1))
        assert ahead.take(7) == 7  # another step, as after a resume
        assert ahead.take(8) == 8


def test_an_exception_is_raised_by_the_step_that_it_belongs_to() -> None:
    def make(step: int) -> int:
        if step == 2:
            raise ValueError("no batch 2")
        return step

    with Prefetch(make) as ahead:
        assert [ahead.take(step) for step in range(2)] == [0, 1]
        with pytest.raises(ValueError, match="no batch 2"):
            ahead.take(2)
        assert ahead.take(3) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_thread_ends_with_an_interrupt_and_an_error(error: type[BaseException]) -> None:
    def interrupted() -> None:
        with Prefetch(lambda step: step) as ahead:
            ahead.take(0)
            assert threads()
            raise error

    with pytest.raises(error):
        interrupted()
    assert threads() == []
