"""Memory is measured in a process of its own: what was allocated is found, whatever the process that asks holds."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest

from formers.bench import memory
from helpers import refused

MEGABYTE = 1 << 20


@pytest.mark.skipif(memory.peak() is None, reason="this system does not tell")
def test_what_a_run_allocates_is_measured():
    held = bytearray(256 * MEGABYTE)  # a new process inherits getrusage's mark, and would seem to need nothing more
    assert memory.extra_memory(partial, bytearray, 64 * MEGABYTE) == pytest.approx(64 * MEGABYTE, rel=0.2)
    assert len(held) == 256 * MEGABYTE


@pytest.mark.skipif(not memory.RESET.exists(), reason="the mark cannot be set back here")
def test_what_was_freed_before_does_not_count():
    held = bytearray(64 * MEGABYTE)
    del held
    memory.reset()
    before = memory.peak()
    held = bytearray(32 * MEGABYTE)
    assert memory.peak() - before == pytest.approx(32 * MEGABYTE, rel=0.2)
    assert len(held) == 32 * MEGABYTE


def test_a_process_that_is_killed_is_reported_in_a_sentence():
    with refused("killed", "memory"):
        memory.extra_memory(partial, os._exit, 1)


def test_where_nobody_tells_there_is_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "resource", None)
    assert memory.peak() is None
    assert memory.extra_memory(partial, bytearray, 8) is None


def test_getrusage_counts_kilobytes_or_on_macos_bytes(monkeypatch, tmp_path):
    pytest.importorskip("resource")
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    monkeypatch.setattr(sys, "platform", "linux")
    kilobytes = memory.peak()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert kilobytes / memory.peak() == pytest.approx(1024, rel=0.05)
