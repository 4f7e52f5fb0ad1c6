"""The relative effective context length (Dai et al., 2019, section 4.3 and appendix C): how much context a model makes use of.

l_i(c, t) = -log P_i(x_t | x_{t-c}, ..., x_{t-1})             the loss of model i on token t with c tokens before it
b(c, t)   = min_i l_i(c, t)                                   the best of the group with the shorter context              E57
f_i(c,c') = mean over T of min( b(c, t), l_i(c', t) )         T the share r of tokens with the largest b(c, t)            E58
g_i(c,c') = ( exp f_i(c,c) - exp f_i(c,c') ) / exp f_i(c,c)   the relative gain of the longer context c' = c + step       E59

The length of model i is the first c whose gain is below 0.01. It is of a group: another group has another baseline, and other lengths.
A model by itself has no group to improve on: its losses count as they are, min(b, l) = l, the worse ones too, and its length is the plain
effective context length (Khandelwal et al., 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError
from formers.data import Bytes
from formers.evaluation.protocol import is_text
from formers.inspect.measure.attention import in_segments
from formers.inspect.measure.losses import token_cross_entropy
from formers.model import Model, Spec, evaluating
from formers.training.run import open_run

Progress = Callable[[int, "int | None"], None]
THRESHOLD = 0.01
TOKENS = 500
"""How many tokens are evaluated, each with every context, by default."""
STEPS = 8
"""How many contexts are tried by default, the longest twice as long as what any of the models sees at once."""


class Contexts(NamedTuple):
    """The losses of a group of models with contexts of different lengths."""

    names: list[str]
    contexts: list[int]
    """One step more each: step, 2 step, ..."""
    nats: Tensor
    """(models, contexts, tokens)"""
    bytes: bool
    limits: list[int | None]
    """The most that each model can read, where there is an end to it."""

    @property
    def unit(self) -> str:
        return "bits per byte" if self.bytes else "nats per token"

    def losses(self) -> Tensor:
        """The mean losses (models, contexts), in the unit."""
        mean = self.nats.mean(dim=2)
        return mean / math.log(2) if self.bytes else mean

    def gains(self, top: float) -> Tensor:
        """g (models, contexts - 1) of going from each context to the next, over the share `top` of the hardest tokens."""
        return torch.stack([relative_gain(self.nats[:, i], self.nats[:, i + 1], top) for i in range(len(self.contexts) - 1)], dim=1)

    def lengths(self, top: float) -> list[int | None]:
        """The relative effective context length of every model, at most what it can read; None where the longest context still gained."""
        found = []
        for row, limit in zip(self.gains(top).tolist(), self.limits, strict=True):
            length = next((c for c, gain in zip(self.contexts, row, strict=False) if gain < THRESHOLD), None)
            found.append(length if length is None or limit is None else min(length, limit))
        return found


def relative_gain(short: Tensor, long: Tensor, top: float) -> Tensor:
    """g (models,) from the losses (models, tokens) with a shorter and with a longer context, over the share `top` of hardest tokens."""
    baseline = short.amin(dim=0)  # E57
    hardest = baseline.topk(max(1, round(top * len(baseline)))).indices
    baseline, long = baseline[hardest], long[:, hardest]
    relative = (torch.minimum(baseline, long) if len(long) > 1 else long).mean(dim=1)  # E58
    return 1.0 - (relative - baseline.mean()).exp()  # E59


@torch.no_grad()
def context_losses(
    model: Model, stream: Tensor, places: Tensor, contexts: Sequence[int], size: int = 32, progress: Callable[[int], None] | None = None
) -> Tensor:
    """l (contexts, tokens) in nats of the tokens at some places, each read with just so many tokens before it, and nothing else.

    A model with a memory reads a context in segments, the last one whole. One with absolute positions has at most its training length.
    """
    spec, device = model.spec, next(model.parameters()).device
    made: dict[int, Tensor] = {}
    with evaluating(model):
        for context in contexts:
            width = min(context, _limit(spec) or context)
            if width not in made:
                found = []
                for some in torch.split(places, size):
                    rows = stream[some[:, None] - width + torch.arange(width + 1)].long().to(device)
                    found.append(_last(model, rows))
                    if progress is not None:
                        progress(len(some) * width)
                made[width] = torch.cat(found).cpu().double()
    return torch.stack([made[min(c, _limit(spec) or c)] for c in contexts])


def _last(model: Model, rows: Tensor) -> Tensor:
    """The nats (rows,) of the last token of every row."""
    pieces = in_segments(model.spec, rows[:, :-1])
    state = None
    for piece in pieces[:-1]:
        state = model(piece, state=model.initial_state(len(rows)) if state is None else state).state
    out = model(pieces[-1], state=state)
    return token_cross_entropy(model, out.hidden[:, -1:], rows[:, -1:])[:, 0]


def run_contexts(
    runs: Sequence[str | Path],
    data: str | None = None,
    part: str | None = None,
    tokens: int = TOKENS,
    step: int | None = None,
    longest: int | None = None,
    checkpoint: Literal["last", "best"] = "last",
    progress: Progress | None = None,
    device: str = "auto",
) -> Contexts:
    """The losses of a group of runs on the same tokens of the same data, with contexts of step, 2 step, ... up to the longest."""
    opened = [open_run(run, data, part, checkpoint=checkpoint, device=device) for run in runs]
    (_, first, _), where = opened[0], part or "valid"
    for run, (model, task, _) in zip(runs, opened, strict=True):
        if not is_text(model.spec, task.batches):
            raise FormersError(f"{run} does not predict the next token, so it has no context: give a run of a language model.")
        if task.tokenizer != first.tokenizer or task.fingerprint != first.fingerprint:
            raise FormersError(f"{run} and {runs[0]} read other data or other tokens, and cannot be compared: give --data, or one run.")
    stream = first.batches.parts[where]
    usual = 2 * max(_sight(model.spec) for model, _, _ in opened)
    longest = min(usual, len(stream) // 2) if longest is None else longest
    step = max(1, longest // STEPS) if step is None else step
    contexts = list(range(step, longest + 1, step))
    if len(contexts) < 2:
        raise FormersError(f"step={step} and longest={longest} are one context at most, and a gain is of two: give a smaller step.")
    if longest >= len(stream):
        raise FormersError(f"longest={longest} is longer than the data, which have {len(stream):,} tokens in {where}: give less.")
    places = torch.linspace(longest, len(stream) - 1, min(tokens, len(stream) - longest), dtype=torch.float64).long()
    limits = [_limit(model.spec) for model, _, _ in opened]
    work = [sum({min(c, limit or c) for c in contexts}) * len(places) for limit in limits]
    done = 0

    def tick(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, sum(work))

    nats = torch.stack([context_losses(model, stream, places, contexts, progress=tick) for model, _, _ in opened])
    return Contexts([str(run) for run in runs], contexts, nats, isinstance(first.tokenizer, Bytes), limits)


def _limit(spec: Spec) -> int | None:
    """The longest context that a model can read, where it has met no positions beyond."""
    return spec.position.trained_positions(spec.length) if spec.position.absolute else None


def _sight(spec: Spec) -> int:
    """How far back a model sees at once."""
    return spec.length + (spec.memory.limit or 0)


def context_facts(found: Contexts, tops: Sequence[float]) -> dict[str, Any]:
    """What is drawn, ready for JSON."""
    losses, lengths, gains = found.losses().tolist(), [found.lengths(top) for top in tops], [found.gains(top).tolist() for top in tops]
    return {
        "contexts": found.contexts,
        "unit": found.unit,
        "tokens": found.nats.shape[2],
        "threshold": THRESHOLD,
        "runs": [
            {
                "run": name,
                "losses": losses[i],
                "tops": [{"top": top, "gains": gains[k][i], "effective_context_length": lengths[k][i]} for k, top in enumerate(tops)],
            }
            for i, name in enumerate(found.names)
        ],
    }
