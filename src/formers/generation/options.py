"""How to write: every knob of generation as one frozen value, checked before a token is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pydantic import field_validator, model_validator
from typing_extensions import Self

from formers.core import FormersError, Part


class Options(Part):
    """How many tokens to write, how to choose each of them, and where to stop."""

    max_new_tokens: int = 200
    temperature: float = 1.0
    """0 takes the likeliest token, 1 the model's own spread."""
    top_k: int | None = None
    """Choose among so many likeliest tokens only."""
    top_p: float | None = None
    """Choose among the fewest tokens that have this share of the probability."""
    min_p: float | None = None
    """Choose among tokens that have at least this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that stand in the text already become less likely."""
    stop: tuple[str, ...] = ()
    """Texts before which the writing ends."""
    seed: int | None = None
    """The same seed writes the same text, whoever else is in the batch; without one torch's own generator decides."""
    samples: int = 1
    """How many texts to write for each prompt."""
    beams: int | None = None
    """Search for the likeliest text with a beam of this width, instead of drawing."""
    length_penalty: float = 0.6
    """Of a beam search: 0 compares texts by their probability, which favours short ones; more favours longer ones."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, stop: object) -> object:
        return (stop,) if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _checked(self) -> Self:
        for rule in RULES:
            if not rule.holds(self):
                raise FormersError(rule.says(self))
        return self


class Rule(NamedTuple):
    """What must hold of the options, and the sentence for those of which it does not."""

    holds: Callable[[Options], bool]
    says: Callable[[Options], str]


DRAWING = ("top_k", "top_p", "min_p", "repetition_penalty")
"""Options that only mean something where tokens are drawn."""

RULES = (
    Rule(lambda o: o.max_new_tokens >= 0, lambda o: f"max_new_tokens={o.max_new_tokens} is negative: give 0 or more."),
    Rule(
        lambda o: 0 <= o.temperature < float("inf"),
        lambda o: (
            f"temperature={o.temperature} is {'below 0' if o.temperature < 0 else 'not a finite number'}: "
            "use 0 for the likeliest token, 1 for the model's own spread."
        ),
    ),
    Rule(lambda o: o.top_k is None or o.top_k >= 1, lambda o: f"top_k={o.top_k} leaves no token to choose: give 1 or more."),
    Rule(
        lambda o: o.top_p is None or 0 < o.top_p <= 1,
        lambda o: f"top_p={o.top_p} is no share of the probability: give more than 0, at most 1.",
    ),
    Rule(
        lambda o: o.min_p is None or 0 <= o.min_p <= 1,
        lambda o: f"min_p={o.min_p} is no share of the likeliest token's probability: give 0 ... 1.",
    ),
    Rule(
        lambda o: 0 < o.repetition_penalty < float("inf"),
        lambda o: f"repetition_penalty={o.repetition_penalty} is no factor: give more than 0, 1 for none, above 1 against repetition.",
    ),
    Rule(lambda o: all(o.stop), lambda o: "an empty stop string would stop everything: give at least one character, or leave it out."),
    Rule(lambda o: o.samples >= 1, lambda o: f"samples={o.samples} writes nothing: give 1 or more."),
    Rule(lambda o: o.beams is None or o.beams >= 1, lambda o: f"beams={o.beams} searches nothing: give 1 (greedy) or more."),
    Rule(
        lambda o: o.beams is None or o.samples <= o.beams,
        lambda o: f"beams={o.beams} finds no {o.samples} texts: give at least as many beams as samples.",
    ),
    Rule(
        lambda o: 0 <= o.length_penalty < float("inf"),
        lambda o: f"length_penalty={o.length_penalty} is below 0 or not a finite number: give 0 or more, 0.6 as in the 2017 paper.",
    ),
    Rule(
        lambda o: o.beams is None or (o.temperature in (0, 1) and not _drawing(o)),
        lambda o: (
            f"beams={o.beams} searches for the likeliest text and draws nothing: leave out "
            f"{', '.join(_drawing(o)) or f'temperature={o.temperature}'}, or beams."
        ),
    ),
)


def _drawing(options: Options) -> list[str]:
    """The options for drawing that differ from their defaults."""
    return [n for n in DRAWING if getattr(options, n) != Options.model_fields[n].default]
