"""Sequential operations and path lengths of a member, and how they grow with the length (CS224N's comparison).

For every length n two numbers of a member, built small, as its recipe builds it:

operations      the longest chain of operations from the tokens to the logits, by the explicit path (sequential_operations.py)
path            the fewest operations that carry information from one token to another, for the worst pair (paths.py)

How they grow is said by the curve that fits them best among a, a + b log n, a + b sqrt n and a + b n, and by the slope of their last
doubling in logarithms: 0 does not grow, 1 grows as n does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention.attend import only
from formers.core import FormersError
from formers.family import MEMBERS
from formers.family import spec as member_spec
from formers.family.variants import Variant
from formers.inspect.measure.paths import Paths, paths
from formers.inspect.measure.sequential_operations import depth_of
from formers.model import Model, Spec, build
from formers.model.modes import evaluating
from formers.model.seq2seq import Seq2Seq

LENGTHS = (16, 32, 64, 128, 256)
"""The lengths that are measured unless others are asked for."""
SHORTEST, LONGEST = 16, 4096
SIZES: dict[str, Any] = {"vocab": 16, "features": 4, "dim": 16, "heads": 2, "hidden": 16, "dropout": 0.0}
"""What members are built with: no number here changes how anything grows with the length."""
SEEN: dict[str, int] = {"memory": 16, "span": 16, "chunk": 16, "rank": 16, "block": 4}
"""How much is seen at once, where a member limits that: the same at every length, so that it shows how the rest grows."""
CURVES: dict[str, Callable[[float], float]] = {"O(log n)": math.log, "O(sqrt n)": math.sqrt, "O(n)": lambda n: n}
SEED = 0
BESIDE = {"seq2seq": {"alignment": "none"}}
"""Options with which members are shown once more."""
NONE = Parameter("memory", Parameter.KEYWORD_ONLY, default=None)


class Growth(NamedTuple):
    """How a figure grows with the length."""

    word: str
    """O(1), O(log n), O(sqrt n), O(n), or O(n/k), where it takes k > 1 tokens to make one more."""
    slope: float
    """Of its last step, in logarithms."""
    each: float | None = None
    """k: the tokens that make one more."""

    @property
    def words(self) -> str:
        """For a table."""
        return f"{self.word if self.each is None else f'O(n/{self.each:.3g})'} {self.slope:.2f}"


class Interaction(NamedTuple):
    """A member's two figures at some lengths; a path is None where some tokens are never joined."""

    name: str
    layers: int
    lengths: tuple[int, ...]
    operations: tuple[int, ...]
    paths: tuple[int | None, ...]
    """Of the worst pair of tokens."""
    means: tuple[float | None, ...]
    """Of all pairs."""


def readers() -> list[Variant]:
    """The members that read tokens, and beside them what the lecture compares them with."""
    found = []
    for name, member in MEMBERS.items():
        if "vocab" in member.options and "layout" not in member.options:  # an image's length follows from its sides
            found.append(Variant(name, name, {}))
            found += [Variant(f"{name}:{option}={value}", name, {option: value}) for option, value in BESIDE.get(name, {}).items()]
    return found


def interaction(variant: Variant, lengths: Sequence[int] = LENGTHS, tick: Callable[[], None] = lambda: None) -> Interaction:
    """The figures of a member at some lengths; `tick` is called after each."""
    check_lengths(lengths)
    operations: list[int] = []
    between: list[Paths] = []
    for length in lengths:
        spec = small_spec(variant, length)
        operations.append(operations_of(spec, length))
        between.append(paths(spec, length))
        tick()
    worst, mean = zip(*between, strict=True)
    return Interaction(variant.name, spec.depth.steps, tuple(lengths), tuple(operations), worst, mean)


