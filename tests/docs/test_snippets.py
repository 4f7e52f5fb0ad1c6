"""What the documents say is so: their Python runs, their marked commands run and print what is shown, their links lead somewhere.

The blocks of a document run in order, in a folder and a namespace of its own. All documents run in one process apart from the tests:
a part that a document defines would else stay registered, and be swept by other tests. That process is this file, called as a program.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import traceback
import types
from pathlib import Path
from typing import NamedTuple

import pytest

import formers
from helpers import sweep

ROOT = Path(__file__).parents[2]
FIRST = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / f"{name}.md" for name in ("python", "command-line", "extending"))]
"""Those that `make test` runs."""
GUIDES = [*FIRST, *sorted(set((ROOT / "docs").rglob("*.md")) - set(FIRST))]
PROSE = ("contents.md", "glossary.md", "measurements.md", "decisions/")
"""Pages of words alone."""
DOCUMENTS = [*GUIDES, *(ROOT / f"{name}.md" for name in ("EQUATIONS", "CHANGELOG", "SECURITY"))]
FENCED = re.compile(r"^(?P<run><!-- run -->\n\n?)?```(?P<kind>[a-z]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PROMPT = "$ "


class Block(NamedTuple):
    """A fenced block of a document: its language, its text, the line before its first, and whether its commands are to be run."""

    kind: str
    body: str
    line: int
    run: bool


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a document, in order."""
    return [Block(m["kind"], m["body"], text.count("\n", 0, m.start("body")), m["run"] is not None) for m in FENCED.finditer(text)]


