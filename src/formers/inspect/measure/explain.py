"""A member or a run, explained: its parts, which executor runs in which layer and why not the others, and what it costs against length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatch
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from formers.attention import Attention
from formers.core import FormersError, nearest
from formers.family import MEMBERS
from formers.inspect.measure.costs import SCORES, Cost, Costs, Layers
from formers.inspect.measure.members import about, member_spec, spec_facts, stacks
from formers.inspect.measure.other_devices import device_kind, layers_on
from formers.inspect.measure.parameters import PARTS
from formers.model import Spec
from formers.model.save import find, read_config
from formers.recurrent import Aligned, Pondering, Recurrent

LENGTHS = (128, 512, 2048, 8192, 32768)
"""The lengths that costs are given for unless others are asked for; the member's own stands among them."""
SHORT = (2, 8)
"""The same for a model that computes rows token by token."""
SHOWN = ("cpu", "cuda", "mps")
"""The kinds of devices whose executors are listed together."""
LONGEST = 1 << 24
"""The largest length that is looked at."""


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


def explain_facts(what: Subject, lengths: Sequence[int] = (), batch: int = 1, device: str = "cpu") -> dict[str, Any]:
    """Everything that an explanation says, ready for JSON; lengths that are given must be such that the model can read them.

    The executors are those of a kind of device (cpu, cuda, mps, xpu), which need not be here; costs are those of the CPU.
    """
    kind = device_kind(device)
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
        "device": kind,
        "passes": _passes(main, [row for row in rows if row.length <= shown], kind),
        "devices": {each: _running(main, [row for row in rows if row.length <= shown], each) for each in dict.fromkeys((*SHOWN, kind))},
        "parts": {part: main.forward.flops[part] / _tokens(main) for part in sorted(main.forward.flops, key=_order)},
        "lengths": [_row_facts(row, costs) for row in rows],
        "even": _even(costs, rows),
        "beyond": beyond,
        "notes": [*_pondering(what.spec), *_notes(rows, main, what.spec.memory.limit, kind)],
    }


def _rows(costs: Costs, lengths: Sequence[int]) -> tuple[list[Cost], str | None]:
    """The costs at the lengths asked for, else at those the model can read, and then why it cannot read the first of the others."""
    if lengths:
        return [costs.at(length) for length in sorted(set(lengths))], None
    rows: list[Cost] = []
    if runs_token_by_token(costs.spec):
        return [costs.at(length) for length in SHORT], "rows are computed token by token, which takes long to look at; ask with --length."
    for length in sorted({*LENGTHS, min(max(costs.spec.length, 2), LONGEST)}):
        try:
            rows.append(costs.at(length))
        except FormersError as why:
            if not rows:
                raise
            return rows, str(why)
    return rows, None


def runs_token_by_token(spec: Spec) -> bool:
    """Whether a layer of a model or of its encoder computes a row by many operations for each token."""
    return any(token_by_token(kind) for stack in stacks(spec) for kind in stack.spec.attention.kinds)


@singledispatch
def token_by_token(attention: Attention) -> bool:
    """Whether a row is computed by many operations for each token, so that counting those of a long row takes long."""
    return False


@token_by_token.register
def _(attention: Recurrent) -> bool:
    return attention.cell != "lstm"  # torch has one operation for a row of an LSTM on the CPU


@token_by_token.register
def _(attention: Pondering) -> bool:
    return True


