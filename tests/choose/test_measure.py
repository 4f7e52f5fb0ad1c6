"""The time of a step: fitted to two measured ones, and read off a curve of FLOPs."""

from __future__ import annotations

import pytest
import torch

from formers.choose import situation
from formers.choose.measure import StepFlops, Timed, _power_law, clocked, fit, price, split
from formers.training.config import Settings
from formers.training.start import new_model
from formers.training.trainer import Trainer


def steps(fixed, dense, pairs, *sizes):
    """Two measured steps of a machine with these speeds."""
    return tuple(Timed(n, b, fixed + b * (dense * f.dense + pairs * f.pairs), fixed, f) for n, b, f in sizes)


def test_both_speeds_are_found_where_the_measurements_tell_them():
    known = steps(0.01, 2e-11, 3e-11, (256, 2, StepFlops(1e9, 1e8)), (2048, 1, StepFlops(8e9, 64e8)))
    found = fit(known)
    assert found.at(StepFlops(64e9, 4096e8), 1) == pytest.approx(0.01 + 2e-11 * 64e9 + 3e-11 * 4096e8, rel=0.1)


def test_where_they_do_not_tell_the_speeds_are_alike():
    found = fit(steps(0.0, 2e-11, 2e-11, (256, 1, StepFlops(1e9, 1e8)), (2048, 1, StepFlops(8e9, 8e8))))
    assert found.pairs == pytest.approx(found.dense, rel=0.01)


def test_operations_are_dense_or_over_pairs():
    assert split({"mm": 10, "addmm": 6, "bmm": 4, "hashed": 2}, rows=2) == StepFlops(8.0, 3.0)


def test_a_power_law_is_continued():
    assert _power_law({10: 100.0, 100: 10_000.0}, 1000) == pytest.approx(1e6)
    assert _power_law({10: 100.0, 100: 10_000.0, 1000: 20_000.0}, 50) == pytest.approx(2500)
    assert _power_law({10: 0.0}, 50) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("member", ["decoder", "sparse-transformer", "reformer"])
def test_a_step_that_was_not_measured_is_predicted_within_a_factor_of_two(member, tmp_path):
    """Of CPU time on one thread; `docs/choosing.md` has the figures of a quiet machine, within 1.5."""
    torch.set_num_threads(1)
    job, cpu = situation(None, 4096), torch.device("cpu")
    found = price(job, member, tmp_path, cpu, {})
    task = job.prepare(member, tmp_path)
    trainer = Trainer(new_model(task, cpu), task, Settings(steps=100, batch=found.batch))
    trainer.advance()
    measured = min(clocked(trainer.advance, cpu) for _ in range(2))
    assert 0.5 <= found.seconds / measured <= 2.0
