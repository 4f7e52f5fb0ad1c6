"""`formers bench`: times the family against the plainest code that does the same, and measures its memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from formers.cli import learn
from formers.cli.common import Check, Json, MemberSet, check_file, wrote
from formers.cli.complete import complete_member
from formers.cli.limits import end, show
from formers.cli.options import parse_set

if TYPE_CHECKING:
    from rich.table import Table

    from formers.bench.training_memory import Way

app = typer.Typer(
    help="Time training, decoding and attention; measure memory; hold what `explain` predicts against real runs.", no_args_is_help=True
)

Rounds = Annotated[int, typer.Option(help="How often each side runs.", min=1)]

ATTENTION = (
    'CPU seconds of a forward pass, and of both, forward and backward, all by pieces, also where "auto" would take SDPA. What follows is '
    "of both: how many times faster than torch's kernel "
    "(SDPA) over all pairs; the rate, 1 where an allowed pair takes as long as one of SDPA's; peak memory beyond q, k and v, in multiples "
    "of them; and the length from which on it is faster."
)

PEERS = (
    "CPU seconds of forward and backward passes, ours and theirs; how many times faster ours is; and how far apart the results of the same "
    "attention are."
)


@app.command()
def train(
    rounds: Rounds = 15,
    check: Check = False,
    json: Json = False,
) -> None:
    """A training step of `decoder` beside the plainest decoder, alternating in one process; and the loop's own overhead."""
    from formers.bench.train import LIMITS, bench_train

    end(bench_train(rounds), LIMITS, check, json)


@app.command()
def decode(
    context: Annotated[int, typer.Option(help="How many tokens have been read.", min=1)] = 1024,
    rounds: Rounds = 15,
    check: Check = False,
    json: Json = False,
) -> None:
    """The time per token of cached decoding beside recomputing everything, and the largest difference of their logits."""
    from formers.bench.decode import LIMITS, bench_decode

    end(bench_decode(context, rounds), LIMITS, check, json)


@app.command()
def attention(
    length: Annotated[
        list[int] | None, typer.Option(help="How many tokens attend to one another; may be repeated; 512 ... 8192 unless given.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each runs at short lengths; a third as often at long ones.", min=1)] = 15,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write time against length as a picture, .png or .svg, too.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Measure what is promised alone; exit with code 1 where it is missed.")] = False,
    json: Json = False,
) -> None:
    """Sparse patterns beside torch's fused kernel over all pairs: time, forward and with backward, and peak memory, against length."""
    from formers.bench.attention import LENGTHS, LIMITS, bench_attention, check_attention
    from formers.core import FormersError

    if check:
        if length or out:
            raise FormersError("--check measures at the lengths of its limits, and draws nothing: leave --length and --out out.")
        results = check_attention(min(rounds, 9))
    else:
        from formers.bench.curves import new_curves, save_curves

        lengths = length or LENGTHS
        figure = None if out is None else new_curves(out, lengths)
        results = bench_attention(lengths, rounds)
        if out is not None:
            wrote(save_curves(figure, out, results), json)
    if json:
        end(results, LIMITS if check else {}, check, json)
        return
    show(_attention_table(results), _names_table(results), ATTENTION)
    if check:
        end({name: results[name] for name in LIMITS}, LIMITS, check, json)


@app.command()
def peers(
    rounds: Rounds = 9,
    check: Check = False,
    json: Json = False,
) -> None:
    """Ours beside `local-attention` and the BigBird of `transformers`: same masks and shapes, alternating in one process."""
    from formers.bench.peers import LIMITS, bench_peers

    results = bench_peers(rounds)
    if not json:
        from formers.inspect.draw.tables import add_row, new_table

        table = new_table("ours", "theirs", "tokens", "our s", "their s", "faster", "apart")
        for row in results["rows"]:
            seconds = [f"{row[f'{who}_seconds']:.4f}" for who in ("our", "their")]
            apart = _figure(row.get("difference"), ".0e")
            add_row(table, row["pattern"], row["peer"], f"{row['length']:,}", *seconds, f"{row['speedup']:.2f}", apart)
        for column in range(2, 7):
            table.columns[column].justify = "right"
        settings = new_table("theirs", "set up as")
        for row in results["rows"]:
            add_row(settings, row["peer"], row["setting"])
        show(table, settings, f"{PEERS} {results['note']}")
        results = {name: results[name] for name in LIMITS}
    end(results, LIMITS, check, json)


@app.command()
def linformer(
    length: Annotated[list[int] | None, typer.Option(help="A length to time; may be repeated, two at least.", min=1)] = None,
    rank: Annotated[int, typer.Option(help="How many projected keys there are.", min=1)] = 64,
    rounds: Rounds = 5,
    check: Check = False,
    json: Json = False,
) -> None:
    """Forward and backward passes of a low-rank attention sublayer beside dense ones, and how both grow with the length."""
    from formers.bench.linformer import LENGTHS, LIMITS, bench_linformer

    end(bench_linformer(length or LENGTHS, rank, rounds), LIMITS, check, json)


