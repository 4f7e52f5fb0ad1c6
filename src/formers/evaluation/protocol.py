"""How a text is read for evaluation. Every metric of a text depends on it.

segments    adjacent windows of n tokens, each evaluated alone; a token attends to the tokens before it in its window
memory      consecutive segments, each with the state of the one before: a token attends to its segment and the n tokens before it,
            or with `same_length` to exactly the last n tokens, itself included; recurrent layers carry a state of fixed size, without n
sliding     a separate window of n tokens for every token (or every `stride` tokens): slow

Only `memory` reads every token once and still gives it a long context. It needs a model without absolute positions.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from formers.attention.lsh import LSH, with_rounds
from formers.core import FormersError, Part
from formers.data import Batches, Language, Streams
from formers.memory import Carry, NoMemory, Recurrence
from formers.model import Model, Spec, respecified
from formers.patterns import Causal, Local
from formers.score import Relative

Kind = Literal["segments", "memory", "sliding"]
WARMUP_SEGMENTS = 2
"""Number of segments that fill a state of fixed size before a stretch of a sample is counted."""


class Protocol(Part):
    """How a text is read; None takes the model's own value."""

    kind: Kind | None = None
    """Default: memory for a model that has one, else segments."""
    attention_length: NonNegativeInt | None = None
    """Length of a window, or of the memory, in tokens."""
    segment: PositiveInt | None = None
    """Tokens per forward pass; without a memory the length of the window."""
    clamp: PositiveInt | None = None
    """Larger relative distances are treated as this one."""
    same_length: bool | None = None
    """Whether every token attends to the same number of tokens, instead of more tokens late in a segment."""
    stride: PositiveInt | None = None
    """Tokens between the beginnings of two sliding windows."""
    rounds: PositiveInt | None = None
    """Hashing rounds of LSH attention; may be more than in training."""

    def with_defaults(self, other: Protocol) -> Protocol:
        """This protocol, with unset fields taken from another of the same kind."""
        if self.kind is None and self.stride is not None and other.kind != "sliding":
            return self.replace(kind="sliding")
        if self.kind not in (None, other.kind):
            return self
        window = self.attention_length if self.segment is None else self.segment
        if other.kind != "memory" and window is not None:  # both are the same length: setting one sets the other
            other = other.replace(attention_length=None, segment=None)
        return Protocol(
            **{name: theirs if value is None else value for (name, value), theirs in zip(self, dict(other).values(), strict=True)}
        )

    def resolved_for(self, spec: Spec) -> Protocol:
        """The same with all fields set for a model of this spec; raises if the model does not support it."""
        kind = self.kind or _default_kind(self, spec)
        _refuse(self, kind, spec)
        clamp = self.clamp if self.clamp is not None or not isinstance(spec.score, Relative) else spec.score.clamp
        if kind == "memory" and _has_fixed_state(spec):
            return Protocol(kind=kind, segment=self.segment or spec.length)
        if kind == "memory":
            length = self.attention_length if self.attention_length is not None else _memory(spec)
            same = same_length(spec) if self.same_length is None else self.same_length
            if same and length == 0:
                raise FormersError("same_length with attention_length=0 leaves no tokens to attend to: give at least 1.")
            return Protocol(kind=kind, attention_length=length, segment=self.segment or spec.length, clamp=clamp, same_length=same)
        window = self.attention_length or self.segment or spec.length
        stride = (self.stride or 1) if kind == "sliding" else None
        return Protocol(kind=kind, attention_length=window, segment=window, clamp=clamp, stride=stride, rounds=self.rounds)

    def during_training(self) -> Protocol:
        """The protocol for evaluations during training: adjacent windows instead of sliding ones, which are slow."""
        return self.replace(kind="segments", stride=None) if self.kind == "sliding" else self

    def spec(self, spec: Spec) -> Spec:
        """The spec for this evaluation; it has the same weights."""
        if isinstance(spec.score, Relative) and self.clamp != spec.score.clamp:
            spec = spec.replace(score=spec.score.replace(clamp=self.clamp))
        if self.rounds is not None:
            spec = spec.replace(attention=with_rounds(spec.attention, self.rounds))
        if self.kind != "memory":
            return spec
        if _has_fixed_state(spec):
            return spec.replace(memory=Carry())
        pattern = Local(window=self.attention_length) if self.same_length else Causal() if same_length(spec) else spec.pattern
        memory = spec.memory if isinstance(spec.memory, Recurrence) else Recurrence(length=0)
        return spec.replace(memory=memory.replace(length=self.attention_length), pattern=pattern)


class EvaluationSetup(NamedTuple):
    """A model and its batches, set up for a protocol."""

    model: Model
    """Shares the weights of the given model."""
    batches: Batches
    stride: int | None


