"""What every spec that is not refused must satisfy, whatever its parts: the properties that random specs are checked for.

`examine(fields, seed)` builds a spec from its fields (see random_specs.py) and checks all of them; `check(name, fields, seed)` checks
one. cases.py says what a property is given.
"""

from __future__ import annotations

import copy
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

import formers
from contracts.cases import BATCH, Case, Violation, all_same, build, in_segments, same
from contracts.naive_stream import has_naive
from contracts.random_parts import Fields
from contracts.sequences import Sequence
from contracts.slopes import Undecided, compare_slopes
from formers import FormersError, Spec
from formers.attention import EXECUTORS, LSH, Attention, DotProduct, SharedQK
from formers.attention.attend import only
from formers.heads import Classify


def kinds(attention: Attention) -> Iterable[Attention]:
    """The attentions of all layers, taken out of whatever they are wrapped in."""
    for kind in attention.kinds:
        yield from ((kind,) if kind is attention else kinds(kind))


def leaks_by_declaration(spec: Spec) -> bool:
    """Whether it is the declared exception: with reach="chunk", a later token may move the chunks of earlier ones."""
    return any(isinstance(kind, LSH) and kind.reach == "chunk" for kind in kinds(spec.attention))


def gradients(case: Case) -> None:
    """Numeric gradients match autograd, with dropout, checkpointed or not, whether the number of the training step is given or not."""
    model = case.read.model.train()
    for update in (None, 3) if case.spec.draws else (None,):
        found = {}
        for on in (False, True):
            model.checkpointing(on)
            found[f"update={update}, {'checkpointed' if on else 'plain'}"] = case.slopes(update=update)
        model.checkpointing(False)
        compare_slopes(case, found, update=update)


def state_gradients(case: Case) -> None:
    """Over a state, gradients are those of the state as a constant, the same whether it was made with gradients or without."""
    spec, model = case.spec, case.read.model.eval()
    cut = case.x.shape[1] // 2
    if not spec.is_causal or not cut:
        return
    rest = replace(case, x=case.x[:, cut:], targets=None if case.targets is None else case.targets[:, cut:])
    found, states = {}, {}
    for mode, on in ((torch.no_grad, False), (torch.enable_grad, True), (torch.inference_mode, False)):
        with mode():
            states[mode] = case.run(case.x[:, :cut], state=model.initial_state(BATCH)).state
        model.checkpointing(on)
        found[f"over a state made in {mode.__name__}, checkpointing={on}"] = rest.slopes(state=states[mode])
    model.checkpointing(False)
    names = [name for name, _ in model.named_parameters()]
    first, *others = found.items()
    for name, slopes in others:
        all_same(slopes, first[1], names, f"{name}, against one {first[0]}: the gradient")
    compare_slopes(rest, found, state=states[torch.enable_grad])