@app.command()
def span(
    rounds: Rounds = 5,
    check: Check = False,
    json: Json = False,
) -> None:
    """Attention sublayers and training steps of `adaptive-span`: heads that look back a little beside heads that look back all the way."""
    from formers.bench.span import LIMITS, bench_span

    end(bench_span(rounds), LIMITS, check, json)


@app.command()
def images(
    rounds: Rounds = 5,
    check: Check = False,
    json: Json = False,
) -> None:
    """2-D local attention beside masked attention, drawing with and without the cache, and ImageGPT of `transformers` where installed."""
    from formers.bench.images import LIMITS, bench_images

    end(bench_images(rounds), LIMITS, check, json)


@app.command()
def recurrence(
    rounds: Rounds = 9,
    check: Check = False,
    json: Json = False,
) -> None:
    """A training step of `transformer-xl` beside plain scores over the same keys, and beside TransfoXL of `transformers` before 5."""
    from formers.bench.recurrence import LIMITS, bench_recurrence

    end(bench_recurrence(rounds), LIMITS, check, json)


@app.command()
def recurrent(
    rounds: Rounds = 9,
    check: Check = False,
    json: Json = False,
) -> None:
    """A training step and a forward pass of `rnn` beside torch.nn.LSTM between an embedding and an output layer; 5 % are noise."""
    from formers.bench.recurrent import LIMITS, bench_recurrent

    end(bench_recurrent(rounds), LIMITS, check, json)


@app.command()
def pondering(
    rounds: Rounds = 7,
    check: Check = False,
    json: Json = False,
) -> None:
    """Evaluation with halted tokens skipped beside all steps for all; a training step of 6 shared steps beside one of 6 layers."""
    from formers.bench.pondering import LIMITS, bench_pondering

    end(bench_pondering(rounds), LIMITS, check, json)


@app.command()
def lsh(
    rounds: Rounds = 5,
    check: Check = False,
    json: Json = False,
) -> None:
    """LSH attention in a reversible model beside other Reformers, what longer rows cost, and from which length on it pays."""
    from formers.bench.lsh import LIMITS, bench_lsh

    results = bench_lsh(rounds)
    if not json:
        from formers.inspect.draw.tables import add_row, new_table

        table = new_table("tokens", "by hashing, s", "all pairs, s")
        for length, cost in results.pop("lengths").items():
            add_row(table, f"{length:,}", f"{cost['lsh']:.4f}", f"{cost['all_pairs']:.4f}")
        for column in table.columns:
            column.justify = "right"
        show(table, "Attention of one row with 4 heads of 64, forward and backward: 2 rounds, chunks of 64, beside causal SDPA.")
    end(results, LIMITS, check, json)


@app.command()
def evaluation(
    length: Annotated[
        list[int] | None,
        typer.Option(help="An attention length; may be repeated; 400, 800, 1800 and 2800 unless given.", min=1),
    ] = None,
    rounds: Rounds = 5,
    check: Annotated[bool, typer.Option("--check", help="Measure what is promised alone; exit with code 1 where it is missed.")] = False,
    json: Json = False,
) -> None:
    """Judging a text with a memory beside sliding a window over it, per token: the same weights of transformer-xl, one stream."""
    from formers.bench.evaluation import CHECKED, LENGTHS, LIMITS, bench_evaluation
    from formers.core import FormersError

    if check and length:
        raise FormersError("--check measures at the lengths of its limits: leave --length out.")
    lengths = CHECKED if check else tuple(dict.fromkeys(length or LENGTHS))
    results = bench_evaluation(lengths, rounds)
    if not json:
        from formers.inspect.draw.tables import add_row, new_table

        table = new_table("attention length", "memory, ms a token", "sliding, ms a token", "times faster", right=3)
        for n in lengths:
            milliseconds = [f"{1000 * results[f'{how}_{n}_seconds']:.3f}" for how in ("memory", "sliding")]
            add_row(table, f"{n:,}", *milliseconds, f"{results[f'speedup_{n}']:,.0f}")
        show(table)
        results = {name: value for name, value in results.items() if name.startswith("speedup")}
    end(results, LIMITS if check else {}, check, json)


