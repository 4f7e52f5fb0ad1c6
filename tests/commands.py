"""The command line, run in the process of the test: a process of its own would load torch each time, which takes seconds."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from formers.cli import main


def command(*words: str, cwd: Path | None = None, encoding: str = "utf-8", columns: int = 80) -> subprocess.CompletedProcess[str]:
    """`formers WORDS`, as `subprocess.run` would give it back: what it wrote to a pipe of this encoding, and its exit code."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["formers", *words])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setenv("COLUMNS", str(columns))
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as ended:
            main()
    written = []
    for stream in (out, err):
        stream.flush()
        written.append(stream.buffer.getvalue().decode(encoding))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["formers", *words], int(ended.value.code or os.EX_OK), *written)
