"""Checks random specs until time is up, and prints a minimal reproduction of what they violate: `make fuzz`.

python tools/fuzz.py --minutes 20 --workers 2        with tests/ on PYTHONPATH; exit code 1 where a property does not hold
                                                     or could not be checked too often

The specs, the properties and the search for smaller specs are those of tests/contracts (random_specs.py, properties.py, shrinking.py).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import torch

from contracts.properties import examine
from contracts.random_parts import PARTS
from contracts.random_specs import draw, parts_of
from contracts.shrinking import reproduction, shrink

BATCH = 8
"""Specs that a worker checks before it reports."""
UNDECIDED = 0.005
"""The share of the specs for which a property may be undecided: more of them fail, as a violation does."""
Kind = tuple[str, str]


@dataclass
class Report:
    """What became of some specs."""

    drawn: int = 0
    refused: int = 0
    parts: Counter[Kind] = field(default_factory=Counter)
    """How many specs had each (slot, kind)."""
    built: Counter[Kind] = field(default_factory=Counter)
    """How many of them were built."""
    undecided: dict[str, list[int]] = field(default_factory=dict)
    """By property, the seeds for which it could not be checked."""
    faults: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Seed, property, kind of failure, and what it says."""

    def add(self, other: Report) -> None:
        """Counts what another report has, too."""
        self.drawn += other.drawn
        self.refused += other.refused
        self.parts.update(other.parts)
        self.built.update(other.built)
        for name, seeds in other.undecided.items():
            self.undecided.setdefault(name, []).extend(seeds)
        self.faults += other.faults

    @property
    def blind(self) -> bool:
        """Whether a property could not be checked for too many of the specs that were built."""
        return any(len(seeds) > 3 + UNDECIDED * (self.drawn - self.refused) for seeds in self.undecided.values())


def check_some(seeds: range) -> Report:
    """Draws specs and checks all properties of those that are not refused."""
    torch.set_num_threads(1)
    report = Report()
    for seed in seeds:
        fields = draw(seed)
        outcome = examine(fields, seed)
        parts = set(parts_of(fields))
        report.drawn += 1
        report.parts.update(parts)
        if outcome.refusal is None:
            report.built.update(parts)
        else:
            report.refused += 1
        for name in outcome.undecided:
            report.undecided.setdefault(name, []).append(seed)
        report.faults += [(seed, fault.name, fault.kind, fault.text) for fault in outcome.faults]
    return report


def smallest(seed: int, name: str, kind: str) -> str:
    """A minimal reproduction of one fault of a seed."""
    torch.set_num_threads(1)
    fields = draw(seed)
    fault = next(fault for fault in examine(fields, seed, (name,)).faults if fault.kind == kind)
    smaller, said = shrink(fields, seed, fault)
    return str(reproduction(smaller, seed, said))


def batches(first: int, last: int | None) -> Iterator[range]:
    """Seeds from the first on, some at a time."""
    while last is None or first < last:
        yield range(first, first + BATCH if last is None else min(first + BATCH, last))
        first += BATCH


def run(minutes: float, workers: int, first: int, specs: int | None) -> Report:
    """Checks specs until time is up, until there are enough, or until it is interrupted; a worker that dies is a fault, and is replaced."""
    report, start = Report(), time.monotonic()
    todo = batches(first, None if specs is None else first + specs)
    waiting: dict[Future[Report], range] = {}
    over, before = False, -1
    while not over:
        try:
            with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
                try:
                    work(pool, workers, todo, waiting, report, start, start + 60 * minutes)
                except KeyboardInterrupt:
                    pool.shutdown(wait=False, cancel_futures=True)
            over = True
        except BrokenProcessPool:
            seeds = [seed for some in waiting.values() for seed in some]
            report.faults.append((min(seeds), "worker", "BrokenProcessPool", f"a worker died while it checked one of the seeds {seeds}"))
            waiting.clear()
            over, before = report.drawn == before, report.drawn  # no further try where workers cannot even start
    print(progress(report, time.monotonic() - start), flush=True)
    return report


def work(
    pool: ProcessPoolExecutor,
    workers: int,
    todo: Iterator[range],
    waiting: dict[Future[Report], range],
    report: Report,
    start: float,
    end: float,
) -> None:
    """Lets workers check what is to do until there is no more, or until the end, and shows how far they are."""
    shown = 0.0
    while True:
        while time.monotonic() < end and len(waiting) < 2 * workers and (seeds := next(todo, None)) is not None:
            waiting[pool.submit(check_some, seeds)] = seeds
        if not waiting:
            return
        for done in wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED).done:
            report.add(done.result())
            del waiting[done]
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            print(progress(report, shown - start), flush=True)


def progress(report: Report, seconds: float) -> str:
    """How far it is, in one line."""
    built = report.drawn - report.refused
    return (
        f"{seconds / 60:6.1f} min  {report.drawn} drawn ({report.drawn / max(seconds, 1e-9):.1f}/s)  {report.refused} refused  "
        f"{built} built  {sum(map(len, report.undecided.values()))} undecided  {len(report.faults)} violations"
    )


def table(report: Report) -> str:
    """How often each part was drawn and built."""
    rows = [f"{'slot':<12} {'part':<16} {'drawn':>7} {'built':>7}"]
    for slot, kinds in PARTS.items():
        rows += [f"{slot:<12} {kind:<16} {report.parts[slot, kind]:>7} {report.built[slot, kind]:>7}" for kind in kinds]
    return "\n".join(rows)


def show_undecided(report: Report) -> None:
    """Prints which properties could not be checked, and for which seeds."""
    for name, seeds in report.undecided.items():
        share = len(seeds) / max(1, report.drawn - report.refused)
        print(f"\nundecided: {name}: {len(seeds)} specs ({share:.2%}), seeds {' '.join(map(str, sorted(seeds)[:20]))}")
    if report.blind:
        print(f"a property may be undecided for {UNDECIDED:.1%} of the specs: make the check or the specs better.")


def show_faults(report: Report, most: int) -> None:
    """Prints every violation, and for the first of each kind a minimal reproduction."""
    seen: Counter[Kind] = Counter()
    for seed, name, kind, text in report.faults:
        seen[name, kind] += 1
        print(f"\nseed {seed}: {name}: {text}", flush=True)
        if name != "worker" and seen[name, kind] <= most:
            print(smallest(seed, name, kind), flush=True)
    if report.faults:
        print("\n" + "\n".join(f"{count:6} {name}: {kind}" for (name, kind), count in seen.most_common()))


def main(arguments: list[str] | None = None) -> int:
    """Runs it with command-line arguments; 1 where a property does not hold."""
    parser = argparse.ArgumentParser(description="Checks random specs; exit code 1 where a property does not hold.")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to go on (60)")
    parser.add_argument("--workers", type=int, default=1, help="processes (1)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--specs", type=int, help="how many specs at the most")
    parser.add_argument("--shrink", type=int, default=3, help="how many violations of each kind are made smaller (3)")
    given = parser.parse_args(arguments)
    report = run(given.minutes, given.workers, given.seed, given.specs)
    print(table(report))
    show_undecided(report)
    show_faults(report, given.shrink)
    return 1 if report.faults or report.blind else 0


if __name__ == "__main__":
    sys.exit(main())