@app.command()
def explain(
    length: Annotated[list[int] | None, typer.Option(help="A length to compare at; may be repeated.", min=2)] = None,
    batch: Annotated[int, typer.Option(help="How many rows are read at a time.", min=1)] = 1,
    check: Check = False,
    json: Json = False,
) -> None:
    """The FLOPs and bytes that `formers explain` predicts, beside those of real runs, for the vanilla members."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler, which reads it as torch is loaded, would tell when it starts
    from formers.bench.explain import LENGTHS, LIMITS, bench_explain

    results = bench_explain(length or LENGTHS, batch)
    if not json:
        from formers.inspect.draw.tables import add_row, new_table

        table = new_table("member", "length", "what", "predicted", "measured", "ratio")
        for row in results.pop("rows"):
            add_row(
                table,
                row["member"],
                f"{row['length']:,}",
                row["what"],
                f"{row['predicted']:,}",
                f"{row['measured']:,}",
                f"{row['ratio']:.4f}",
            )
        for column in (1, 3, 4, 5):
            table.columns[column].justify = "right"
        show(table)
    end(results, LIMITS, check, json)


MEMORY = (
    "The peak of a training step over one row, on one thread, each in a process of its own: beside the weights, the optimiser's averages "
    "and the gradients; these gradients; and the whole process with all of it."
)


@app.command()
def memory(
    member: Annotated[str, typer.Option(help="Whose training step, e.g. reformer.", autocompletion=complete_member)] = "decoder",
    depth: Annotated[
        list[int] | None, typer.Option(help="How many layers; may be repeated; 1, 2, 4, 8, 16 and 24 unless given.", min=1)
    ] = None,
    length: Annotated[list[int] | None, typer.Option(help="How many tokens; may be repeated; 512 ... 8192 unless given.", min=1)] = None,
    way: Annotated[
        list[str] | None, typer.Option(help="plain, checkpointing or reversible; may be repeated; all three unless given.")
    ] = None,
    set_: MemberSet = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write memory as a picture, .png or .svg, too.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Measure what is promised alone; exit with code 1 where it is missed.")] = False,
    json: Json = False,
) -> None:
    """The peak memory of a training step against depth and length: plain residuals, activation checkpointing, reversible layers.

    Depths are compared at the first --length, 1024 unless given, and lengths at the last --depth, 6 unless given.
    """
    check_file(out, (".png", ".svg"))
    from formers.bench.training_memory import DEPTHS, LENGTHS, LIMITS, WAYS, bench_memory, caption, check_memory, panels
    from formers.core import FormersError, nearest
    from formers.inspect import draw_curves, save_panels

    if check and (depth or length or way or set_ or out or member != "decoder"):
        raise FormersError("--check measures what its limits say, and draws nothing: leave all else out.")
    for word in way or []:
        if word not in WAYS:
            raise FormersError(f"--way {word} is unknown: {nearest(word, WAYS)}")
    if out is not None and max(len(set(depth or DEPTHS)), len(set(length or LENGTHS))) < 2:
        raise FormersError(f"{out.name!r} would show one depth and one length: give --depth or --length at least twice.")
    ways: list[Way] = [known for known in WAYS if way is None or known in way]
    results = check_memory() if check else bench_memory(member, parse_set(set_ or []), depth or (), length or (), ways)
    drawn = [] if check else panels(results)
    if out is not None:
        wrote(save_panels(drawn, out, caption(results)), json)
    if json:
        end(results, LIMITS if check else {}, check, json)
        return
    from rich.console import Console

    console = Console()
    show(_memory_table(results["rows"]), MEMORY, *(draw_curves(panel, console.width, console.encoding) for panel in drawn))
    if check:
        end({name: results[name] for name in LIMITS}, LIMITS, check, json)


def _memory_table(rows: list[dict[str, Any]]) -> Table:
    """A line for each step."""
    from formers.inspect.draw.tables import add_row, new_table
    from formers.inspect.measure.units import in_bytes

    table = new_table("member", "way", "layers", "tokens", "a step", "gradients", "process")
    for row in rows:
        sizes = ["" if row[name] is None else in_bytes(row[name]) for name in ("bytes", "gradients_bytes", "process_bytes")]
        add_row(table, row["member"], row["way"], f"{row['layers']:,}", f"{row['length']:,}", *sizes)
    for column in range(2, 7):
        table.columns[column].justify = "right"
    return table


def _attention_table(results: dict[str, Any]) -> Table:
    """A line for each pattern and length; memory stands at the length where it was measured, the cross-over at the first."""
    from formers.inspect.draw.tables import add_row, new_table

    table = new_table("pattern", "tokens", "forward", "both", "faster", "rate", "memory", "faster from", right=7)
    for name in dict.fromkeys(row["pattern"] for row in results["rows"]):
        mine = [row for row in results["rows"] if row["pattern"] == name]
        for row in mine:
            add_row(
                table,
                name if row is mine[0] else "",
                f"{row['length']:,}",
                _figure(row["forward_seconds"], ".4f"),
                _figure(row["seconds"], ".4f"),
                _figure(row["speedup"], ".2f"),
                _figure(row["rate"], ".2f"),
                _figure(results["memory"].get(name), ".1f") if row["length"] == results["memory_length"] else "",
                _start(results, name) if row is mine[0] else "",
            )
    return table


def _names_table(results: dict[str, Any]) -> Table:
    """What the names in a table stand for, and what each stands beside."""
    from formers.inspect.draw.tables import add_row, new_table

    table = new_table("name", "pattern", "faster than SDPA")
    beside = {row["pattern"]: row["beside"] for row in results["rows"]}
    for name, words in results["patterns"].items():
        if name in beside:
            add_row(table, name, words, beside[name])
    return table


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _start(results: dict[str, Any], name: str) -> str:
    """From which length on a pattern is faster than all pairs."""
    starts = results.get("faster_from", {})
    if name not in starts:
        return ""
    start, lengths = starts[name], [row["length"] for row in results["rows"]]
    if start is None:
        return f"above {max(lengths):,}"
    return f"{start:,.0f} or less" if start == min(lengths) else f"{start:,.0f}"


for _verb in learn.VERBS:
    app.command()(_verb)
