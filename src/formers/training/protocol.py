"""How a text is read to be judged: a figure means something only together with this.

segments    windows of n tokens side by side, each alone; a token sees what stands before it in its window
memory      segments one after the other, each with the state of the one before: a token sees its segment and the n tokens before it,
            or with `same_length` exactly the last n tokens, itself among them; recurrent layers carry a state, which has no such n
sliding     a window of the n tokens before it for every token (or every `stride` tokens), computed anew: the slow way

Only the memory reads every token once and shows it a past, and only a model without absolute positions can be read so.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from formers.core import FormersError, Part
from formers.data import Batches, Language, Streams
from formers.memory import Carry, NoMemory, Recurrence
from formers.model import Model, Spec, respecified
from formers.patterns import Causal, Local
from formers.score import Relative

Kind = Literal["segments", "memory", "sliding"]
CARRIED = 2
"""Segments that fill a state of fixed size before a stretch of a sample is counted."""


class Protocol(Part):
    """How a text is read; what is None is the model's own."""

    kind: Kind | None = None
    """Memory for a model that has one, else segments."""
    attention_length: NonNegativeInt | None = None
    """Tokens of a window, or of the memory."""
    segment: PositiveInt | None = None
    """Tokens that are read at a time; without a memory the window itself."""
    clamp: PositiveInt | None = None
    """Relative distances beyond it look like it."""
    same_length: bool | None = None
    """Whether every token sees as many others, and not those late in a segment more."""
    stride: PositiveInt | None = None
    """Tokens from one sliding window to the next."""
    rounds: PositiveInt | None = None
    """Hashing rounds of LSH attention, which may be more than in training."""

    def over(self, other: Protocol) -> Protocol:
        """This one, with what it leaves open taken from another of its kind."""
        if self.kind is None and self.stride is not None and other.kind != "sliding":
            return self.replace(kind="sliding")
        if self.kind not in (None, other.kind):
            return self
        window = self.attention_length if self.segment is None else self.segment
        if other.kind != "memory" and window is not None:  # the two are one: what is said of one is said of the other
            other = other.replace(attention_length=None, segment=None)
        return Protocol(
            **{name: theirs if value is None else value for (name, value), theirs in zip(self, dict(other).values(), strict=True)}
        )

    def settled(self, spec: Spec) -> Protocol:
        """The same with nothing left open for a model of this spec, after refusing what it cannot do."""
        kind = self.kind or _usual(self, spec)
        _refuse(self, kind, spec)
        clamp = self.clamp if self.clamp is not None or not isinstance(spec.score, Relative) else spec.score.clamp
        if kind == "memory" and _carries(spec):
            return Protocol(kind=kind, segment=self.segment or spec.length)
        if kind == "memory":
            length = self.attention_length if self.attention_length is not None else _memory(spec)
            same = same_length(spec) if self.same_length is None else self.same_length
            if same and length == 0:
                raise FormersError("same_length shows every token the last attention_length=0 tokens, none at all: give at least 1.")
            return Protocol(kind=kind, attention_length=length, segment=self.segment or spec.length, clamp=clamp, same_length=same)
        window = self.attention_length or self.segment or spec.length
        stride = (self.stride or 1) if kind == "sliding" else None
        return Protocol(kind=kind, attention_length=window, segment=window, clamp=clamp, stride=stride, rounds=self.rounds)

    def in_passing(self) -> Protocol:
        """What a training can afford of it: windows that would slide stand side by side."""
        return self.replace(kind="segments", stride=None) if self.kind == "sliding" else self

    def spec(self, spec: Spec) -> Spec:
        """The spec of a model that is read so, which has the same weights."""
        if isinstance(spec.score, Relative) and self.clamp != spec.score.clamp:
            spec = spec.replace(score=spec.score.replace(clamp=self.clamp))
        if self.rounds is not None:
            spec = spec.replace(attention=spec.attention.with_rounds(self.rounds))
        if self.kind != "memory":
            return spec
        if _carries(spec):
            return spec.replace(memory=Carry())
        pattern = Local(window=self.attention_length) if self.same_length else Causal() if same_length(spec) else spec.pattern
        memory = spec.memory if isinstance(spec.memory, Recurrence) else Recurrence(length=0)
        return spec.replace(memory=memory.replace(length=self.attention_length), pattern=pattern)


class Judged(NamedTuple):
    """What a protocol makes of a model and its batches, ready to be judged."""

    model: Model
    """With the weights of the one that was given."""
    batches: Batches
    stride: int | None


