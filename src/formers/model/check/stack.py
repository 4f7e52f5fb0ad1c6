"""What cannot work of scores, depth and residual connections."""

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
            f"span={_span(s).span} looks further back than memory={s.memory.limit} keeps: "
            f"give a memory of at least {_span(s).span}, or a smaller span."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.score, FixedSpan) and not s.looks_back,
        lambda s: (
            f"{type(s.score).__name__} says how far back is looked, and {not_causal(s)} looks ahead, too: use a causal pattern, or NoScore."
        ),
    ),
    # Whatever else needs the states that reversibility frees is refused here.
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
            f"spans cost span_penalty={_penalty(s):g} at every step, and how many steps Adaptive depth takes depends on who stands in the "
            "batch: use span_penalty=0, or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and ponders(s),
        lambda s: (
            "Pondering halts within every step of Adaptive depth, which halts, too, and what the former costs would depend on who stands "
            "in the batch: use one of them, Pondering(act=none) or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.depth, Adaptive) and s.head.taps,
        lambda s: (
            f"the losses of a {type(s.head).__name__} head need the outputs of all steps, and Adaptive depth takes as few as it can: "
            "use intermediate=none or the LanguageModel head, or a fixed number of steps."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and s.position.every_step,
        lambda s: (
            f"{type(s.position).__name__} positions are added at every step, which Reversible, computing states back, would have to undo: "
            "use positions that are added once, or norm=pre."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and ponders(s),
        lambda s: (
            "Pondering halts where a sum reaches 1, and Reversible would ask once more with states computed back, where it may not: "
            "use norm=bare or norm=pre with it, or act=none."
        ),
    ),
    Refusal(
        lambda s: isinstance(s.residual, Reversible) and s.head.taps,
        lambda s: (
            f"the losses of a {type(s.head).__name__} head need the outputs of the layers in between, which Reversible frees: "
            "use intermediate=none or the LanguageModel head, or norm=pre."
        ),
    ),
    Refusal(
        lambda s: s.head.uses_embedding and s.width != s.dim,
        lambda s: (
            f"streams that end with ends=concat are {s.width} wide, and a tied head has the embedding's dim={s.dim}: "
            "use tied=False, or ends=mean."
        ),
    ),
    Refusal(
        lambda s: s.memory.origin > 0 and not all(isinstance(s.pattern.at(t), Causal | Local) for t in range(s.depth.steps)),
        lambda s: (
            f"start=zeros moves every token behind {s.memory.origin} zeros, and {type(s.pattern).__name__} depends on where tokens are: "
            "use Causal or Local, or start=empty."
        ),
    ),
)


def _span(spec: Spec) -> FixedSpan:
    """The score of a spec that is known to have spans."""
    assert isinstance(spec.score, FixedSpan)
    return spec.score


def _penalty(spec: Spec) -> float:
    """What a place costs the spans of a spec that is known to have such."""
    assert isinstance(spec.score, Span | DynamicSpan)
    return spec.score.penalty
