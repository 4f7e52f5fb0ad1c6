"""Targets for sources: what an encoder-decoder writes, greedily, drawn, or by beam search."""

from __future__ import annotations

from typing import overload

from formers.generation.classify import checked_texts
from formers.generation.compose import BATCH
from formers.generation.kinds import refuse_other
from formers.generation.write import generate
from formers.model import Model


@overload
def translate(
    model: Model,
    texts: str,
    max_new_tokens: int = 200,
    *,
    beams: int | None = None,
    length_penalty: float = 0.6,
    temperature: float = 0.0,
    seed: int | None = None,
    batch: int = BATCH,
) -> str: ...  # fmt: skip
@overload
def translate(
    model: Model,
    texts: list[str],
    max_new_tokens: int = 200,
    *,
    beams: int | None = None,
    length_penalty: float = 0.6,
    temperature: float = 0.0,
    seed: int | None = None,
    batch: int = BATCH,
) -> list[str]: ...  # fmt: skip
def translate(
    model: Model,
    texts: str | list[str],
    max_new_tokens: int = 200,
    *,
    beams: int | None = None,
    length_penalty: float = 0.6,
    temperature: float = 0.0,
    seed: int | None = None,
    batch: int = BATCH,
) -> str | list[str]:
    """The target of a source, or of each of several: the likeliest token at each step, or with `beams` the likeliest text of a search.

    `temperature` above 0 draws instead. length_penalty: of a search, 0 favours short targets.
    """
    refuse_other(model, "translate")
    given = checked_texts([texts] if isinstance(texts, str) else texts)
    found = generate(
        model, given, max_new_tokens=max_new_tokens, beams=beams, length_penalty=length_penalty, temperature=temperature, seed=seed,
        batch=batch,
    )  # fmt: skip
    return found[0] if isinstance(texts, str) else found
