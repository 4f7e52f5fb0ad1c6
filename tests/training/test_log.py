"""The log: valid JSON whatever the figures, cut where a checkpoint says, a bar on terminals only, and time left by this session's speed."""

from __future__ import annotations

import errno
import io
import json
import os
import time

import pytest
from rich.console import Console

from formers.training import log as module
from formers.training.log import Log, finite, progress_bar
from helpers import refused


def console(terminal=False):
    return Console(file=io.StringIO(), force_terminal=terminal, width=120)


def lines(folder):
    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def shown(log):
    return log.console.file.getvalue()


def test_figures_that_are_no_numbers_are_valid_json(tmp_path):
    with Log(tmp_path, quiet=True) as log:
        log.record(step=1, loss=float("nan"), rate=0.5, norm=float("-inf"), note="x", best=None)
        log.record(step=2, loss=1.0)
    assert lines(tmp_path) == [
        {"step": 1, "loss": None, "loss_word": "nan", "rate": 0.5, "norm": None, "norm_word": "-inf", "note": "x", "best": None},
        {"step": 2, "loss": 1.0},
    ]
    assert finite({"a": 1.0}) == {"a": 1.0}


def test_a_new_run_begins_a_new_file_and_a_resumed_one_is_cut_where_its_checkpoint_was(tmp_path):
    with Log(tmp_path, quiet=True) as log:
        assert log.size() == 0
        log.record(step=1, loss=3.0)
        size = log.size()
        log.record(step=2, loss=2.0)  # behind the checkpoint
    assert size == len('{"step": 1, "loss": 3.0}\n')
    with Log(tmp_path, quiet=True, keep=size) as log:
        assert log.size() == size
        log.record(step=2, loss=2.5)
    assert [line["loss"] for line in lines(tmp_path)] == [3.0, 2.5]
    with Log(tmp_path, quiet=True, keep=0) as log:
        log.record(step=1, loss=4.0)
    assert [line["loss"] for line in lines(tmp_path)] == [4.0]
    with Log(tmp_path, quiet=True):
        pass
    assert lines(tmp_path) == []


def test_a_file_that_lost_its_end_is_kept_up_to_its_last_whole_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    with Log(tmp_path, console(), keep=1000) as log:
        log.record(step=2)
    assert lines(tmp_path) == [{"step": 1}, {"step": 2}]
    assert shown(log).count("\n") == 1
    assert "27 of the 1,000 bytes" in shown(log)
    (tmp_path / "empty").mkdir()
    with Log(tmp_path / "empty", console(), keep=12) as log:
        assert log.size() == 0
    assert "0 of the 12 bytes" in shown(log)


def test_the_last_step_that_is_kept_is_known(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 7}\n{"note": "x"}\n{"step": 8}\n')
    assert module._last(path, 26) == (26, 7)
    assert module._last(path, 38) == (38, 8)
    assert module._last(path, 30) == (26, 7)
    assert module._last(path, 5) == (0, 0)


def test_a_full_disk_is_reported_in_one_sentence(tmp_path, monkeypatch):
    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Log(tmp_path, quiet=True) as log:
        monkeypatch.setattr(module.os, "write", full)
        with refused("metrics.jsonl", "No space left on device", "free some space", f"`formers resume {tmp_path}`"):
            log.record(step=1)
        monkeypatch.setattr(module.os, "write", lambda file, data: len(data) - 1)
        with refused("No space left on device"):
            log.record(step=1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_disk_that_is_really_full(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with refused("metrics.jsonl cannot be written"), Log(tmp_path, quiet=True) as log:
        log.record(step=1)


def test_a_folder_that_is_not_there_is_reported(tmp_path):
    with refused("metrics.jsonl cannot be written (No such file or directory)"):
        Log(tmp_path / "nowhere", quiet=True)


def test_other_processes_neither_show_nor_keep():
    with Log(None, quiet=True) as log:
        log.step(1, 0.5, {"loss": 1.0})
        log.record(step=1, loss=float("nan"))
        assert log.size() == 0


def test_on_a_terminal_there_is_a_bar_with_the_figures(tmp_path):
    with Log(None, console(terminal=True)) as log:
        log.step(1, 0.25, {"loss": 1.23456, "bits/byte": 1.781, "tokens/s": 12345.6})
        log.bar.refresh()
        log.say("a line [not markup]")
    text = shown(log)
    for piece in ("training", "25%", "loss 1.235", "bits/byte 1.781", "tokens/s 12,346", "left", "━", "\x1b[", "a line [not markup]"):
        assert piece in text


def test_what_a_model_writes_cannot_command_the_terminal():
    with Log(None, console()) as log:
        log.say("a\x1b[2Jb\rc\x9bd\x00\nf")
    assert shown(log) == "a\ufffd[2Jb\ufffdc\ufffdd\ufffd\nf\n"


def test_elsewhere_there_are_plain_lines_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    with Log(None, console()) as log:
        for step in range(1, 101):
            now[0] += 1.0
            log.step(step, step / 100, {"loss": 2.0})
    text = shown(log)
    assert "\x1b" not in text
    assert "\r" not in text
    assert text.splitlines()[0] == "step 11   11%  loss 2.000  left 1:29"
    assert len(text.splitlines()) == 9


def test_the_time_left_of_a_resumed_run_goes_by_this_sessions_speed(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    with Log(None, console()) as log:
        log.step(901, 0.90, {})
        assert log._left(now[0], 0.90) == "-:--"
        now[0] = 60.0
        assert log._left(now[0], 0.91) == "9:00"
        assert log._left(now[0], 0.9001) == "16:39:00"
        assert log._left(now[0], 1.0) == "0:00"


def test_a_bar_for_other_work_goes_away_and_is_silent_elsewhere():
    terminal, pipe = console(terminal=True), console()
    for place in (terminal, pipe):
        with progress_bar("evaluating", place) as tick:
            tick(0, None)
            tick(1000, 4000)
            time.sleep(0.3)  # the bar is drawn by a thread of its own
    assert "evaluating" in terminal.file.getvalue()
    assert "1,000 of 4,000" in terminal.file.getvalue()
    assert pipe.file.getvalue() == ""


def test_evaluating_has_a_bar_of_its_own_under_the_trainings():
    with Log(None, console(terminal=True)) as log:
        with log.part("evaluating") as tick:
            tick(3, 10)
            log.bar.refresh()
            assert [task.description for task in log.bar.tasks] == ["training", "evaluating"]
        assert len(log.bar.tasks) == 1
    assert "3 of 10" in shown(log)
    with Log(None, console()) as log, log.part("evaluating") as tick:
        tick(3, 10)
    assert shown(log) == ""


@pytest.mark.parametrize("terminal", [False, True])
def test_a_step_costs_next_to_nothing(tmp_path, terminal):
    costs = []
    with Log(tmp_path, console(terminal)) as log:
        for _ in range(5):
            start = time.process_time()
            for step in range(1000):
                log.step(step, step / 1000, {"loss": 1.5, "bits/byte": 2.5, "tokens/s": 12345.0})
                log.record(often=True, step=step, loss=1.2345678, norm=0.5, rate=0.001, seconds=1.5)
            costs.append((time.process_time() - start) / 1000)
    assert min(costs) < 60e-6
