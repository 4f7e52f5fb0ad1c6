"""Mistakes about halting on the command line: one sentence, code 2, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from formers.cli import main
from helpers import one_sentence


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["universal-transformer", "--set", "act=graves", "--set", "halt_epsilon=0"], "halt_epsilon"),
        (["universal-transformer", "--set", "act=graves", "--set", "halt_epsilon=1"], "halt_epsilon"),
        (["universal-transformer", "--set", "act=graves", "--set", "halt_epsilon=nan"], "halt_epsilon"),
        (["universal-transformer", "--set", "steps=0"], "steps"),
        (["universal-transformer", "--set", "act=graves", "--set", "position=none", "--set", "norm=reversible"], "Reversible"),
        (["act-rnn", "--set", "halt_epsilon=-0.5"], "halt_epsilon"),
        (["act-rnn", "--set", "steps=0"], "steps"),
        (["act-rnn", "--set", "ponder=-1"], "ponder"),
        (["act-rnn", "--set", "norm=reversible"], "Reversible"),
    ],
    ids=lambda given: "-".join(word.replace("--set", "") for word in given) if isinstance(given, list) else given,
)
def test_what_cannot_halt_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("to be, or not to be, that is the question\n" * 50)
    monkeypatch.setattr("sys.argv", ["formers", "train", *words, "--data", str(text), "--steps", "2", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err.strip()
    one_sentence(said)
    assert named in said
    assert not out.exists()
