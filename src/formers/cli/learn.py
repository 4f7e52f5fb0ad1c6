"""The benches of `formers bench` that train: what is learnt, by whom, and in how many steps."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from formers.cli.common import Check, Json, check_file, wrote
from formers.cli.limits import end

if TYPE_CHECKING:
    from formers.experiments.experiment import Experiment

Seeds = Annotated[int, typer.Option(help="How many runs of each, with the seeds 0, 1, ...", min=1)]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the figures as a picture, .png or .svg, too.")]
Page = Annotated[
    Path | None, typer.Option(help="Write the tables with their command into this Markdown file, too, in place of those that it has.")
]

COPYING = (
    "Lines: the rounds of hashing in training; full is dense attention with queries as keys. Columns: those in evaluation.\n"
    'other: the rounds of the training (1 for full) with reach "{other}". seconds: CPU time.'
)


def copying(
    words: Annotated[int, typer.Option(help="Symbols of the word that is copied; a row is twice that and two tokens.", min=1)] = 127,
    symbols: Annotated[int, typer.Option(help="How many symbols there are beside 0.", min=2)] = 64,
    chunk: Annotated[int, typer.Option(help="Tokens of a chunk; there are two buckets for each chunk of a row.", min=1)] = 16,
    reach: Annotated[
        Literal["chunk", "bucket"], typer.Option(help="bucket: a query looks at its whole buckets; chunk: the paper's chunks.")
    ] = "bucket",
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 900,
    seed: Annotated[int, typer.Option(help="Draws weights, rows and rotations.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the table and the losses as a picture, .png or .svg, too.")] = None,
    check: Check = False,
    json: Json = False,
) -> None:
    """The Reformer's duplication task 0w0w: the share of tokens copied right, by the rounds of hashing in training and in evaluation."""
    from formers.experiments.copying import JUDGED, LIMITS, Copying, bench_copying, named, save_copying

    check_file(out, (".png", ".svg"))
    columns = [named(rounds) for rounds in JUDGED]
    if not json:
        print(f"{'learnt with':<12}" + "".join(f"{name:>9}" for name in columns) + f"{'other':>9}{'seconds':>9}", flush=True)

    def show(row: dict[str, Any]) -> None:
        cells = [*(row["accuracy"][name] for name in columns), row["other"]]
        print(f"{row['trained']:<12}" + "".join(f"{cell:>9.2%}" for cell in cells) + f"{row['seconds']:>9,.0f}", flush=True)

    task = Copying(words, symbols, chunk=chunk, reach=reach, steps=steps, seed=seed)
    results = bench_copying(task, (lambda row: None) if json else show)
    if out is not None:
        wrote(save_copying(results, out), json)
    if not json:
        print(f"\n{COPYING.format(other=results['other_reach'])}\n")
        results = {name: results[name] for name in LIMITS}
    end(results, LIMITS, check, json)


def parity(
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 6000,
    ponder: Annotated[float, typer.Option(help="What a step of halting costs.", min=0.0)] = 0.001,
    halt_bias: Annotated[float, typer.Option(help="What the halting unit starts with: the larger, the sooner it halts.")] = -1.0,
    seeds: Seeds = 3,
    out: Out = None,
    page: Page = None,
    check: Check = False,
    json: Json = False,
) -> None:
    """Graves' parity: a recurrent network that halts by itself beside one step and beside fixed numbers of steps, by the number of bits."""
    from formers.experiments.parity import Bits

    _experiment(Bits(steps=steps, ponder=ponder, bias=halt_bias), seeds, out, page, check, json)


def addition(
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 1800,
    digits: Annotated[int, typer.Option(help="The digits of the longest numbers to learn from.", min=1)] = 12,
    test: Annotated[int, typer.Option(help="The digits of the numbers to judge.", min=1)] = 20,
    nines: Annotated[float, typer.Option(help="The share of columns that are made to add up to 9.", min=0.0, max=0.99)] = 0.5,
    depth: Annotated[int, typer.Option(help="Steps of the universal transformer, and layers beside it.", min=1)] = 4,
    seeds: Seeds = 3,
    out: Out = None,
    page: Page = None,
    check: Check = False,
    json: Json = False,
) -> None:
    """Sums of more digits than were learnt: universal-transformer beside encoders of as many parameters and of as much computation."""
    from formers.experiments.addition import Sums

    _experiment(Sums(steps=steps, digits=digits, test=test, nines=nines, depth=depth), seeds, out, page, check, json)


def bottleneck(
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 1000,
    length: Annotated[int, typer.Option(help="The symbols of the longest words.", min=2)] = 40,
    seeds: Seeds = 3,
    out: Out = None,
    page: Page = None,
    check: Check = False,
    json: Json = False,
) -> None:
    """Words copied by an LSTM encoder-decoder without attention and with it, by their length."""
    from formers.experiments.bottleneck import Words

    _experiment(Words(steps=steps, length=length), seeds, out, page, check, json)


def babi(
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 2400,
    data: Annotated[str, typer.Option(help="Which tasks, as `train` takes them.")] = "babi:1-3",
    ponder: Annotated[float, typer.Option(help="What a step of halting costs.", min=0.0)] = 0.01,
    position: Annotated[str, typer.Option(help="relative, or the paper's coordinate.")] = "relative",
    seeds: Seeds = 2,
    out: Out = None,
    page: Page = None,
    check: Check = False,
    json: Json = False,
) -> None:
    """Questions about stories: right answers, and the steps that universal-transformer takes, by the number of supporting facts."""
    from formers.experiments.babi import Questions

    _experiment(Questions(steps=steps, data=data, ponder=ponder, position=position), seeds, out, page, check, json)


def _experiment(what: Experiment, seeds: int, out: Path | None, page: Path | None, check: bool, json: bool) -> None:
    """Runs an experiment: its rows as they are found, its further table, what it claims; picture and page where they are asked for."""
    check_file(out, (".png", ".svg"))
    check_file(page, (".md", ".markdown"))
    ways = what.ways()
    widths = [max(map(len, (*ways, what.titles[0]))), *(len(title) for title in what.titles[1:])]

    def show(words: Sequence[str]) -> None:
        print(
            "  ".join([f"{words[0]:<{widths[0]}}", *(f"{word:>{width}}" for word, width in zip(words[1:], widths[1:], strict=True))]),
            flush=True,
        )

    if not json:
        show(what.titles)
    line: Callable[[dict[str, Any]], None] = (lambda found: None) if json else (lambda found: show(what.cells(found)))
    results = what.run(seeds, line)
    if out is not None:
        wrote(what.save(results, out), json)
    if page is not None:
        from formers.experiments.experiment import onto

        beside = None if out is None else Path(os.path.relpath(out, page.parent))
        wrote(onto(page, what.markdown(results, shlex.join(["formers", *sys.argv[1:]]), beside)), json)
    if not json:
        from formers.cli.limits import show as show_table
        from formers.inspect.draw.tables import add_row, new_table

        further = what.further(results["lines"])
        table = new_table(*further.titles, right=len(further.titles) - 1)
        for row in further.rows:
            add_row(table, *row)
        print()
        show_table(table, results["words"])
        results = {name: results[name] for name in what.limits}
    end(results, what.limits, check, json)


VERBS = (copying, parity, addition, bottleneck, babi)
"""What `formers bench` has of this."""
