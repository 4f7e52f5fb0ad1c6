"""The facts of an explanation as tables and sentences, for rich to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from formers.inspect.draw.members import BAR, parameters_table, size_text, slots_table
from formers.inspect.draw.tables import add_row, bar, new_table
from formers.inspect.draw.terminal import sayable
from formers.inspect.measure.costs import SCORES
from formers.inspect.measure.explain import Subject
from formers.inspect.measure.members import stacks
from formers.inspect.measure.part_text import spell
from formers.inspect.measure.units import in_bytes, in_flops

SHARE = 12
"""Characters that stand for all FLOPs of a pass."""


def explanation(what: Subject, facts: Mapping[str, Any], encoding: str = "utf-8") -> Group:
    """The facts for rich to print."""
    title = Text(sayable(what.name, encoding), "bold").append(f" ({what.preset})" if what.preset else "", "not bold")
    if what.name != what.spec.name:
        title.append(f": {what.spec.name}", "not bold")
    sizes = " ".join(f"{name}={size_text(value)}" for name, value in stacks(what.spec)[-1].sizes.items())
    paragraphs: list[RenderableType] = [
        slots_table(what.spec),
        Text(sizes),
        parameters_table(facts["parameters"], encoding),
        *(Group(*_executors(name, fact, facts["device"])) for name, fact in facts["passes"].items()),
        Group(Text("executors by device", "bold"), _devices(facts)),
        Group(Text(f"FLOPs a token of a forward pass at length {facts['shown']:,}", "bold"), _parts(facts, encoding)),
        Group(Text("FLOPs a token", "bold"), _flops(facts, encoding)),
        Group(Text("memory", "bold"), _memory(facts)),
        Group(*(Text(sentence) for sentence in _sentences(facts, spell(what.spec.pattern)))),
    ]
    about = [Text(sayable(facts["about"], encoding))] if facts["about"] else []
    return Group(title, *about, *(part for paragraph in paragraphs for part in (Text(), paragraph)))


def _executors(name: str, fact: Mapping[str, Any], device: str) -> list[RenderableType]:
    """A row for each executor of each group of layers: what it is and whether it runs, or why not."""
    title = Text(name, "bold").append(f" after {fact['length']:,} tokens" if name == "decoding" else f" at length {fact['length']:,}")
    title.append("" if device == "cpu" else f" on {device}")
    table = new_table("attention", "layers", "executor", "")
    for group in fact["attention"]:
        runs = next(verdict["name"] for verdict in group["executors"] if verdict["runs"])
        kind, layers = group["kind"], _span(group["layers"])
        for verdict in sorted(group["executors"], key=lambda verdict: not verdict["runs"]):
            add_row(table, kind, layers, verdict["name"], _says(verdict, runs))
            kind = layers = ""
    return [title, table, *(Text(f"torch computes the pairs by {kernel}", "dim") for kernel in fact["kernels"])]


def _devices(facts: Mapping[str, Any]) -> Table:
    """A row for each kind of device: the executors that run in each pass."""
    passes = list(facts["passes"])
    table = new_table("device", *passes)
    for device, running in facts["devices"].items():
        add_row(table, device, *(_groups(running[name]) for name in passes))
    return table


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    """The executors of groups of layers: "flex", or "attention 0-2 flex, attention 3 sdpa" where they differ."""
    if len({group["executor"] for group in groups}) == 1:
        return str(groups[0]["executor"])
    return ", ".join(f"{group['kind']} {_span(group['layers'])} {group['executor']}" for group in groups)


def _says(verdict: Mapping[str, Any], runs: str) -> str:
    if verdict["runs"]:
        return f"runs: {verdict['about']}"
    if verdict["why_not"] is None:
        return f"not needed: {runs} comes first ({verdict['about']})"
    return f"cannot: {verdict['why_not']} ({verdict['about']})"


def _span(layers: Sequence[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def _parts(facts: Mapping[str, Any], encoding: str) -> Table:
    """A row for each part: its FLOPs in a forward pass at the length shown."""
    total = sum(facts["parts"].values())
    table = new_table("part", "a token", "share", "", right=2)
    for part, flops in facts["parts"].items():
        add_row(table, part, in_flops(flops), f"{100 * flops / total:.1f}%", bar(flops / total, BAR, encoding))
    add_row(table, "total", in_flops(total), "", "", style="bold")
    return table


def _flops(facts: Mapping[str, Any], encoding: str) -> Table:
    """A row for each length: FLOPs a token in each pass, and the share of attention over pairs."""
    passes = [name for name in ("forward", "training", "decoding") if any(name in row["flops_per_token"] for row in facts["lengths"])]
    table = new_table("length", *passes, SCORES, "", right=len(passes) + 1)
    for row in facts["lengths"]:
        flops, share = row["flops_per_token"], row["scores_share"]["forward"]
        cells = [in_flops(flops[name]) if name in flops else "-" for name in passes]
        add_row(table, f"{row['length']:,}", *cells, f"{100 * share:.1f}%", bar(share, SHARE, encoding))
    table.columns[0].justify = "right"
    return table


def _memory(facts: Mapping[str, Any]) -> Table:
    """A row for each length: activations of a training step, the whole step, and the state that decoding reads."""
    columns = {
        "activations": "activations", "a token": "activations_per_token", "training step": "training",
        "state": "state", "a token ": "state_per_token",
    }  # fmt: skip
    columns = {title: name for title, name in columns.items() if any(name in row["bytes"] for row in facts["lengths"])}
    table = new_table("length", *columns, right=len(columns))
    for row in facts["lengths"]:
        add_row(table, f"{row['length']:,}", *(in_bytes(row["bytes"][name]) if name in row["bytes"] else "-" for name in columns.values()))
    table.columns[0].justify = "right"
    return table


def _sentences(facts: Mapping[str, Any], pattern: str) -> list[str]:
    """What the tables do not say."""
    fixed, last = facts["bytes"], facts["lengths"][-1]
    words = ["FLOPs are those of matrix products, 2 a multiply-add; scores is the share of attention over pairs in a forward pass."]
    if len(facts["stacks"]) > 1:
        words.append("Source and target are of the length; a token is one of the target.")
    if last["pairs_allowed"] < 0.995:
        words.append(
            f"{pattern} allows {100 * last['pairs_allowed']:.3g}% of all pairs of queries and keys at length {last['length']:,}; "
            "a kernel that is given a rectangle of pairs is counted with all of it."
        )
    full = [row["length"] for row in facts["lengths"] if row["pairs_allowed"] == 1]
    if full and pattern != "Full":
        words.append(f"At length {', '.join(f'{n:,}' for n in full)} {pattern} allows all pairs: it is full attention there.")
    if facts["even"] is None:
        words.append("Attention over pairs never costs as much as everything else.")
    else:
        words.append(f"Attention over pairs costs as much as everything else at length {facts['even']:,}.")
    words.append(
        f"Memory is of float32 on the CPU, at a batch of {facts['batch']}. Activations are what a forward pass keeps for the backward "
        f"pass. A training step is its peak, with the weights ({in_bytes(fixed['weights'])}), their gradients "
        f"({in_bytes(fixed['gradients'])}) as they come, and AdamW's state ({in_bytes(fixed['optimizer'])})."
    )
    if "state" in last["bytes"]:
        words.append(
            "Decoding is one more token after so many; the state is what it and later ones may read, in buffers with room to grow."
        )
    if facts["beyond"] is not None:
        words.append(f"Longer rows are left out: {facts['beyond']}")
    return [*words, *facts["notes"]]