@token_by_token.register
def _(attention: Aligned) -> bool:
    return attention.fed


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
    if not rows[-1].forward.scores:
        return None
    few = rows[0] if len(rows) > 1 else costs.at(2)
    seen = [(few.length, few.forward), (rows[-1].length, rows[-1].forward)]
    # What is nearly a straight line is the excess of a token; of attention whose price of a token does not grow, that of all tokens.
    grows = seen[1][1].scores * seen[0][0] > seen[0][1].scores * seen[1][0]
    for _ in range(8):
        (a, first), (b, last) = seen[-2:]
        excess = [(2 * step.scores - step.total) / (length if grows else 1) for length, step in ((a, first), (b, last))]
        if a == b or excess[1] == excess[0]:
            return None
        guess = round(b - excess[1] * (b - a) / (excess[1] - excess[0]))
        if not grows and guess < 1 and excess[1] > 0:
            return 1  # it always does
        if not 1 <= guess <= LONGEST:
            return None
        if guess in (a, b):
            return guess
        ask = min(guess, 4 * b)  # not far beyond what is known: where attention is sparse, the line ends in nowhere
        try:
            seen.append((ask, costs.forward(ask)))
        except FormersError:  # it cannot read so much: the straight line has to do
            return guess
    return None


def _order(part: str) -> tuple[bool, int, bool]:
    """Where a part stands: the encoder first, then as a description counts them, projections before scores."""
    bare = part.removeprefix("encoder ")
    home = bare.removesuffix(f" {SCORES}").removesuffix(" projections")
    return bare == part, PARTS.index(home) if home in PARTS else len(PARTS), bare.endswith(SCORES)


def _passes(row: Cost, rows: Sequence[Cost] = (), kind: str = "cpu") -> dict[str, Any]:
    """The passes that a model is used in, with the executors of each on a kind of device, and on the CPU torch's operations.

    Where positions end at the row's length, decoding is that of the longest of the rows before it.
    """
    passes = {"training": (row.length, row.forward if row.training is None else row.training.forward)}
    for one in (*rows, row):
        if one.decoding is not None:
            passes["decoding"] = one.length, one.decoding
    return {
        name: {
            "length": length,
            "kernels": list(step.kernels) if kind == "cpu" else [],
            "attention": _grouped(layers_on(step, kind, name == "training")),
        }
        for name, (length, step) in passes.items()
    }


def _running(row: Cost, rows: Sequence[Cost], kind: str) -> dict[str, list[dict[str, Any]]]:
    """By pass: the executor that runs on a kind of device, for each kind of attention and group of layers."""
    return {
        name: [
            {"kind": group["kind"], "layers": group["layers"], "executor": verdict["name"]}
            for group in fact["attention"]
            for verdict in group["executors"]
            if verdict["runs"]
        ]
        for name, fact in _passes(row, rows, kind).items()
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


def _pondering(spec: Spec) -> list[str]:
    """That tokens may take fewer steps than are priced."""
    stacks = [("encoder ", spec.encoder.ponders), ("decoder ", spec.ponders)] if spec.encoder is not None else [("", spec.ponders)]
    most = [(side, steps) for side, steps in stacks if steps is not None]
    return [
        f"A {side}token takes at most {steps} steps and may halt sooner: all costs are those of {steps}. "
        "`formers show ponder RUN` measures how many it takes."
        for side, steps in most
    ]


def _notes(rows: Sequence[Cost], main: Cost, memory: int | None, kind: str) -> list[str]:
    """What else there is to say: of a memory, and of lengths where another executor runs."""
    notes = [] if not memory else [f"A training step reads a full memory of {memory:,} tokens before its own."]
    for name, usual in _chosen(main, kind).items():
        others: dict[str, list[int]] = {}
        for row in rows:
            there = _chosen(row, kind).get(name, usual)
            if there != usual:
                others.setdefault(there, []).append(row.length)
        notes += [f"At length {', '.join(f'{n:,}' for n in lengths)} {name} runs {there}." for there, lengths in others.items()]
    return notes


def _chosen(row: Cost, kind: str) -> dict[str, str]:
    """The executors that run on a kind of device, by pass and kind of attention."""
    chosen: dict[str, dict[str, None]] = {}
    for name, fact in _passes(row, (), kind).items():
        for group in fact["attention"]:
            there = chosen.setdefault(f"{group['kind']} in {name}", {})
            there.update((verdict["name"], None) for verdict in group["executors"] if verdict["runs"])
    return {name: " and ".join(there) for name, there in chosen.items()}