def apply_protocol(protocol: Protocol, model: Model, batches: Batches) -> EvaluationSetup:
    """The model and its batches set up for a protocol; other data than running text are unchanged."""
    if not is_text(model.spec, batches):
        return EvaluationSetup(model, batches, protocol.stride)
    chosen = protocol.resolved_for(model.spec)
    text: Any = batches
    assert chosen.segment is not None
    cut: Batches
    if chosen.kind == "memory":
        warm = WARMUP_SEGMENTS if chosen.attention_length is None else -(-chosen.attention_length // chosen.segment) + 1
        cut = Streams(text.parts, chosen.segment, text.tokenizer, warm)
    else:
        cut = Language(text.parts, chosen.segment, text.tokenizer)
    return EvaluationSetup(respecified(model, chosen.spec(model.spec)), cut, chosen.stride)


def is_text(spec: Spec, batches: Batches) -> bool:
    """Whether a model of this spec predicts the next token of a running text."""
    return spec.encoder is None and spec.head.generates and type(batches) in (Language, Streams)


def check_window_fits(asked: Protocol, chosen: Protocol, tokens: int, part: str) -> None:
    """Raises if a given window or segment is longer than the data."""
    wanted = asked.segment or (asked.attention_length if chosen.kind != "memory" else None)
    if wanted is not None and wanted > tokens:
        name = "segment" if asked.segment else "attention_length"
        raise FormersError(
            f"{name}={wanted} is longer than the {tokens:,} tokens to evaluate in {part}: set a smaller {name}, or give more data."
        )


def _default_kind(asked: Protocol, spec: Spec) -> Kind:
    if asked.stride is not None:
        return "sliding"
    return "segments" if isinstance(spec.memory, NoMemory) else "memory"


def _memory(spec: Spec) -> int:
    """The memory length of a spec; without a memory, the length of a segment."""
    return spec.length if spec.memory.limit is None else spec.memory.limit


def _has_fixed_state(spec: Spec) -> bool:
    """Whether the model carries only a state of fixed size."""
    return all(kind.carries for kind in spec.attention.kinds)


def same_length(spec: Spec) -> bool:
    """Whether every token of a spec attends to exactly the last tokens of its memory length."""
    return not isinstance(spec.memory, NoMemory) and all(pattern == Local(window=max(1, _memory(spec))) for _, pattern in spec.layers)


def _refuse(asked: Protocol, kind: Kind, spec: Spec) -> None:
    """Raises for settings that a model of this spec does not support."""
    name = spec.name or "this model"
    if asked.clamp is not None and not isinstance(spec.score, Relative):
        raise FormersError(
            f"clamp={asked.clamp} limits relative distances, and {name} has no relative positions: leave it out, or use transformer-xl."
        )
    if asked.rounds is not None and not any(isinstance(kind, LSH) for kind in spec.attention.kinds):
        raise FormersError(f"rounds={asked.rounds} is for LSH attention, and {name} has none: leave it out, or use reformer.")
    if kind != "segments" and not spec.head.generates:
        raise FormersError(f"the protocol {kind} is for models that predict the next token, and {name} does not: use segments.")
    if asked.stride is not None and kind != "sliding":
        raise FormersError(f"stride={asked.stride} is for the protocol sliding, not {kind}: leave it out, or use sliding.")
    if kind == "memory":
        if spec.position.absolute:
            raise FormersError(
                f"{name} has absolute positions, so tokens of the memory would get the positions of the segment: "
                "use the protocol segments or sliding, or a member with relative positions such as transformer-xl."
            )
        if _has_fixed_state(spec) and (asked.attention_length is not None or asked.same_length is not None):
            what = "attention_length" if asked.attention_length is not None else "same_length"
            raise FormersError(
                f"{what}={dict(asked)[what]} is for a memory of tokens, and {name} carries a state of fixed size instead: leave it out."
            )
        other = next((pattern for _, pattern in spec.layers if not isinstance(pattern, Causal)), None)
        if asked.same_length and other is not None and not same_length(spec):
            raise FormersError(f"same_length needs a causal pattern, and {name} has {type(other).__name__}: leave it out.")
        return
    if asked.same_length is not None:
        raise FormersError(
            f"same_length={asked.same_length} is for segments with a memory, and the protocol {kind} has none: use the protocol memory."
        )
    if None not in (asked.attention_length, asked.segment) and asked.attention_length != asked.segment:
        raise FormersError(
            f"attention_length={asked.attention_length} and segment={asked.segment} both set the length of the window: "
            "give one of them, or use the protocol memory."
        )
    what = "attention_length" if asked.attention_length is not None else "segment"
    window = asked.attention_length if asked.attention_length is not None else asked.segment
    if window == 0:
        raise FormersError("attention_length=0 gives an empty window: give at least 1.")
    ends = spec.position.table_length(spec.length)
    if window is not None and spec.position.bounded and window > ends:
        raise FormersError(f"{what}={window} is longer than the table of learned positions, length={ends}: use at most {ends}.")