def check_lengths(lengths: Sequence[int]) -> None:
    """Refuses lengths that cannot be measured, or show no growth."""
    for length in lengths:
        if not SHORTEST <= length <= LONGEST:
            raise FormersError(f"length={length} cannot be measured: give {SHORTEST} ... {LONGEST:,}.")
    if len(lengths) < 3 or list(lengths) != sorted(set(lengths)):
        raise FormersError(f"{list(lengths)} do not show how something grows: give three lengths or more, each longer than the one before.")


def small_spec(variant: Variant, length: int) -> Spec:
    """A member's spec in small sizes, for rows of a length; where a memory carries the past on, for segments that are always as long."""
    known = MEMBERS[variant.member]
    options = {name: value for name, value in {**SIZES, **SEEN, "length": length}.items() if name in known.options}
    if "vocab" in options:
        options.pop("features", None)
    if not known.parameters.get("memory", NONE).default:  # what is there to be added stays away
        options.pop("memory", None)
    spec = member_spec(variant.member, **{**options, **variant.options})
    if spec.memory.limit is None:
        return spec
    return member_spec(variant.member, **{**options, "length": SEEN["memory"], **variant.options})


def operations_of(spec: Spec, length: int) -> int:
    """The longest chain of operations of one pass over `length` tokens, of which an encoder-decoder reads and writes as many."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = build(spec).double()
        inputs = [_input(each, length) for each in ((spec.encoder, spec) if spec.encoder is not None else (spec,))]
    with evaluating(model), only("dense"):
        return depth_of(lambda *x: _logits(model, *x), *inputs)


def _input(spec: Spec | None, length: int) -> Tensor:
    """Tokens (1, length), or features (1, length, n), at random."""
    if spec is not None and spec.features is not None:
        return torch.randn(1, length, spec.features, dtype=torch.float64)
    return torch.randint(SIZES["vocab"], (1, length))


def _logits(model: Model, *inputs: Tensor) -> list[Tensor]:
    """What a model says of its inputs; with a memory it reads them in segments."""
    if isinstance(model, Seq2Seq) or model.spec.memory.limit is None:
        return [_said(model(*inputs))]
    said, state = [], model.initial_state(1)
    for segment in torch.split(inputs[0], model.spec.length, dim=1):
        out = model(segment, state=state)
        state = out.state
        said.append(_said(out))
    return said


def _said(out: Any) -> Tensor:
    found: Tensor = out.hidden if out.logits is None else out.logits
    return found


def growth(lengths: Sequence[int], figures: Sequence[int | None]) -> Growth | None:
    """How figures grow with the length; None where one is missing."""
    y = [float(figure) for figure in figures if figure is not None]
    if len(y) < len(figures):
        return None
    slope = math.log(y[-1] / y[-2]) / math.log(lengths[-1] / lengths[-2]) if y[-2] else 0.0
    if y[-1] <= max(y[: len(y) // 2 + 1]):  # no more at the last than at half the way
        return Growth("O(1)", slope)
    fits = {word: _fit([curve(n) for n in lengths], y) for word, curve in CURVES.items()}
    word = min(fits, key=lambda name: fits[name][1])
    each = 1 / fits["O(n)"][0]
    if word == "O(n)" and each > 1.5:
        return Growth("O(n/k)", slope, each)
    return Growth(word, slope)


def _fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The slope of the line through points by least squares, and the squares that it leaves."""
    middle, mean = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
    return slope, sum((b - mean - slope * (a - middle)) ** 2 for a, b in zip(x, y, strict=True))


def interaction_facts(found: Sequence[Interaction]) -> list[dict[str, Any]]:
    """All figures, ready for JSON."""
    rows = []
    for each in found:
        row: dict[str, Any] = {"member": each.name, "layers": each.layers, "lengths": list(each.lengths)}
        for name, figures in (("operations", each.operations), ("path", each.paths)):
            grown = growth(each.lengths, figures)
            row[name] = list(figures)
            row[f"{name}_growth"] = None if grown is None else {"order": grown.word, "slope": round(grown.slope, 4), "k": grown.each}
        rows.append({**row, "mean_path": [None if mean is None else round(mean, 4) for mean in each.means]})
    return rows