def leak(case: Case) -> None:
    """Changing tokens from t on changes no output before t, in evaluation and in training."""
    spec, model = case.spec, case.read.model
    if not spec.is_causal or leaks_by_declaration(spec):
        return
    n = case.x.shape[1]
    other = case.read.input(n)
    for training in (False, True):
        model.train(training)
        with torch.set_grad_enabled(training):
            before = case.run().hidden
            for t in (n // 2,) if training else sorted({1, n // 2, n - 1}):
                after = case.run(torch.cat([case.x[:, :t], other[:, t:]], dim=1)).hidden
                same(after[:, :t].detach(), before[:, :t].detach(), f"hidden states before token {t}, training={training}", 1e-11)
    model.eval()


def cut_free(spec: Spec, n: int) -> bool:
    """Whether a row of n tokens may be cut anywhere: what it sees does not depend on where its segments end."""
    limit = spec.memory.limit
    reaches = [spec.pattern.at(step).reach for step in range(spec.depth.steps)]
    enough = limit is None or limit >= n + spec.memory.origin
    return enough or all(reach is not None and limit is not None and reach <= limit for reach in reaches)


@torch.no_grad()
def stream(case: Case) -> None:
    """One pass equals segments equals token by token, with padding, and with rows that begin again on the way."""
    spec, read, n = case.spec, case.read, case.x.shape[1]
    read.model.eval()
    if not spec.is_causal or leaks_by_declaration(spec) or n < 3 or not cut_free(spec, n):
        return
    whole = case.run()
    assert whole.hidden is not None
    for cuts in ([0, n // 3, n // 3 + 1, n], list(range(n + 1))):
        found, _ = in_segments(case, read, case.x, cuts)
        same(found, whole.hidden, f"segments cut at {cuts}")
    t, done = n // 2, torch.tensor([False, True, False])
    _, state = in_segments(case, read, case.x[:, :t], [0, t])
    found, _ = in_segments(case, read, case.x[:, t:], [0, 1, n - t], state.reset(done))
    same(found[~done], whole.hidden[~done, t:], f"rows beside one that was reset at {t}")
    blank = read if read.source is None else replace(read, source_mask=torch.zeros(read.source.shape[:2], dtype=torch.bool))
    same(found[done], case.run(case.x[:, t:], blank).hidden[done], f"a row that was reset at {t}")
    mask = torch.rand(BATCH, n, generator=torch.Generator().manual_seed(case.seed)) < 0.6
    found, _ = in_segments(case, read, case.x, [0, t, t + 1, n], mask=mask)
    for row in range(BATCH):
        if mask[row].any():
            alone = case.run(case.x[row : row + 1, mask[row]], read.alone(row))
            same(found[row : row + 1, mask[row]], alone.hidden, f"row {row} with padding, in segments")


def memory(case: Case) -> None:
    """Segments read with gradients equal the same segments read without, where the cuts matter, too."""
    spec, n = case.spec, case.x.shape[1]
    case.read.model.eval()
    if not spec.is_causal:
        return
    cuts = [0, n // 3, n // 3 + 1, n]
    found, _ = in_segments(case, case.read, case.x, cuts)
    with torch.no_grad():
        wanted, _ = in_segments(case, case.read, case.x, cuts)
    same(found.detach(), wanted, "segments read with gradients")


def sequence(case: Case) -> None:
    """Random operations on a state, weights that change among them, give what a naive stream says: values and gradients."""
    if has_naive(case.spec):
        weights = copy.deepcopy(case.read.model.state_dict())
        Sequence(case.read, case.seed).run(6)
        case.read.model.load_state_dict(weights)


MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0, 0], [1, 0, 0, 1, 1, 0, 1, 1]], dtype=torch.bool)
"""Padding on the left, on the right, inside."""


@torch.no_grad()
def padding(case: Case) -> None:
    """A padded row equals the row alone: hidden states, logits and losses."""
    read, n = case.read, min(case.x.shape[1], MASK.shape[1])
    read.model.eval()
    x, mask = case.x[:, :n], MASK[:, :n]
    if read.source is not None:
        read = replace(read, source_mask=MASK.flip(0, 1)[:, -read.source.shape[1] :])
    each = case.targets if case.targets is None or case.targets.dim() == 1 else case.targets[:, :n]
    out = case.run(x, read, mask=mask)
    for row, real in enumerate(mask):
        if not real.any() or (read.source_mask is not None and not read.source_mask[row].any()):
            continue
        here = slice(row, row + 1)
        goal = None if each is None else each[here]
        alone_goal = goal if goal is None or goal.dim() == 1 else goal[:, real]
        padded = case.run(x[here], read.rows([row]), mask=mask[here], targets=goal)
        alone = case.run(x[here, real], read.alone(row), targets=alone_goal)
        same(out.hidden[here, real], alone.hidden, f"hidden states of row {row}")
        same(padded.hidden[:, real], alone.hidden, f"hidden states of row {row} by itself")
        if goal is not None:
            same(padded.loss, alone.loss, f"the loss of row {row}")
            logits = case.run(x[here, real], read.alone(row)).logits
            wanted = out.logits[here] if isinstance(case.spec.head, Classify) else out.logits[here, real]
            same(wanted, logits, f"logits of row {row}")


def executors(case: Case) -> None:
    """Every executor that can do it computes what dense attention does, gradients too."""
    model = case.read.model.eval()
    if case.spec.encoder is None and not any(isinstance(kind, DotProduct | SharedQK) for kind in kinds(case.spec.attention)):
        return
    names = ["the value", *(name for name, _ in model.named_parameters())]
    with only("dense"):
        wanted = case.slopes_and_value()
    for name in (None, *EXECUTORS):
        if name in ("dense", "flex"):  # flex makes a kernel for every pattern, which takes seconds
            continue
        try:
            with only(name) if name else nullcontext():
                found = case.slopes_and_value()
        except FormersError:  # it refuses
            continue
        all_same(found, wanted, names, f"by {name or 'auto'} the gradient")


@torch.no_grad()
def saving(case: Case) -> None:
    """save_pretrained and load keep every number that the model gives."""
    case.read.model.eval()
    with tempfile.TemporaryDirectory() as folder:
        case.read.model.save_pretrained(folder)
        model = formers.load(folder)
    found, wanted = case.run(read=replace(case.read, model=model)), case.run()
    for name in ("hidden", "logits"):
        one, other = getattr(found, name), getattr(wanted, name)
        if (one is None) != (other is None) or (one is not None and not torch.equal(one, other)):
            raise Violation(f"{name} changed")


def wrapping(case: Case) -> None:
    """A part that is wrapped in one that takes several, alone or beside copies of itself, is accepted and computes as it does alone."""
    fields = case.spec.model_dump(mode="json")
    bare = unwrapped(fields)
    if bare == fields:
        return
    try:
        model = formers.build(Spec(**bare)).double().eval()
    except FormersError as refusal:
        raise Violation(f"what is wrapped is refused: {refusal}") from None
    weights = case.read.model.eval().state_dict()
    if model.state_dict().keys() != weights.keys():
        raise Violation(f"other weights than without the wrapping: {sorted(model.state_dict().keys() ^ weights.keys())}")
    model.load_state_dict(weights)
    with torch.no_grad():
        same(case.run().hidden, case.run(read=replace(case.read, model=model)).hidden, "hidden states with and without the wrapping")


def unwrapped(value: Any) -> Any:
    """Fields in which parts that hold copies of one part alone are that part."""
    if isinstance(value, list):
        return [unwrapped(each) for each in value]
    if not isinstance(value, dict):
        return value
    value = {name: unwrapped(each) for name, each in value.items()}
    inside = value.get("parts") or value.get("patterns") or [value[name] for name in ("first", "second") if name in value]
    return inside[0] if inside and all(each == inside[0] for each in inside) else value


PROPERTIES: dict[str, Callable[[Case], None]] = {
    "gradients": gradients,
    "state_gradients": state_gradients,
    "leak": leak,
    "stream": stream,
    "memory": memory,
    "sequence": sequence,
    "padding": padding,
    "executors": executors,
    "saving": saving,
    "wrapping": wrapping,
}


@dataclass(frozen=True)
class Fault:
    """A property that a spec violates."""

    name: str
    kind: str
    """"Violation", or the name of the exception that was raised."""
    text: str


@dataclass(frozen=True)
class Outcome:
    """What became of a spec."""

    refusal: str | None = None
    faults: tuple[Fault, ...] = ()
    undecided: tuple[str, ...] = ()
    """The properties that could not be checked."""


def examine(fields: Fields, seed: int, names: Iterable[str] = PROPERTIES) -> Outcome:
    """Builds a spec and checks properties; refused in a sentence, or built, with what it violates."""
    try:
        case = build(fields, seed)
    except FormersError as refusal:
        text = str(refusal)
        if "\n" in text or not text.endswith((".", "?")):
            return Outcome(text, (Fault("build", "Violation", f"the refusal is no sentence: {text!r}"),))
        return Outcome(text)
    except Exception as error:
        return Outcome(None, (fault("build", error),))
    faults, undecided = [], []
    for name in names:
        if name == "build":
            continue
        try:
            PROPERTIES[name](case)
        except Undecided:
            undecided.append(name)
        except Exception as error:
            faults.append(fault(name, error))
            case = build(fields, seed)  # whatever was left half done
    return Outcome(None, tuple(faults), tuple(undecided))


def fault(name: str, error: Exception) -> Fault:
    """What an exception says of a property."""
    if isinstance(error, Violation):
        return Fault(name, "Violation", str(error))
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rsplit('/', 2)[-2]}/{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return Fault(name, type(error).__name__, f"{type(error).__name__} at {where}: {error}")


def check(name: str, fields: Fields, seed: int) -> None:
    """Fails unless a spec is refused or has a property: what a reproduction calls."""
    outcome = examine(fields, seed, (name,))
    if outcome.faults:
        raise Violation(outcome.faults[0].text)
