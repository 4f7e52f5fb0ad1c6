"""`formers show figure`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from formers import FormersError
from formers.cli.app import app
from formers.cli.complete import complete_figure
from formers.inspect.draw.figures import FIGURES


def show(*words: str) -> Result:
    """What `formers show figure` prints."""
    return CliRunner().invoke(app, ["show", "figure", *words], env={"COLUMNS": "100"}, catch_exceptions=False)


def test_without_a_name_all_figures_are_listed() -> None:
    shown = show()
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in FIGURES)
    assert [fact["name"] for fact in json.loads(show("--json").stdout)] == list(FIGURES) == complete_figure()


def test_without_a_file_the_options_are_told() -> None:
    shown = show("segments").stdout
    assert "transformer-xl" in shown
    assert "segments" in shown
    assert "E50" in shown
    assert "formers show figure segments --out segments.svg" in shown


def test_a_picture_is_written_and_its_values_are_told(tmp_path: Path) -> None:
    out = tmp_path / "s.svg"
    facts = json.loads(show("soft-mask", "--set", "spans=[2]", "--set", "ramp=2", "--out", str(out), "--json").stdout)
    assert out.is_file()
    assert facts["values"]["mask"][0][:6] == [1, 1, 1, 0.5, 0, 0]
    assert show("blocks", "--set", "members=decoder,encoder", "--out", str(out)).stdout == f"wrote {out}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["softmask"], "did you mean 'soft-mask'"),
        (["soft-mask", "--set", "ramp=3"], "--out soft-mask.svg"),
        (["soft-mask", "--out", "x.pdf"], "x.pdf"),
        (["soft-mask", "--out", "no/such/folder/x.svg"], "no/such/folder"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(FormersError, match=said):
        show(*words)
