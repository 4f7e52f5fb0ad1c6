"""The tables of `formers bench` and `formers reproduce`: to add a command, add a row here and a file.

A row of BENCHES names a module of formers.bench that has `bench_NAME`, which takes the options and returns figures by name, and `LIMITS`.
It may have `check_NAME`, which `--check` runs instead and which measures what the limits are of and no more; `tables(results)` and
`figures(results)`, what is printed before the figures and which figures are printed, unless `--json`; and `save(results, out)`, which
draws a picture, with `check_picture(out, ...)`, which refuses one before anything is measured.

A row of CLAIMS names a module of formers.experiments and its class of an experiment, whose fields are the options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import typer

from formers.cli.common import Check, Device, MemberSet
from formers.cli.complete import complete_member
from formers.cli.options import parse_set

Rounds = Annotated[int, typer.Option(help="Number of runs of each side.", min=1)]
Steps = Annotated[int, typer.Option(help="Training steps of each run.", min=1)]
Seeds = Annotated[int, typer.Option(help="Number of runs of each, with seeds 0, 1, ...", min=1)]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Write the figures as a picture, .png or .svg, too.")]
Page = Annotated[
    Path | None, typer.Option(help="Also write the tables with their command into this Markdown file, in place of earlier ones.")
]
CheckAlone = Annotated[bool, typer.Option("--check", help="Measure only the figures with limits; exit with code 1 if one is outside.")]
Ponder = Annotated[float, typer.Option(help="The ponder cost: the weight of a halting step in the loss.", min=0.0)]


class Option(NamedTuple):
    """An option: its type, as typer reads it, its default, and the parameter it is passed to. None is not passed."""

    kind: Any
    default: Any = None
    parameter: str = ""
    """The parameter it is passed to, if its name differs."""
    convert: Callable[[Any], Any] = lambda value: value


class Bench(NamedTuple):
    """A row of `formers bench`."""

    name: str
    about: str
    options: Mapping[str, Option]
    module: str = ""
    """Its file in formers.bench, if its name differs."""
    check: Any = Check
    environment: Mapping[str, str] = MappingProxyType({})
    """Default environment variables, set before torch is loaded."""


class Claim(NamedTuple):
    """A row of `formers reproduce`, also available in `formers bench`."""

    name: str
    about: str
    experiment: str
    """Its class in the file of its name in formers.experiments."""
    options: Mapping[str, Option]


def _rounds(count: int) -> dict[str, Option]:
    return {"rounds": Option(Rounds, count)}


def _lengths(words: str, least: int = 1) -> Option:
    return Option(Annotated[list[int] | None, typer.Option(help=words, min=least)], None, "lengths")


_EXPERIMENT = {"device": Option(Device, "cpu"), "out": Option(Out), "page": Option(Page)}

BENCHES = (
    Bench(
        "train",
        "A training step of `decoder` compared with a minimal decoder, alternating in one process; and the overhead of the trainer.",
        _rounds(15),
    ),
    Bench(
        "decode",
        "The time per token of cached decoding compared with recomputation, and the largest difference of their logits.",
        {"context": Option(Annotated[int, typer.Option(help="Number of tokens in the context.", min=1)], 1024), **_rounds(15)},
    ),
    Bench(
        "attention",
        "Sparse patterns beside torch's fused kernel over all pairs: time, forward and with backward, and peak memory, against length.",
        {
            "length": _lengths("Number of tokens; may be repeated; 512 ... 8192 unless given."),
            "rounds": Option(Annotated[int, typer.Option(help="Number of runs at short lengths; a third of it at long ones.", min=1)], 15),
            "out": Option(
                Annotated[Path | None, typer.Option("--out", "-o", help="Write time against length as a picture, .png or .svg, too.")]
            ),
        },
        check=CheckAlone,
    ),
    Bench(
        "peers",
        "formers compared with `local-attention` and the BigBird of `transformers`: same masks and shapes, alternating in one process.",
        _rounds(9),
    ),
    Bench(
        "linformer",
        "Forward and backward passes of a low-rank attention sublayer beside dense ones, and how both grow with the length.",
        {
            "length": _lengths("A length to time; may be repeated, at least two."),
            "rank": Option(Annotated[int, typer.Option(help="Number of projected keys.", min=1)], 64),
            **_rounds(5),
        },
    ),
    Bench(
        "span",
        "Attention sublayers and training steps of `adaptive-span`: short spans compared with maximal spans.",
        _rounds(5),
    ),
    Bench(
        "images",
        "2-D local attention beside masked attention, drawing with and without the cache, and ImageGPT of `transformers` where installed.",
        _rounds(5),
    ),
    Bench(
        "recurrence",
        "A training step of `transformer-xl` beside plain scores over the same keys, and beside TransfoXL of `transformers` before 5.",
        _rounds(9),
    ),
    Bench(
        "recurrent",
        "A training step and a forward pass of `rnn` beside torch.nn.LSTM between an embedding and an output layer; 5 % are noise.",
        _rounds(9),
    ),
    Bench(
        "pondering",
        "Evaluation with halted tokens skipped beside all steps for all; a training step of 6 shared steps beside one of 6 layers.",
        _rounds(7),
    ),
    Bench(
        "lsh",
        "LSH attention in a reversible model beside other Reformers, what longer rows cost, and from which length on it pays.",
        _rounds(5),
    ),
    Bench(
        "evaluation",
        "Evaluating a text with a memory beside sliding a window over it, per token: the same weights of transformer-xl, one stream.",
        {"length": _lengths("An attention length; may be repeated; 400, 800, 1800 and 2800 unless given."), **_rounds(5)},
        check=CheckAlone,
    ),
    Bench(
        "explain",
        "The FLOPs and bytes that `formers explain` predicts, compared with those of real runs, for the vanilla members.",
        {
            "length": _lengths("A length to compare at; may be repeated.", 2),
            "batch": Option(Annotated[int, typer.Option(help="Batch size.", min=1)], 1),
        },
        environment={"KINETO_LOG_LEVEL": "99"},  # torch's profiler would print when it starts
    ),
    Bench(
        "memory",
        "The peak memory of a training step against depth and length: plain residuals, activation checkpointing, reversible layers.\n\n"
        "Depths are compared at the first --length, 1024 unless given, and lengths at the last --depth, 6 unless given.",
        {
            "member": Option(Annotated[str, typer.Option(help="The member, e.g. reformer.", autocompletion=complete_member)], "decoder"),
            "depth": Option(
                Annotated[
                    list[int] | None, typer.Option(help="How many layers; may be repeated; 1, 2, 4, 8, 16 and 24 unless given.", min=1)
                ],
                None,
                "depths",
            ),
            "length": _lengths("How many tokens; may be repeated; 512 ... 8192 unless given."),
            "way": Option(
                Annotated[
                    list[str] | None, typer.Option(help="plain, checkpointing or reversible; may be repeated; all three unless given.")
                ],
                None,
                "ways",
            ),
            "set_": Option(MemberSet, None, "options", parse_set),
            "out": Option(Annotated[Path | None, typer.Option("--out", "-o", help="Write memory as a picture, .png or .svg, too.")]),
        },
        module="training_memory",
        check=CheckAlone,
    ),
)

CLAIMS = (
    Claim(
        "copying",
        "The Reformer's duplication task 0w0w: the share of tokens copied right, by the rounds of hashing in training and in evaluation.",
        "Copying",
        {
            "words": Option(
                Annotated[int, typer.Option(help="Symbols of the word that is copied; a row is twice that and two tokens.", min=1)], 127
            ),
            "symbols": Option(Annotated[int, typer.Option(help="Number of symbols without 0.", min=2)], 64),
            "chunk": Option(
                Annotated[int, typer.Option(help="Tokens of a chunk; there are two buckets for each chunk of a row.", min=1)], 16
            ),
            "reach": Option(
                Annotated[
                    Literal["chunk", "bucket"], typer.Option(help="bucket: a query looks at its whole buckets; chunk: the paper's chunks.")
                ],
                "bucket",
            ),
            "steps": Option(Steps, 900),
            "seed": Option(Annotated[int, typer.Option(help="Seed of weights, rows and rotations.")], 0),
            "device": Option(Device, "cpu"),
            "out": Option(
                Annotated[Path | None, typer.Option("--out", "-o", help="Write the table and the losses as a picture, .png or .svg, too.")]
            ),
        },
    ),
    Claim(
        "parity",
        "Graves' parity: a recurrent network with adaptive halting compared with one step and fixed numbers of steps, by bits.",
        "Bits",
        {
            "steps": Option(Steps, 6000),
            "ponder": Option(Ponder, 0.001),
            "halt_bias": Option(
                Annotated[float, typer.Option(help="The initial bias of the halting unit: the larger, the sooner it halts.")], -1.0, "bias"
            ),
            "seeds": Option(Seeds, 3),
            **_EXPERIMENT,
        },
    ),
    Claim(
        "addition",
        "Sums with more digits than in training: universal-transformer compared with encoders of equal parameters and equal computation.",
        "Sums",
        {
            "steps": Option(Steps, 1800),
            "digits": Option(Annotated[int, typer.Option(help="The digits of the longest numbers to train on.", min=1)], 12),
            "test": Option(Annotated[int, typer.Option(help="The digits of the numbers to evaluate.", min=1)], 20),
            "nines": Option(
                Annotated[float, typer.Option(help="The share of columns that are made to add up to 9.", min=0.0, max=0.99)], 0.5
            ),
            "depth": Option(Annotated[int, typer.Option(help="Steps of the universal transformer, and layers of the encoders.", min=1)], 4),
            "seeds": Option(Seeds, 3),
            **_EXPERIMENT,
        },
    ),
    Claim(
        "bottleneck",
        "Words copied by an LSTM encoder-decoder without attention and with it, by their length.",
        "Words",
        {
            "steps": Option(Steps, 1000),
            "length": Option(Annotated[int, typer.Option(help="The symbols of the longest words.", min=2)], 40),
            "seeds": Option(Seeds, 3),
            **_EXPERIMENT,
        },
    ),
    Claim(
        "babi",
        "Questions about stories: right answers, and the steps that universal-transformer takes, by the number of supporting facts.",
        "Questions",
        {
            "steps": Option(Steps, 2400),
            "data": Option(Annotated[str, typer.Option(help="Which tasks, as `train` takes them.")], "babi:1-3"),
            "ponder": Option(Ponder, 0.01),
            "position": Option(Annotated[str, typer.Option(help="relative, or the paper's coordinate.")], "relative"),
            "seeds": Option(Seeds, 2),
            **_EXPERIMENT,
        },
    ),
)
