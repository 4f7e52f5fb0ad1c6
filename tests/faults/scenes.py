"""What the fault tests run in processes of their own: a small training with all that a run can carry, and ways to hurt it.

A process is forked from a server that has loaded torch already, so that a hundred of them cost seconds. The member trained here carries
a memory from batch to batch, draws dropout and follows a schedule: whatever a checkpoint could forget would show in its weights.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from formers.model import Spec

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["formers.training", "formers.family", "filelock", "yaml", "torch._dynamo"])  # the last by the optimiser

STEPS = 12
OPTIONS: dict[str, Any] = dict(
    dim=16, heads=2, layers=1, length=8, window=12, dropout=0.2,
    batch=4, learning_rate=1e-2, save_every=2, eval_every=4, eval_batches=2, final_batches=4, sample_tokens=0, track="none", quiet=True,
)  # fmt: skip


def text(folder: Path) -> Path:
    """A small text in a folder."""
    path = folder / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 40)
    return path


def register() -> None:
    """Makes known, in this process, a member that carries its past from batch to batch."""
    from formers.family import MEMBERS, Member, spec
    from formers.memory import Memory
    from formers.patterns import Local

    class RecurrentMemory(Memory):
        """What is left of the cache goes on with the next batch."""

    def carrying(
        *, vocab: int, dim: int = 16, heads: int = 2, layers: int = 1, length: int = 8, window: int = 12, dropout: float = 0.0
    ) -> Spec:
        """A decoder with a window, without positions, that carries its cache."""
        made = spec("decoder", vocab=vocab, dim=dim, heads=heads, layers=layers, length=length, dropout=dropout, position="none")
        return made.replace(name="carrying", pattern=Local(window=window), memory=RecurrentMemory())

    MEMBERS["carrying"] = Member(carrying, {})


def train(data: Path, out: Path, hurt: dict[str, Any] | None = None, **options: Any) -> None:
    """Trains, or goes on with what is there, and hurts itself on the way as instructed."""
    torch.set_num_threads(1)
    os.environ["FORMERS_CACHE"] = str(data.parent / "cache")
    register()
    import formers

    _hurt(hurt or {})
    steps = options.pop("steps", STEPS)
    try:
        if (out / "run.json").exists():
            formers.resume(out, quiet=True, **({"steps": steps} if options.pop("budget", False) else {}))
        else:
            formers.train("carrying", data, out, steps=steps, **{**OPTIONS, **options})
    except formers.FormersError as error:
        (data.parent / "error.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(3 if type(error).__name__ == "Diverged" else 2)


def _hurt(hurt: dict[str, Any]) -> None:
    """Arms this process: kill it at a stage of a save, or spoil the loss of some steps, or make files too large to write."""
    if "stage" in hurt:
        from formers.training import checkpoint

        left = [hurt["save"]]

        def reached(stage: str) -> None:
            if stage == hurt["stage"]:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        checkpoint.reached = reached
    if "stages" in hurt:
        from formers.training import checkpoint

        def note(stage: str) -> None:
            with open(hurt["stages"], "a") as file:
                file.write(stage + "\n")

        checkpoint.reached = note
    if "spoil" in hurt:
        from formers.training.trainer import Trainer

        advance = Trainer.advance

        def spoiled(loop: Trainer) -> Any:
            def spoil(module: Any, arguments: Any, output: Any) -> None:
                output.loss = output.loss * float("nan")

            if loop.step not in hurt["spoil"]:
                return advance(loop)
            handle = loop.model.register_forward_hook(spoil)
            try:
                return advance(loop)
            finally:
                handle.remove()

        Trainer.advance = spoiled  # type: ignore[method-assign]
    if "file_bytes" in hurt:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from formers.training import checkpoint

        def full(stage: str) -> None:
            if stage == "folder" and hurt["after"].exists():
                resource.setrlimit(resource.RLIMIT_FSIZE, (hurt["file_bytes"], resource.RLIM_INFINITY))

        checkpoint.reached = full


def start(data: Path, out: Path, hurt: dict[str, Any] | None = None, **options: Any) -> BaseProcess:
    """A process that trains."""
    process = SERVER.Process(target=train, args=(data, out, hurt), kwargs=options)
    process.start()
    return process


def finished(data: Path, out: Path, hurt: dict[str, Any] | None = None, **options: Any) -> int:
    """The exit code of a process that trains; negative where a signal killed it."""
    process = start(data, out, hurt, **options)
    process.join(120)
    assert process.exitcode is not None, "the training hangs"
    return process.exitcode


def wait_for(path: Path, process: BaseProcess) -> None:
    """Returns when a file is there."""
    end = time.monotonic() + 60
    while not path.exists():
        assert process.is_alive(), "the training ended before it wrote"
        assert time.monotonic() < end, "the training never wrote"
        time.sleep(0.005)