def read_by(protocol: Protocol, model: Model, batches: Batches) -> Judged:
    """A model and its batches, as the protocol wants them read; other data than texts are as they are."""
    if not is_text(model.spec, batches):
        return Judged(model, batches, protocol.stride)
    chosen = protocol.settled(model.spec)
    text: Any = batches
    assert chosen.segment is not None
    cut: Batches
    if chosen.kind == "memory":
        warm = CARRIED if chosen.attention_length is None else -(-chosen.attention_length // chosen.segment) + 1
        cut = Streams(text.parts, chosen.segment, text.tokenizer, warm)
    else:
        cut = Language(text.parts, chosen.segment, text.tokenizer)
    return Judged(respecified(model, chosen.spec(model.spec)), cut, chosen.stride)


def is_text(spec: Spec, batches: Batches) -> bool:
    """Whether a model of this spec tells the next token of a text that can be cut as one likes."""
    return spec.encoder is None and spec.head.writes and type(batches) in (Language, Streams)


def refuse_short(asked: Protocol, chosen: Protocol, tokens: int, part: str) -> None:
    """A window or a segment that was asked for and that the data do not fill."""
    wanted = asked.segment or (asked.attention_length if chosen.kind != "memory" else None)
    if wanted is not None and wanted > tokens:
        name = "segment" if asked.segment else "attention_length"
        raise FormersError(
            f"{name}={wanted} is longer than the data, which have {tokens:,} tokens to judge in {part}: give less, or more data."
        )


def _usual(asked: Protocol, spec: Spec) -> Kind:
    if asked.stride is not None:
        return "sliding"
    return "segments" if isinstance(spec.memory, NoMemory) else "memory"


def _memory(spec: Spec) -> int:
    """The memory of a spec; of one that has none, what would be a memory of the usual length."""
    return spec.length if spec.memory.limit is None else spec.memory.limit


def _carries(spec: Spec) -> bool:
    """Whether all that a model knows of the past is a state of fixed size."""
    return all(kind.carries for kind in spec.attention.kinds)


def same_length(spec: Spec) -> bool:
    """Whether a spec shows every token just the last tokens that its memory holds."""
    return not isinstance(spec.memory, NoMemory) and all(pattern == Local(window=max(1, _memory(spec))) for _, pattern in spec.layers)


def _refuse(asked: Protocol, kind: Kind, spec: Spec) -> None:
    """What a model of this spec cannot do, or what means nothing."""
    name = spec.name or "this model"
    if asked.clamp is not None and not isinstance(spec.score, Relative):
        raise FormersError(f"clamp={asked.clamp} is of relative distances, and {name} scores none: leave it out, or use transformer-xl.")
    if asked.rounds is not None and spec.attention.with_rounds(1) == spec.attention == spec.attention.with_rounds(2):
        raise FormersError(f"rounds={asked.rounds} is of attention by hashing, and {name} has none: leave it out, or use reformer.")
    if kind != "segments" and not spec.head.writes:
        raise FormersError(f"the protocol {kind} is for models that tell the next token, which {name} does not: use segments.")
    if asked.stride is not None and kind != "sliding":
        raise FormersError(f"stride={asked.stride} is of windows that slide, and {kind} do not: leave it out, or use the protocol sliding.")
    if kind == "memory":
        if spec.position.absolute:
            raise FormersError(
                f"{name} has absolute positions, by which a memory would stand where its segment stands: "
                "use the protocol segments or sliding, or a member with relative positions such as transformer-xl."
            )
        if _carries(spec) and (asked.attention_length is not None or asked.same_length is not None):
            what = "attention_length" if asked.attention_length is not None else "same_length"
            raise FormersError(
                f"{what}={dict(asked)[what]} is of a memory of tokens, and {name} carries a state of fixed size instead: leave it out."
            )
        other = next((pattern for _, pattern in spec.layers if not isinstance(pattern, Causal)), None)
        if asked.same_length and other is not None and not same_length(spec):
            raise FormersError(f"same_length is a pattern itself, and {name} has another ({type(other).__name__}): leave it out.")
        return
    if asked.same_length is not None:
        raise FormersError(
            f"same_length={asked.same_length} is of segments with a memory, which {kind} have none: use the protocol memory."
        )
    if None not in (asked.attention_length, asked.segment) and asked.attention_length != asked.segment:
        raise FormersError(
            f"attention_length={asked.attention_length} and segment={asked.segment} are two lengths of one window: "
            "give one of them, or use the protocol memory."
        )
    what = "attention_length" if asked.attention_length is not None else "segment"
    window = asked.attention_length if asked.attention_length is not None else asked.segment
    if window == 0:
        raise FormersError("attention_length=0 is a window of no tokens: give at least 1.")
    ends = spec.position.places(spec.length)
    if window is not None and spec.position.bounded and window > ends:
        raise FormersError(f"{what}={window} does not fit the learned positions, whose table has length={ends}: use less.")
