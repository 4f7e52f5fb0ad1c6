"""Generation options as one frozen value, checked before generation starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pydantic import field_validator, model_validator
from typing_extensions import Self

from formers.core import FormersError, Part


class Options(Part):
    """The number of tokens, how each is chosen, and where to stop."""

    max_new_tokens: int = 200
    temperature: float = 1.0
    """0 takes the most likely token, 1 samples from the model's distribution."""
    top_k: int | None = None
    """Sample from this many most likely tokens only."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this total probability."""
    min_p: float | None = None
    """Sample from tokens with at least this share of the largest probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens already in the text become less likely."""
    stop: tuple[str, ...] = ()
    """Stop strings: the text ends before the first of them."""
    seed: int | None = None
    """The same seed generates the same text, whatever else is in the batch; without a seed, torch's global generator is used."""
    samples: int = 1
    """Number of texts per prompt."""
    beams: int | None = None
    """Beam search with this width, instead of sampling."""
    length_penalty: float = 0.6
    """For beam search: 0 ranks texts by probability, which favours short ones; larger values favour longer ones."""

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
    """A condition on the options, and the error message if it does not hold."""

    holds: Callable[[Options], bool]
    says: Callable[[Options], str]


DRAWING = ("top_k", "top_p", "min_p", "repetition_penalty")
"""Options that apply to sampling only."""

RULES = (
    Rule(lambda o: o.max_new_tokens >= 0, lambda o: f"max_new_tokens={o.max_new_tokens} is negative: give 0 or more."),
    Rule(
        lambda o: 0 <= o.temperature < float("inf"),
        lambda o: (
            f"temperature={o.temperature} is {'below 0' if o.temperature < 0 else 'not a finite number'}: "
            "use 0 for the most likely token, 1 for the model's distribution."
        ),
    ),
    Rule(lambda o: o.top_k is None or o.top_k >= 1, lambda o: f"top_k={o.top_k} leaves no token to choose: give 1 or more."),
    Rule(
        lambda o: o.top_p is None or 0 < o.top_p <= 1,
        lambda o: f"top_p={o.top_p} is not a probability: give more than 0, at most 1.",
    ),
    Rule(
        lambda o: o.min_p is None or 0 <= o.min_p <= 1,
        lambda o: f"min_p={o.min_p} is not a share of the largest probability: give 0 ... 1.",
    ),
    Rule(
        lambda o: 0 < o.repetition_penalty < float("inf"),
        lambda o: f"repetition_penalty={o.repetition_penalty} is not positive: give 1 for no penalty, more against repetition.",
    ),
    Rule(lambda o: all(o.stop), lambda o: "an empty stop string would stop everything: give at least one character, or leave it out."),
    Rule(lambda o: o.samples >= 1, lambda o: f"samples={o.samples} generates nothing: give 1 or more."),
    Rule(lambda o: o.beams is None or o.beams >= 1, lambda o: f"beams={o.beams} searches nothing: give 1 (greedy) or more."),
    Rule(
        lambda o: o.beams is None or o.samples <= o.beams,
        lambda o: f"beams={o.beams} cannot find {o.samples} texts: give at least as many beams as samples.",
    ),
    Rule(
        lambda o: 0 <= o.length_penalty < float("inf"),
        lambda o: f"length_penalty={o.length_penalty} is below 0 or not a finite number: give 0 or more, 0.6 as in the 2017 paper.",
    ),
    Rule(
        lambda o: o.beams is None or (o.temperature in (0, 1) and not _drawing(o)),
        lambda o: (
            f"beams={o.beams} is beam search, which does not sample: leave out "
            f"{', '.join(_drawing(o)) or f'temperature={o.temperature}'}, or beams."
        ),
    ),
)


def _drawing(options: Options) -> list[str]:
    """The sampling options that differ from their defaults."""
    return [n for n in DRAWING if getattr(options, n) != Options.model_fields[n].default]
