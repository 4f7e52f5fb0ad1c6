"""A member or a run, explained: its parts, which executor runs in which layer and why not the others, and what it costs against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from formers.core import FormersError, nearest
from formers.family import MEMBERS
from formers.inspect.cost import SCORES, Cost, Costs, Layers
from formers.inspect.members import BAR, about, member_spec, parameters_table, slots_table, spec_facts
from formers.inspect.parameters import PARTS
from formers.inspect.tables import add_row, bar, in_bytes, in_flops, new_table
from formers.inspect.terminal import sayable
from formers.inspect.words import spell
from formers.model import Spec
from formers.model.save import find, read_config

LENGTHS = (128, 512, 2048, 8192, 32768)
"""The lengths that costs are given for unless others are asked for; the member's own stands among them."""
LONGEST = 1 << 24
"""The largest length that is looked at."""
SHARE = 12
"""Characters that stand for all FLOPs of a pass."""


class Subject(NamedTuple):
    """What is explained: a member with its choices, or a run."""

    name: str
    spec: Spec
    preset: str | None = None

    @property
    def about(self) -> str:
        """What the member is, in a line; nothing of one that the family does not know."""
        return about(MEMBERS[self.spec.name]) if self.spec.name in MEMBERS else ""


def subject(word: str, vocab: int | None = None, preset: str | None = None, options: Mapping[str, Any] | None = None) -> Subject:
    """The member of a name with its choices, or the run in a folder, which has made its own."""
    if word in MEMBERS:
        return Subject(word, member_spec(word, vocab, preset, options), preset)
    if not Path(word).exists():
        raise FormersError(f"there is no member {word!r}, and no run in a folder of that name: {nearest(word, MEMBERS)}")
    given = {"vocab": vocab, "preset": preset, "set": options or None}
    for name in (name for name, value in given.items() if value is not None):
        raise FormersError(f"{word} is a run, whose sizes are chosen: leave out --{name}, or name a member instead of it.")
    return Subject(word, Spec(**read_config(find(Path(word)))["spec"]))


def explain_facts(what: Subject, lengths: Sequence[int] = (), batch: int = 1) -> dict[str, Any]:
    """Everything that an explanation says, ready for JSON; lengths that are given must be such that the model can read them."""
    for name, values, least in (("length", lengths, 2), ("batch", (batch,), 1)):
        for value in values:
            if not least <= value <= LONGEST:
                raise FormersError(f"{name}={value} cannot be explained: give {least} ... {LONGEST:,}.")
    costs = Costs(what.spec, batch)
    rows, beyond = _rows(costs, lengths)
    main = rows[-1] if lengths else next((row for row in rows if row.length == what.spec.length), rows[-1])
    shown = main.length
    return {
        "name": what.name,
        "member": what.spec.name,
        "about": what.about,
        "preset": what.preset,
        **spec_facts(what.spec),
        "bytes": {"weights": costs.weights, "gradients": costs.gradients, "optimizer": costs.optimizer},
        "batch": batch,
        "shown": shown,
        "passes": _passes(main, [row for row in rows if row.length <= shown]),
        "parts": {part: main.forward.flops[part] / _tokens(main) for part in sorted(main.forward.flops, key=_order)},
        "lengths": [_row_facts(row, costs) for row in rows],
        "even": _even(costs, rows),
        "beyond": beyond,
        "notes": _notes(rows, main),
    }


def explanation(what: Subject, facts: Mapping[str, Any], encoding: str = "utf-8") -> Group:
    """The facts for rich to print."""
    title = Text(what.name, "bold").append(f" ({what.preset})" if what.preset else "", "not bold")
    if what.name != what.spec.name:
        title.append(f": {what.spec.name}", "not bold")
    sizes = " ".join(f"{name}={value}" for name, value in facts["stacks"][-1]["sizes"].items())
    paragraphs: list[RenderableType] = [
        slots_table(what.spec),
        Text(sizes),
        parameters_table(facts["parameters"], encoding),
        *(Group(*_executors(name, fact)) for name, fact in facts["passes"].items()),
        Group(Text(f"FLOPs a token of a forward pass at length {facts['shown']:,}", "bold"), _parts(facts, encoding)),
        Group(Text("FLOPs a token", "bold"), _flops(facts, encoding)),
        Group(Text("memory", "bold"), _memory(facts)),
        Group(*(Text(sentence) for sentence in _sentences(facts, spell(what.spec.pattern)))),
    ]
    about = [Text(sayable(facts["about"], encoding))] if facts["about"] else []
    return Group(title, *about, *(part for paragraph in paragraphs for part in (Text(), paragraph)))


def _rows(costs: Costs, lengths: Sequence[int]) -> tuple[list[Cost], str | None]:
    """The costs at the lengths asked for, else at those the model can read, and then why it cannot read the first of the others."""
    if lengths:
        return [costs.at(length) for length in sorted(set(lengths))], None
    rows: list[Cost] = []
    for length in sorted({*LENGTHS, min(max(costs.spec.length, 2), LONGEST)}):
        try:
            rows.append(costs.at(length))
        except FormersError as why:
            if not rows:
                raise
            return rows, str(why)
    return rows, None


def _tokens(row: Cost) -> int:
    return row.batch * row.length


