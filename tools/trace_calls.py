"""Counts the files and the nested frames of `formers` that a call crosses: how far a reader has to go to follow it.

    python tools/trace_calls.py            a decoder's forward pass, one cached token, `formers.train` to its first backward pass
    python tools/trace_calls.py --list     the same, with the files in the order in which they are entered

Calls are warm: what is imported and cached by a first call is not counted. A frame is a Python function of `formers`; frames of torch
between two of them are not counted.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import formers

ROOT = str(Path(formers.__file__).parent)


class Trace:
    """Records the files and the deepest nesting of the calls made inside it."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.deepest: list[str] = []
        self.stack: list[str] = []
        self.stopped = False

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        """What sys.setprofile calls at every call and return."""
        name = frame.f_code.co_filename
        if self.stopped or event not in ("call", "return") or not name.startswith(ROOT):
            return
        if event == "return":
            if self.stack:
                self.stack.pop()
            return
        self.files.setdefault(name[len(ROOT) + 1 :])
        self.stack.append(f"{name[len(ROOT) + 1 :]}:{frame.f_code.co_name}")
        if len(self.stack) > len(self.deepest):
            self.deepest = list(self.stack)


def traced(call: Callable[[], object]) -> Trace:
    """The trace of one call."""
    trace = Trace()
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
    return trace


def forward() -> Trace:
    """A decoder's forward pass with targets."""
    model, tokens = formers.create("decoder", vocab=64, dim=32, heads=2, layers=2, length=32), torch.randint(64, (2, 33))
    model(tokens[:, :-1], targets=tokens[:, 1:])
    return traced(lambda: model(tokens[:, :-1], targets=tokens[:, 1:]))


def cached_token() -> Trace:
    """One token with a KV cache."""
    model, tokens = formers.create("decoder", vocab=64, dim=32, heads=2, layers=2, length=32).eval(), torch.randint(64, (2, 9))
    with torch.no_grad():
        state = model(tokens[:, :4], state=model.initial_state(2)).state
        state = model(tokens[:, 4:5], state=state).state
        return traced(lambda: model(tokens[:, 5:6], state=state))


def training() -> Trace:
    """`formers.train` from the call to the first backward pass."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 50)
        sizes: dict[str, Any] = dict(steps=1, quiet=True, track="none", dim=16, heads=2, layers=1, length=16, batch=2)
        formers.train("decoder", text, Path(folder) / "first", **sizes)
        trace, backward = Trace(), torch.autograd.backward

        def stop(*args: Any, **options: Any) -> None:
            trace.stopped = True
            backward(*args, **options)

        torch.autograd.backward = stop
        sys.setprofile(trace)
        try:
            formers.train("decoder", text, Path(folder) / "second", **sizes)
        finally:
            sys.setprofile(None)
            torch.autograd.backward = backward
    return trace


def main() -> None:
    """Prints the counts."""
    for name, make in (("forward of a decoder", forward), ("one cached token", cached_token), ("train to the first backward", training)):
        trace = make()
        print(f"{name}: {len(trace.files)} files, {len(trace.deepest)} frames deep")
        if "--list" in sys.argv:
            print("  files: " + " ".join(trace.files))
            print("  deepest: " + " > ".join(trace.deepest))


if __name__ == "__main__":
    main()
