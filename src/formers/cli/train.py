"""`formers train` and `formers resume`: train a member, or resume a run, and print the results."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from formers.cli.common import Json, OwnDevice, Set, report
from formers.cli.complete import complete_data, complete_member, complete_preset, complete_run
from formers.cli.config import read_yaml
from formers.cli.options import ELSEWHERE, parse_set

if TYPE_CHECKING:
    from formers.training import Trained

log = logging.getLogger(__name__)

Steps = Annotated[int | None, typer.Option(help="Stop after this many steps, counted from the start of the run; default 1000.")]
Minutes = Annotated[float | None, typer.Option(help="Stop after this many minutes, counted from the start of the run.")]
TrainDevice = Annotated[
    str | None, typer.Option(help="The device to compute on: cpu, cuda, cuda:1, mps; auto, the default, takes the best available.")
]
Counts = Annotated[bool, typer.Option("--counts", help="Fit an order-3 count model to the same bytes, for comparison.")]
Sample = Annotated[int, typer.Option(help="Number of tokens of sample text at the end.")]
Prompt = Annotated[str, typer.Option(help="The prompt of the sample text at the end.")]

OWN = ("config", "counts", "json", "overwrite", "prompt", "sample", "set")
"""Options of the command that are neither sizes nor settings."""


def train(
    member: Annotated[
        str | None,
        typer.Argument(help="Which member; `formers members` lists them. A --config may name it.", autocompletion=complete_member),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="A file, a folder, a glob, two parallel files (a.en,a.fr), or a name: stdlib (unless given), enwik8, task:copy, ...",
            autocompletion=complete_data,
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="Train an agent instead: tmaze:20, corridor:20, recall:4,3, MiniGrid-MemoryS7-v0, package:Name-v0; --steps are then the "
            "environment's."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to save the run in; runs/MEMBER, or the next free name, unless given.")
    ] = None,
    steps: Steps = None,
    minutes: Minutes = None,
    preset: Annotated[str | None, typer.Option(help="A named configuration: base is the paper's.", autocompletion=complete_preset)] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of options; the command line takes precedence.")] = None,
    set_: Set = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN", help="Start from the weights and sizes of another run.", autocompletion=complete_run),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the weights, the batches and the dropout; 0 unless given.")] = None,
    device: TrainDevice = None,
    tokens: Annotated[str | None, typer.Option(help="The tokens of a text: bytes, characters, bpe or words.")] = None,
    valid: Annotated[str | None, typer.Option(help="Held-out data of your own; else a part of --data is held out.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Save every this many steps; default: every five minutes.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Evaluate every this many steps; default: ten times in the run.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bf16, or fp16 on a GPU.")] = None,
    compile_: Annotated[bool | None, typer.Option("--compile", help="Compile the step with torch.compile.")] = None,
    track: Annotated[
        str | None, typer.Option(help="Trackers besides metrics.jsonl: auto, none, or some of tensorboard,wandb,mlflow.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    counts: Counts = False,
    sample: Sample = 0,
    prompt: Prompt = "",
    json: Json = False,
) -> None:
    """Train MEMBER with a progress bar, save checkpoints, and evaluate it on held-out data, or with --env on new episodes."""
    from formers.core import FormersError
    from formers.training import train as run

    given = {
        "data": data, "env": env, "out": out, "steps": steps, "minutes": minutes, "preset": preset, "from_run": from_, "seed": seed,
        "device": device,
        "tokens": tokens, "valid": valid, "save_every": save_every, "eval_every": eval_every, "precision": precision, "compile": compile_,
        "track": track,
    }  # fmt: skip
    written = {} if config is None else read_yaml(config)
    named = written.pop("member", None)
    if member is None and named is None:
        raise FormersError("no member is named: write `formers train MEMBER`; `formers members` lists them.")
    if member is not None and named not in (None, member):
        raise FormersError(f"{config} is for {named}, not {member}: leave one of them out.")
    member = str(named if member is None else member)
    if "from" in written:
        written["from_run"] = written.pop("from")
    for name, value in written.items():
        if name in OWN or name == "quiet":
            raise FormersError(f"{config} cannot say {name}: give it as --{name} on the command line, or leave it out.")
        if name in ("data", "env", "out", "preset", "from_run", "device", "track") and not isinstance(value, str):
            raise FormersError(f"{config} has {name}: {value!r}, which is no text: write it in quotes.")
        if name == "member_sizes" and not isinstance(value, dict):
            raise FormersError(f"{config} has {name}: {value!r}, which is no table: write names and values below it.")
    from formers.family.members import member as find_member

    options = parse_set(set_ or [])
    own = {name: options.pop(name) for name in ELSEWHERE if name in options and name in find_member(member).options}
    if own:  # --steps are those of the training, and --set steps=8 those of a member that has such
        options["member_sizes"] = {**written.get("member_sizes", {}), **own}
    for name in options:
        if name in (*OWN, *ELSEWHERE):
            raise FormersError(f"{name} is not a size or setting of --set: give it as --{name.replace('_', '-')}, or leave it out.")
    if steps is not None or minutes is not None:  # one budget replaces the other
        written = {name: value for name, value in written.items() if name not in ("steps", "minutes")}
    chosen: dict[str, Any] = {**written, **options, **{name: value for name, value in given.items() if value is not None}}
    if "out" not in chosen and os.environ.get("WORLD_SIZE", "1") == "1":  # several processes would each choose another
        chosen["out"] = unused(Path("runs") / member)
    folder = chosen.pop("out", None)
    if "env" in chosen:
        _train_agent(member, chosen, folder, overwrite, json)
        return
    if "from_run" in chosen and "data" not in chosen:
        raise FormersError(f"--from {chosen['from_run']} gives weights, not data: give --data, too.")
    done = run(member, chosen.pop("data", "stdlib"), folder, overwrite=overwrite, **chosen)
    _end(Path(folder), done, counts, sample, prompt, json)


def _train_agent(member: str, chosen: dict[str, Any], folder: Any, overwrite: bool, json: bool) -> None:
    """Trains an agent and prints its results; raises for options that are for data only."""
    from formers.core import FormersError
    from formers.rl import train as run

    for name in ("data", "from_run", "tokens", "valid", "eval_every", "precision", "compile", "member_sizes"):
        if name in chosen:
            option = {"from_run": "from"}.get(name, name.replace("_", "-"))
            raise FormersError(f"--{option} is for data, and --env {chosen['env']} trains an agent: leave one of them out.")
    if chosen.pop("device", "cpu") not in ("cpu", "auto"):
        raise FormersError("agents are trained on the CPU: leave --device out.")
    done = run(member, chosen.pop("env"), folder, overwrite=overwrite, **chosen)
    report({"run": str(folder), **done.results}, json)


def resume(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was stopped or is to be extended.", autocompletion=complete_run)],
    steps: Steps = None,
    minutes: Minutes = None,
    device: OwnDevice = None,
    counts: Counts = False,
    sample: Sample = 0,
    prompt: Prompt = "",
    json: Json = False,
) -> None:
    """Resume RUN from its newest valid checkpoint, bit-exactly, as if it had never stopped."""
    from formers.training import resume as go_on
    from formers.training.folder import is_agent

    if is_agent(run):
        from formers.rl import resume as go_on_acting

        report({"run": str(run), **go_on_acting(run, steps=steps, minutes=minutes).results}, json)
        return
    _end(run, go_on(run, steps=steps, minutes=minutes, device=device), counts, sample, prompt, json)


def _end(folder: Path, done: Trained, counts: bool, sample: int, prompt: str, json: bool) -> None:
    """Prints the results of a run, with a text sample and the count model's figure if requested."""
    if not done.results:  # one of several processes, and not the first, which prints
        return
    results: dict[str, Any] = {"run": str(folder), **done.results}
    spec = done.task.spec
    if sample and spec.head.generates and (prompt or spec.encoder is None):
        from formers.generation import generate

        text = generate(done.model, prompt, max_new_tokens=sample, temperature=0.8, seed=0)
        print(f"\n--- a sample ---\n{text}\n----------------\n")
    elif sample:
        why = "give --prompt, the source to read" if spec.encoder is not None else f"{spec.name} does not write text"
        log.warning("no sample: %s", why)
    if counts and done.task.text is None:
        log.warning("%s was not trained on the bytes of a text: no count model", spec.name)
    elif counts and done.task.text is not None:
        from formers.baselines import CountModel

        counted = CountModel(done.task.text.train.numpy(), order=3)
        results["count_bits_per_byte"] = counted.bits_per_byte(done.task.text.valid.numpy())
    from formers.training.log import finite

    report(finite(results) if json else results, json)


def unused(folder: Path) -> Path:
    """The folder, or the first of NAME-2, NAME-3, ... that does not exist yet."""
    tries = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in itertools.count(1))
    return next(f for f in tries if not f.exists())
