"""Ponder times of the tokens of a text (Adaptive Computation Time, depth/halting.py): N, R and the halting probabilities of every step.

h^1, h^2, ... h^N are what the halting unit answers after each step, N is the step at which a token halts, and R = 1 - (h^1 + ... + h^{N-1})
is what is left for that step. N + R is what the ponder cost is the mean of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError, Watch
from formers.data import Tokenizer
from formers.data.babi import split_facts, story
from formers.depth.halting import HALTING, REMAINDER, STEPS
from formers.generation import tokenizer_of
from formers.inspect.measure.attention import in_segments, target_ids
from formers.inspect.measure.counting import counting
from formers.inspect.measure.token_labels import CLOSE, OPEN, token_labels
from formers.inspect.measure.units import in_flops
from formers.model import Model, Seq2Seq, Spec, evaluating

Notes = Mapping[str, Mapping[int, Any]]
"""What a watch has noted, by name and depth step."""
DIGITS = 4
"""Decimal places of a probability in JSON."""


@dataclass(frozen=True, eq=False)
class Ponder:
    """The ponder times of tokens in one stack, or in one layer of it."""

    title: str
    """Which stack and layer it is; nothing where there is one alone."""
    labels: list[str]
    """The tokens, as labels."""
    halting: Tensor
    """h (tokens, most): not a number at steps that a token has not taken."""
    steps: Tensor
    """N (tokens,)"""
    remainder: Tensor
    """R (tokens,); 0 of a token that ran out of steps without one (t2t)."""

    def __post_init__(self) -> None:
        if not bool((self.halting.isfinite() == (torch.arange(self.most) < self.steps[:, None])).all()):
            raise FormersError("halting probabilities are not finite: the training has diverged; use an earlier checkpoint.")

    @property
    def most(self) -> int:
        """The most steps that there are."""
        return self.halting.shape[1]

    @property
    def cost(self) -> Tensor:
        """N + R (tokens,)"""
        return self.steps + self.remainder

    @property
    def weights(self) -> Tensor:
        """p (tokens, most): what each step counts in the answer; rows sum to 1, under t2t to less where a token ran out of steps."""
        last = torch.arange(1, self.most + 1) == self.steps[:, None]
        halts = last & (self.remainder > 0)[:, None]
        return torch.where(halts, self.remainder[:, None], self.halting.nan_to_num())

    @property
    def saved(self) -> float:
        """The share of the most steps that the tokens do not take."""
        return 1.0 - float(self.steps.mean()) / self.most

    @property
    def words(self) -> str:
        """Mean steps and remainder in a line."""
        what = f"{self.title}: " if self.title else ""
        steps, rest = float(self.steps.mean()), float(self.remainder.mean())
        return f"{what}{steps:.2f} of {self.most} steps a token in the mean ({self.saved:.0%} saved), remainder {rest:.2f}"


class StepHalting(NamedTuple):
    """What the tokens that take a step answer there."""

    number: int
    """Which step, counted from 1."""
    mean: float | None
    """The mean of h; None if no token takes this step, like the quartiles."""
    lower: float | None
    upper: float | None
    running: float
    """The share of all tokens that continue after it."""


class Flops(NamedTuple):
    """FLOPs of a pass, counted as it ran: as it is, and with every token taking all steps."""

    skipping: int
    whole: int

    @property
    def words(self) -> str:
        """Both in a sentence."""
        share = f"{1 - self.skipping / self.whole:.0%}" if self.whole else "none"
        return f"{in_flops(self.skipping)} instead of {in_flops(self.whole)} with all steps for all tokens: {share} saved."


def ponder_of(model: Model, text: str, target: str | None = None, name: str = "") -> tuple[list[Ponder], Flops]:
    """The ponder times of the tokens of a text, by stack and layer, and the FLOPs.

    An encoder-decoder's text is its source; its target is what it writes, the likeliest token each time, unless given. A model with a
    memory reads a text in segments, and what is seen is the last one.
    """
    name = name or model.spec.name or "this model"
    refuse_plain(model.spec, name)
    if model.spec.features is not None:
        raise FormersError(
            f"{name} reads vectors of {model.spec.features} numbers, and no text: leave the text out, and its data are read."
        )
    tokenizer, device = tokenizer_of(model), next(model.parameters()).device
    if model.spec.fact is not None and target is None:  # a position is a sentence
        facts = story(text, tokenizer, model.spec.fact).to(device)
        return _looked(model, {"tokens": facts}, {"": split_facts(text)})
    ids = tokenizer.encode(text)
    if not ids:
        raise FormersError("the text is empty: give at least one token.")
    read = torch.tensor([ids], device=device)
    further: dict[str, Any] = {}
    if isinstance(model, Seq2Seq):
        written = target_ids(model, tokenizer, read, target)
        inputs = {"source": read, "target": torch.tensor([written], device=device)}
        labels = {"encoder ": _labels(model.spec.encoder, tokenizer, ids), "": _labels(model.spec, tokenizer, written)}
    elif target is not None:
        raise FormersError(f"{name} reads one text and writes no target: leave the target out.")
    else:
        *before, segment = in_segments(model.spec, read)
        inputs = {"tokens": segment}
        labels = {"": _labels(model.spec, tokenizer, ids[-segment.shape[1] :])}
        with evaluating(model), torch.no_grad():
            for piece in before:
                further = {"state": model(piece, state=further.get("state", model.initial_state(1))).state}
    return _looked(model, {**inputs, **further}, labels)


def _looked(model: Model, inputs: dict[str, Any], labels: Mapping[str, list[str]]) -> tuple[list[Ponder], Flops]:
    """What is seen of a pass over inputs whose tokens have such labels, and the FLOPs of it, with all steps and without."""
    watch = Watch(only=(HALTING, STEPS, REMAINDER))
    with evaluating(model), torch.no_grad():
        with counting() as whole:
            model(**inputs, watch=watch)
        with counting() as skipping:
            model(**inputs)
    return ponders(watch.notes, labels), Flops(skipping.get_total_flops(), whole.get_total_flops())


def refuse_plain(spec: Spec, name: str) -> None:
    """Raises for a model without adaptive computation."""
    if spec.ponders is None and (spec.encoder is None or spec.encoder.ponders is None):
        raise FormersError(
            f"{name} takes the same number of steps for every token: use a run of act-rnn or "
            "universal-transformer that was trained with --set act=graves, or depth=Adaptive(...) in a spec."
        )


def ponders(notes: Notes, labels: Mapping[str, list[str]]) -> list[Ponder]:
    """What was noted of the first row, the encoder first; `labels` are those of the tokens of each stack, "encoder " and ""."""
    found = []
    for side in sorted(labels, reverse=True):
        taken = notes.get(side + STEPS, {})
        for layer in sorted(taken):
            n, r = (notes[side + kind][layer][0].cpu().double() for kind in (STEPS, REMAINDER))
            title = title_of(side, layer if len(taken) > 1 else None, len(labels) > 1)
            found.append(Ponder(title, labels[side], all_halting(notes[side + HALTING], layer)[0].cpu().double(), n, r))
    return found


def by_step(halting: Tensor, steps: Tensor) -> list[StepHalting]:
    """What tokens with h (tokens, most) and N (tokens,) answer at each step, and how many of them continue after it."""
    made = []
    for t in range(halting.shape[1]):
        h = halting[:, t]
        h = h[~h.isnan()].double()
        goes_on = float((steps > t + 1).double().mean())
        lower, upper = (float(h.quantile(share)) if len(h) else None for share in (0.25, 0.75))
        made.append(StepHalting(t + 1, float(h.mean()) if len(h) else None, lower, upper, goes_on))
    return made


def ponder_facts(seen: list[Ponder], flops: Flops, name: str) -> dict[str, Any]:
    """All numbers, ready for JSON."""
    return {
        "model": name,
        "flops": flops.skipping,
        "all_steps_flops": flops.whole,
        "stacks": [
            {
                "stack": each.title,
                "limit": each.most,
                "mean_steps": float(each.steps.mean()),
                "mean_remainder": float(each.remainder.mean()),
                "saved": each.saved,
                "tokens": each.labels,
                "steps": [int(n) for n in each.steps.tolist()],
                "remainder": [round(r, DIGITS) for r in each.remainder.tolist()],
                "halting": [[round(h, DIGITS) for h in row[: int(n)]] for row, n in zip(each.halting.tolist(), each.steps, strict=True)],
                "weights": [[round(p, DIGITS) for p in row[: int(n)]] for row, n in zip(each.weights.tolist(), each.steps, strict=True)],
                "by_step": [step._asdict() for step in by_step(each.halting, each.steps)],
            }
            for each in seen
        ],
    }


def title_of(side: str, layer: int | None, both: bool) -> str:
    """What a stack, or a layer of it, is called; nothing where there is one alone."""
    words = [side.strip() or "decoder"] if both else []
    return " ".join([*words, *([] if layer is None else [f"layer {layer}"])])


def all_halting(noted: Mapping[int, Tensor], layer: int) -> Tensor:
    """h (batch, tokens, steps): noted for each step of the depth, or for all steps of a layer at once."""
    if noted[layer].dim() == 3:
        return noted[layer]
    return torch.stack([noted[step] for step in sorted(noted)], dim=-1)


def _labels(spec: Spec | None, tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The labels of tokens; the extra vectors of a stack come before them and ponder, too."""
    extra = 0 if spec is None else spec.extra
    return [*(f"{OPEN}extra {number}{CLOSE}" for number in range(1, extra + 1)), *token_labels(tokenizer, ids)]