def _row_facts(row: Cost, costs: Costs) -> dict[str, Any]:
    """The costs at one length, by token and in all."""
    tokens = _tokens(row)
    facts: dict[str, Any] = {
        "length": row.length,
        "pairs_allowed": row.pairs,
        "flops_per_token": {"forward": row.forward.total / tokens},
        "scores_share": {"forward": row.forward.scores / row.forward.total},
        "bytes": {},
    }
    if row.training is not None:
        facts["flops_per_token"]["training"] = row.training.total / tokens
        facts["bytes"] |= {
            "activations": row.training.activations,
            "activations_per_token": row.training.activations / tokens,
            "training": costs.weights + costs.optimizer + row.training.peak,
        }
    if row.state is not None:
        facts["bytes"] |= {"state": row.state, "state_per_token": row.state / tokens, "state_buffers": row.held}
    if row.decoding is not None:
        facts["flops_per_token"]["decoding"] = row.decoding.total / row.batch
        facts["scores_share"]["decoding"] = row.decoding.scores / row.decoding.total
    return facts


def _even(costs: Costs, rows: Sequence[Cost]) -> int | None:
    """The length at which attention over pairs costs as much as everything else in a forward pass; None where it never does."""
    few = rows[0] if len(rows) > 1 else costs.at(2)
    seen = [(few.length, few.forward), (rows[-1].length, rows[-1].forward)]
    for _ in range(8):
        (a, first), (b, last) = seen[-2:]
        excess = [(2 * step.scores - step.total) / length for length, step in ((a, first), (b, last))]
        if a == b or excess[1] == excess[0]:
            return None
        guess = round(b - excess[1] * (b - a) / (excess[1] - excess[0]))
        if not 1 <= guess <= LONGEST:
            return None
        if guess in (a, b):
            return guess
        try:
            seen.append((guess, costs.forward(guess)))
        except FormersError:  # it cannot read so much: the straight line has to do
            return guess
    return None


def _order(part: str) -> tuple[bool, int, bool]:
    """Where a part stands: the encoder first, then as a description counts them, projections before scores."""
    bare = part.removeprefix("encoder ")
    home = bare.removesuffix(f" {SCORES}").removesuffix(" projections")
    return bare == part, PARTS.index(home) if home in PARTS else len(PARTS), bare.endswith(SCORES)


def _passes(row: Cost, rows: Sequence[Cost] = ()) -> dict[str, Any]:
    """The passes that a model is used in, with the executors and torch's operations of each.

    Where positions end at the row's length, decoding is that of the longest of the rows before it.
    """
    passes = {"training": (row.length, row.forward if row.training is None else row.training.forward)}
    for one in (*rows, row):
        if one.decoding is not None:
            passes["decoding"] = one.length, one.decoding
    return {
        name: {"length": length, "kernels": list(step.kernels), "attention": _grouped(step.executors)}
        for name, (length, step) in passes.items()
    }


def _grouped(layers: Layers) -> list[dict[str, Any]]:
    """Executors by kind of attention, layers that agree in one entry."""
    found = []
    for name, by_step in layers.items():
        for verdicts, steps in groupby(sorted(by_step), key=lambda step: by_step[step]):
            numbers = list(steps)
            found.append({"kind": _kind(name), "layers": numbers, "executors": [verdict._asdict() for verdict in verdicts]})
    return found


def _kind(note: str) -> str:
    """What kind of attention a note is about."""
    return note.removesuffix(" executors").replace("cross", "cross-attention")


def _notes(rows: Sequence[Cost], main: Cost) -> list[str]:
    """What else there is to say about some lengths: where another executor runs."""
    notes = []
    for name, usual in _chosen(main).items():
        others: dict[str, list[int]] = {}
        for row in rows:
            there = _chosen(row).get(name, usual)
            if there != usual:
                others.setdefault(there, []).append(row.length)
        notes += [f"At length {', '.join(f'{n:,}' for n in lengths)} {name} runs {there}." for there, lengths in others.items()]
    return notes


def _chosen(row: Cost) -> dict[str, str]:
    """The executors that run, by pass and kind of attention."""
    chosen: dict[str, dict[str, None]] = {}
    for name, fact in _passes(row).items():
        for group in fact["attention"]:
            there = chosen.setdefault(f"{group['kind']} in {name}", {})
            there.update((verdict["name"], None) for verdict in group["executors"] if verdict["runs"])
    return {name: " and ".join(there) for name, there in chosen.items()}


def _executors(name: str, fact: Mapping[str, Any]) -> list[RenderableType]:
    """A row for each executor of each group of layers: what it is and whether it runs, or why not."""
    title = Text(name, "bold").append(f" after {fact['length']:,} tokens" if name == "decoding" else f" at length {fact['length']:,}")
    table = new_table("attention", "layers", "executor", "")
    for group in fact["attention"]:
        runs = next(verdict["name"] for verdict in group["executors"] if verdict["runs"])
        kind, layers = group["kind"], _span(group["layers"])
        for verdict in sorted(group["executors"], key=lambda verdict: not verdict["runs"]):
            add_row(table, kind, layers, verdict["name"], _says(verdict, runs))
            kind = layers = ""
    return [title, table, *(Text(f"torch computes the pairs by {kernel}", "dim") for kernel in fact["kernels"])]


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
        words.append("Decoding is one more token after so many; the state is what it reads, in buffers that keep some room to grow in.")
    if facts["beyond"] is not None:
        words.append(f"Longer rows are left out: {facts['beyond']}")
    return [*words, *facts["notes"]]
