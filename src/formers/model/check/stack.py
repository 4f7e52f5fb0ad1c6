"""Combinations of scores, depth and residual connections that cannot work."""

from __future__ import annotations

from formers.depth import Adaptive
from formers.model.check.refusal import Refusal, not_causal, ponders
from formers.model.spec import Spec
from formers.patterns import Causal, Local
from formers.residual import Reversible
from formers.score import DynamicSpan, FixedSpan, Span

STACK: tuple[Refusal, ...] = (
    Refusal(
        lambda s: isinstance(s.score, FixedSpan) and s.memory.limit is not None and s.memory.limit < s.score.span,
        lambda s: (
            f"span={_span(s).span} is longer than memory={s.memory.limit}: give a memory of at least {_span(s).span}, or a smaller span."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.score, FixedSpan) and not s.looks_back,
        lambda s: (
            f"{type(s.score).__name__} limits how far back a query sees, but {not_causal(s)} is not causal: use Causal, or NoScore."
        ),
    ),
    # All parts that need the states freed by Reversible are rejected here.
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and isinstance(s.depth, Adaptive),
        lambda s: (
            "Adaptive depth averages the states of all steps, which Reversible frees: use norm=pre or norm=post with it, "
            "or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and isinstance(s.score, Span | DynamicSpan) and s.score.penalty > 0,
        lambda s: (
            f"span_penalty={_penalty(s):g} is added at every step, but the number of steps of Adaptive depth depends on all rows of the "
            "batch: use span_penalty=0, or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and ponders(s),
        lambda s: (
            "Pondering halts within every step of Adaptive depth, which also halts, and its ponder cost would depend on the other rows "
            "of the batch: use one of them, Pondering(act=none) or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and s.head.taps,
        lambda s: (
            f"the losses of a {type(s.head).__name__} head need the outputs of all steps, but Adaptive depth stops early: "
            "use intermediate=none or the LanguageModel head, or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and s.position.every_step,
        lambda s: (
            f"{type(s.position).__name__} positions are added at every step, and Reversible cannot invert that: "
            "use positions that are added once, or norm=pre."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and ponders(s),
        lambda s: (
            "Pondering halts when a sum reaches 1, and with the states that Reversible recomputes it might halt at another step: "
            "use norm=bare or norm=pre with it, or act=none."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and s.head.taps,
        lambda s: (
            f"the losses of a {type(s.head).__name__} head need the outputs of intermediate layers, which Reversible frees: "
            "use intermediate=none or the LanguageModel head, or norm=pre."
        ),
    ),
    Refusal(
        lambda s: s.head.uses_embedding and s.width != s.dim,
        lambda s: (
            f"hidden states with ends=concat are {s.width} wide, but a tied head has the embedding's dim={s.dim}: "
            "use tied=False, or ends=mean."
        ),
    ),
    Refusal(
        lambda s: s.memory.origin > 0 and not all(isinstance(s.pattern.at(t), Causal | Local) for t in range(s.depth.steps)),
        lambda s: (
            f"start=zeros shifts all positions by {s.memory.origin}, but {type(s.pattern).__name__} depends on absolute positions: "
            "use Causal or Local, or start=empty."
        ),
    ),
)


def _span(spec: Spec) -> FixedSpan:
    """The score of a spec with spans."""
    assert isinstance(spec.score, FixedSpan)
    return spec.score


def _penalty(spec: Spec) -> float:
    """The penalty per position of a spec with learned spans."""
    assert isinstance(spec.score, Span | DynamicSpan)
    return spec.score.penalty