def commands(body: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines of output shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in body.replace("\\\n", " ").splitlines():
        if line.startswith(PROMPT):
            found.append((line.removeprefix(PROMPT), []))
        elif found:
            found[-1][1].append(line.rstrip())
    return found


def run_command(line: str, shown: list[str]) -> None:
    """Runs a `formers` command; fails unless it ends in 0 and prints what is shown."""
    from typer.testing import CliRunner

    from formers.cli.app import app

    result = CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, f"{line} ended in {result.exit_code}: {result.output}"
    printed = "\n".join(text.rstrip() for text in result.stdout.splitlines())
    wanted = "\n".join(shown).strip("\n")
    assert wanted in printed, f"{line} is shown to print\n{wanted}\nand prints\n{printed}"


def run_document(path: Path) -> None:
    """Runs all Python of a document in one namespace, and between it the commands that are marked."""
    space = types.ModuleType(f"snippets_of_{path.stem}")
    sys.modules[space.__name__] = space  # pydantic looks the names in a class's annotations up in its module
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.kind == "python":
            exec(compile("\n" * block.line + block.body, str(path), "exec"), space.__dict__)
        elif block.run:
            for line, shown in commands(block.body):
                if line.startswith("formers "):
                    run_command(line, shown)


def run_documents(paths: list[Path]) -> int:
    """Runs documents, each in a new folder below this one; how many failed."""
    import torch

    torch.set_num_threads(1)
    start, failed = Path.cwd(), 0
    for path in paths:
        folder = start / f"{path.parent.name}-{path.stem}"  # two folders may have a page of one name
        folder.mkdir()
        os.chdir(folder)
        torch.manual_seed(0)
        try:
            run_document(path)
        except Exception:
            print(f"{path} does not run:\n{traceback.format_exc()}", file=sys.stderr)
            failed += 1
    return failed


@pytest.mark.parametrize("paths", [FIRST, pytest.param(GUIDES[len(FIRST) :], marks=pytest.mark.slow)], ids=["first", "others"])
def test_every_snippet_runs(tmp_path: Path, paths: list[Path]) -> None:
    tree = (Path(formers.__file__).parents[1], Path(__file__).parents[1])  # the tree under test, whatever else is installed
    source = os.pathsep.join(map(str, tree))
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    line = [sys.executable, __file__, *map(str, paths)]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, check=False, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_a_wrong_snippet_fails_at_its_line_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [tmp_path / f"{name}.md" for name in ("wrong", "right", "untrue", "unknown")]
    pages[0].write_text("words\n\n```python\nx = 1\nassert x == 2\n```\n")
    pages[1].write_text("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n\n```text\nfree of charge\n```\n")
    pages[2].write_text("<!-- run -->\n```console\n$ formers --version\nformers 99\n```\n")
    pages[3].write_text("<!-- run -->\n```console\n$ formers no-such-verb\n```\n")
    monkeypatch.chdir(tmp_path)
    assert run_documents(pages) == 3
    output = capsys.readouterr().err
    assert 'wrong.md", line 5' in output
    assert "right.md" not in output
    assert "formers 99" in output
    assert "no-such-verb ended in 2" in output


@sweep("path", GUIDES)
def test_a_guide_has_code_and_a_mark_stands_before_commands_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if not path.relative_to(ROOT).as_posix().removeprefix("docs/").startswith(PROSE):
        assert any(b.kind == "python" for b in blocks(text))
    marked = [b for b in blocks(text) if b.run]
    assert len(marked) == len(re.findall(r"^<!-- run -->", text, re.MULTILINE)), "a mark <!-- run --> stands before no fenced block"
    for block in marked:
        assert block.kind == "console"
        assert any(line.startswith("formers ") for line, _ in commands(block.body)), f"nothing to run at line {block.line}"


def test_blocks_and_commands_are_read_as_they_are_written() -> None:
    text = "a\n```python\nx = 1\n```\n<!-- run -->\n```console\n$ formers a \\\n  b\nout\n$ ls\n```\n```text\n$ formers c\n```\n"
    assert blocks(text) == [
        Block("python", "x = 1\n", 2, False),
        Block("console", "$ formers a \\\n  b\nout\n$ ls\n", 6, True),
        Block("text", "$ formers c\n", 12, False),
    ]
    assert commands(blocks(text)[1].body) == [("formers a    b", ["out"]), ("ls", [])]


def test_the_readme_names_the_two_commands() -> None:
    readme, makefile = (ROOT / "README.md").read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_readme_and_contributing_are_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 10 * 1024
    assert (ROOT / "CONTRIBUTING.md").stat().st_size <= 15 * 1024


@sweep("path", [*DOCUMENTS, ROOT / "CITATION.cff", *sorted((ROOT / ".github").rglob("*.yml")), ROOT / ".ci" / "run"])
def test_no_document_names_a_machine(path: Path) -> None:
    """Neither a path of a machine nor the host of a package index."""
    text = path.read_text(encoding="utf-8")
    assert str(ROOT) not in text
    assert re.search(r"/home/|/root/|/work/|index-url|pypi\.|pythonhosted", text, re.IGNORECASE) is None


def test_a_public_forge_runs_what_ci_runs() -> None:
    import yaml

    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


def test_the_citation_has_what_the_format_asks_for_and_the_version_of_the_package() -> None:
    import yaml

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == formers.__version__
    assert cited["license"] == "MIT"


@sweep("path", DOCUMENTS)
def test_every_relative_link_leads_to_a_file(path: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCED.sub("", path.read_text(encoding="utf-8")))
    links = [link.partition("#")[0] for link in LINK.findall(prose) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if link and not (path.parent / link).exists()] == []


@sweep("name", [n for n in dir(formers) if not n.startswith("_")])
def test_every_public_name_explains_itself(name: str) -> None:
    doc = getattr(formers, name).__doc__
    assert doc, f"formers.{name} has no docstring"
    assert not doc.startswith(f"{name}("), f"formers.{name} has the docstring that dataclasses write"
    assert doc.strip().split("\n")[0].endswith((".", ":")), f"formers.{name}'s docstring begins with no sentence"


if __name__ == "__main__":
    sys.exit(run_documents([Path(name) for name in sys.argv[1:]]))
