"""The table of benches and claims: each row has its file, its function takes the options, and both verbs run a claim."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import formers.experiments
from formers.cli.app import app
from formers.cli.benches import BENCHES, CLAIMS, Bench, Claim
from formers.cli.rows import handed_on
from helpers import refused


@pytest.mark.parametrize("row", BENCHES, ids=[row.name for row in BENCHES])
def test_a_bench_has_its_function_and_limits(row: Bench) -> None:
    module = import_module(f"formers.bench.{row.module or row.name}")
    taken = inspect.signature(getattr(module, f"bench_{row.name}")).parameters
    handed = {option.parameter or name for name, option in row.options.items()} - {"out"}
    assert handed <= set(taken)
    required = {name for name, parameter in taken.items() if parameter.default is parameter.empty}
    assert required <= handed
    assert module.LIMITS
    assert all(low < high for low, high in module.LIMITS.values())
    assert ("out" in row.options) == hasattr(module, "save")


@pytest.mark.parametrize("row", CLAIMS, ids=[row.name for row in CLAIMS])
def test_an_experiment_has_the_options_as_fields(row: Claim) -> None:
    kind = getattr(import_module(f"formers.experiments.{row.name}"), row.experiment)
    given = {name: option.default for name, option in row.options.items() if name not in ("seeds", "out", "page")}
    handed = handed_on(row.options, given)
    assert set(handed) <= {field.name for field in fields(kind)}
    assert kind(**handed) == kind(), "the defaults of the table are those of the experiment"
    assert kind.limits
    assert len(kind.titles) > 1


def test_every_experiment_is_a_claim() -> None:
    folder = Path(formers.experiments.__file__).parent
    files = {file.stem for file in folder.glob("*.py")} - {"__init__", "experiment", "learning", "ablate"}
    assert files == {row.name for row in CLAIMS}


def test_reproduce_lists_the_claims() -> None:
    listed = CliRunner().invoke(app, ["reproduce"])
    assert listed.exit_code == 0
    assert all(row.name in listed.stdout and row.about in listed.stdout for row in CLAIMS)
    facts = json.loads(CliRunner().invoke(app, ["reproduce", "--json"]).stdout)
    assert [fact["name"] for fact in facts] == [row.name for row in CLAIMS]


def test_both_verbs_run_a_claim_with_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from formers.experiments import copying

    monkeypatch.setattr(copying, "ROWS", 4)
    words = ["copying", "--words", "3", "--symbols", "4", "--chunk", "2", "--steps", "2", "--json"]
    found = [json.loads(CliRunner().invoke(app, [verb, *words], catch_exceptions=False).stdout) for verb in ("bench", "reproduce")]
    for each in found:
        for row in each["rows"]:
            row.pop("seconds")
    assert found[0] == found[1]
    missed = CliRunner().invoke(app, ["reproduce", *words, "--check"])
    assert missed.exit_code == 1


def test_an_option_that_a_check_does_not_take_is_refused() -> None:
    for words in (["attention", "--length", "64"], ["evaluation", "--length", "64"], ["memory", "--member", "reformer"]):
        with refused("--check", f"leave {words[1]} out"):
            CliRunner().invoke(app, ["bench", *words, "--check"], catch_exceptions=False)
