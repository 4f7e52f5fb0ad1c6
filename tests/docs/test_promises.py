"""docs/promises.md names, for every promise, tests that exist, and says rightly which command runs them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def assigned(module: ast.Module, name: str) -> str:
    """The source of a value that a module gives to a name, or nothing."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node.value)
    return ""


def run_by(file: str, name: str) -> str:
    """When a test runs: `quick` by make test, `slow` by make test-all alone, `both` where `make test` runs some of its cases."""
    module = tree(TESTS / file)
    (test,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
    marks = [ast.unparse(decorator) for decorator in test.decorator_list]
    folders = ast.literal_eval(assigned(tree(TESTS / "conftest.py"), "SLOW"))
    if file.split("/")[0] in folders or "pytest.mark.slow" in [*marks, assigned(module, "pytestmark")]:
        return "slow"
    return "both" if any("pytest.mark.slow" in mark or "first_quick(" in mark for mark in marks) else "quick"


def rows() -> list[tuple[str, list[tuple[str, str]], str]]:
    """Each promise, the files and names of the tests that hold it now, and when they run."""
    found = []
    for line in (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and "::" in line:
            _, promise, _, now, run, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
            found.append((promise, NAME.findall(now), run))
    return found


def test_every_test_in_the_list_exists_and_runs_when_the_list_says() -> None:
    wrong = []
    for promise, named, run in rows():
        assert named, promise
        lost = [f"{file}::{name}" for file, name in named if f"\ndef {name}(" not in (TESTS / file).read_text(encoding="utf-8")]
        assert not lost, f"the tests {lost} of the promise {promise!r} are gone: name those that hold it now."
        when = {run_by(file, name) for file, name in named}
        words = when if len(when) == 1 and "both" not in when else {"quick", "slow"}
        if run != " and ".join(sorted(words)):
            wrong.append(f"{promise}: {' and '.join(sorted(words))}, not {run}")
    assert wrong == []


def test_the_tests_that_the_promises_name_are_in_the_list() -> None:
    promised = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8").partition("## What is promised")[2].partition("\n## ")[0]
    files = set(re.findall(r"\]\(\.\./tests/([\w/]+\.py)\)", promised))
    listed = {file for _, named, _ in rows() for file, _ in named}
    assert len(files) > 40
    assert files - listed == set()
