"""Progress: silent when quick, two lines when slow, never on stdout."""

from __future__ import annotations

import pytest

from formers.data import progress
from formers.data.progress import Progress, silently


@pytest.fixture
def slow(monkeypatch):
    """Every job takes long."""
    monkeypatch.setattr(progress, "LINE_AFTER", 0.0)
    monkeypatch.setattr(progress, "BAR_AFTER", 0.0)


def work():
    with Progress("reading it", 10) as job:
        job.advance(5)
        job.advance(5)


def test_a_quick_job_says_nothing(capsys):
    work()
    assert capsys.readouterr() == ("", "")


def test_a_slow_job_says_when_it_begins_and_when_it_is_done(capsys, slow):
    work()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["reading it ...", "reading it: done in 0 s"]


def test_silence(capsys, slow):
    with silently():
        work()
    assert capsys.readouterr() == ("", "")
    work()
    assert capsys.readouterr().err


def test_a_job_that_fails_does_not_say_that_it_is_done(capsys, slow):
    def fail():
        with Progress("reading it", 0) as job:
            job.advance(1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert capsys.readouterr().err == "reading it ...\n"


def test_a_terminal_gets_a_bar(capsys, slow, monkeypatch):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    work()
    out, err = capsys.readouterr()
    assert out == ""
    assert "done in" not in err
