"""Equal time, steps, tokens or FLOPs: what a budget is in steps, and which are refused."""

from __future__ import annotations

import pytest

from formers.compare import Budget, budget_of
from formers.compare.budget import row_flops, step_flops, step_tokens
from formers.inspect.measure.costs import Costs
from formers.inspect.measure.explain import runs_token_by_token
from formers.training import prepare
from formers.training.config import Settings
from helpers import refused, sweep


def test_one_budget_is_given():
    assert budget_of(None, None, 3.0, None) == Budget("time", 3.0)
    assert budget_of("tokens", 1e6, None, None) == Budget("tokens", 1e6)
    assert budget_of("steps", 7.0, None, None).words == "7 steps"
    for given in ((None, None, None, None), (None, None, 1.0, 5), ("steps", 5.0, None, 5)):
        with refused("one budget", "--equal"):
            budget_of(*given)
    with refused("--equal", "--budget"):
        budget_of("time", None, None, None)
    with refused("above 0"):
        budget_of("steps", -1.0, None, None)


def test_tokens_and_flops_become_steps(tmp_path):
    (tmp_path / "my.txt").write_text("to be, or not to be\n" * 200)
    task = prepare("decoder", tmp_path / "my.txt", None, {"dim": 16, "heads": 2, "layers": 1, "length": 32})
    assert step_tokens(task, 4) == 4 * 32
    assert Budget("tokens", 10_000).options(task, 4) == ["--steps", str(10_000 // 128)]
    flops = step_flops(task, 4)
    assert flops == pytest.approx(4 * sum(Costs(task.spec).training_flops(32).values()))
    assert Budget("flops", 10.5 * flops).steps(task, 4) == 10
    assert Budget("time", 2).options(task, 4) == ["--minutes", "2"]
    with refused("a step of decoder takes", "tokens"):
        Budget("tokens", 10).steps(task, 4)


def test_a_model_that_computes_token_by_token_is_counted_on_a_line():
    task = prepare("act-rnn", "task:parity,bits=8", None, {"dim": 8})
    assert runs_token_by_token(task.spec)
    assert row_flops(task.spec, 8) == pytest.approx(sum(Costs(task.spec).training_flops(8).values()), rel=0.05)


@sweep(("budget", "warm"), [(10, 1), (200, 20), (5000, 100)])
def test_the_warm_up_follows_the_budget(budget, warm):
    assert Settings(steps=budget).warm_steps == warm
