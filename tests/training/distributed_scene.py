"""What torchrun runs in the tests: one step's gradients to a file, or the command line with a process that kills itself."""

from __future__ import annotations

import os
import signal
import sys

import torch


def gradients(kind: str, accumulate: int, out: str, how: list[str]) -> None:
    """Writes the gradients of the first step of a small training, or of one half-way, by whichever processes there are."""
    from safetensors.torch import save_file

    from formers.depth import Shared
    from formers.model import build
    from formers.training.config import Settings
    from formers.training.distributed import join, world
    from formers.training.task import prepare
    from formers.training.trainer import Trainer

    torch.set_num_threads(1)
    member, data = kind.split(":", 1)
    options: dict[str, object] = dict(dim=16, heads=2, layers=2, length=16, dropout=0.0)
    place = world()
    join(place, torch.device("cpu"))
    if "reversible" in how:
        options["norm"] = "reversible"
    task = prepare(member, data, None, options)
    spec = task.spec
    if "reversible" in how and spec.encoder is not None:
        spec = spec.replace(encoder=spec.encoder.replace(depth=Shared(layers=3)))  # whose gradients are sums over steps
    torch.manual_seed(0)
    settings = Settings(batch=7, accumulate=accumulate, checkpoint="checkpoint" in how, clip=1e9, learning_rate=1e-9, steps=2)
    loop = Trainer(build(spec).train(), task, settings, place, step=int("half" in how))
    done = loop.train_step(loop.micro_batches())
    if place.first:
        grads = {name: p.grad.contiguous() for name, p in loop.model.named_parameters() if p.grad is not None}
        save_file({**grads, "loss": torch.tensor(done.loss), "norm": torch.tensor(done.norm)}, out)


def killed(rank: int, step: int, arguments: list[str]) -> None:
    """The command line, in which one process kills itself at a step, the first time it is started."""
    from formers.cli import main
    from formers.training.trainer import Trainer

    advance = Trainer.advance

    def fatal(loop: Trainer):  # type: ignore[no-untyped-def]
        if loop.world.rank == rank and loop.step == step and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return advance(loop)

    Trainer.advance = fatal  # type: ignore[method-assign]
    sys.argv = ["formers", *arguments]
    main()


if __name__ == "__main__":
    if sys.argv[1] == "gradients":
        gradients(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
    else:
        killed(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
