"""Prints a Markdown table of what torch.compile makes of every member: graphs over five lengths and two numbers of rows, and seconds.

    python tools/compile_table.py                               all members, graphs only
    python tools/compile_table.py --inductor decoder bigbird    these, also compiled by inductor for a CPU

The members are the small ones of tests/contracts/specimens.py. Training is a step with its backward pass, evaluation a pass without
gradients, decoding 24 tokens after a prompt of seven. Every pass is compiled with fullgraph=True.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from contracts.specimens import FIRST, Specimen, Subject, lengthened, subject

LENGTHS, BATCHES = (5, 9, 14, 17, 22), (2, 3)
LIMIT = 64


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("members", nargs="*")
    parser.add_argument("--inductor", action="store_true", help="also compile with inductor, and time it")
    given = parser.parse_args()
    torch._dynamo.config.recompile_limit = LIMIT  # so that members with many graphs are counted, too
    seconds = " | seconds of inductor" if given.inductor else ""
    print(f"| member | training | evaluation | decoding{seconds} |\n|---|---|---|---{'|---' if given.inductor else ''}|")
    for specimen in FIRST:
        if not given.members or specimen.member in given.members:
            print(row(specimen, given.inductor), flush=True)


def row(specimen: Specimen, inductor: bool) -> str:
    """The row of a member."""
    modes: list[tuple[str, Callable[[Subject, Any], None]]] = [("training", train), ("evaluation", evaluate)]
    if specimen.spec.is_causal:
        modes.append(("decoding", decode))
    cells, times = [], []
    for name, run in modes:
        graphs = Graphs()
        cells.append(attempt(specimen, name == "training", run, graphs) or str(graphs.count))
        if inductor:
            start = time.perf_counter()
            why = attempt(specimen, name == "training", run, "inductor")
            times.append(why or f"{time.perf_counter() - start:.0f}")
    cells += ["-"] * (3 - len(cells))
    return f"| `{specimen.member}` | {' | '.join(cells)} |" + (f" {' / '.join(times)} |" if inductor else "")


class Graphs:
    """A backend that counts graphs and runs them as they are."""

    count = 0

    def __call__(self, graph: torch.fx.GraphModule, given: list[Any]) -> Any:
        self.count += 1
        return graph.forward


def attempt(specimen: Specimen, training: bool, run: Callable[[Subject, Any], None], backend: Any) -> str | None:
    """Compiles a member and runs it; the error's class if it cannot be compiled as a whole."""
    torch._dynamo.reset()
    read = subject(lengthened(specimen.spec, 40), 2, torch.float32)
    model = torch.compile(read.model.train(training), fullgraph=True, dynamic=True, backend=backend)
    try:
        run(read, model)
    except Exception as error:
        return f"no ({type(error).__name__})"
    return None


def passes(read: Subject, model: Any) -> None:
    """The passes over all lengths and numbers of rows."""
    spec = read.model.spec
    for batch in BATCHES:
        for length in LENGTHS:
            label = None if spec.labels is None else torch.randint(spec.labels, (batch,))
            one = subject(spec, batch, torch.float32, length + 1) if spec.encoder is not None else replace(read, batch=batch, label=label)
            x, targets = one.input(length), one.targets(length)
            loss = replace(one, model=model)(x, targets=targets).loss
            if loss is not None and loss.requires_grad:
                loss.backward()


def train(read: Subject, model: Any) -> None:
    """Training steps."""
    passes(read, model)


@torch.no_grad()
def evaluate(read: Subject, model: Any) -> None:
    """Passes without gradients."""
    passes(read, model)


@torch.no_grad()
def decode(read: Subject, model: Any) -> None:
    """24 tokens after a prompt that is read without torch.compile."""
    state, run = read(read.input(7)).state, replace(read, model=model)
    for _ in range(24):
        state = run(read.input(1), state=state).state


if __name__ == "__main__":
    main()
