"""The option values that recipes and the command line use for parts, such as norm="pre"."""

from __future__ import annotations

from typing import TypeVar

from formers.core import FormersError, Slot, nearest
from formers.heads import AdaptiveSoftmax, Head, LanguageModel
from formers.heads.adaptive import chosen_cutoffs
from formers.inputs import Facts, Features, Input, Tokens
from formers.position import Axial, Learned, NoPosition, PerLayer, Position, Sinusoidal
from formers.residual import Bare, NormOnly, Plain, PostNorm, PreNorm, Residual, Reversible

P = TypeVar("P", bound=Slot)

POSITIONS: dict[str, Position] = {
    "sinusoidal": Sinusoidal(), "learned": Learned(), "per-layer": PerLayer(), "axial": Axial(), "none": NoPosition(),
}  # fmt: skip
RESIDUALS: dict[str, Residual] = {
    "post": PostNorm(), "pre": PreNorm(), "bare": Bare(), "plain": Plain(), "norm-only": NormOnly(), "reversible": Reversible(),
}  # fmt: skip


def position(word: str, offset: int = 0) -> Position:
    """The positional encoding with the name `word`; with `offset`, rows start at a random position 0 ... offset in training."""
    found = _named("position", word, POSITIONS)
    if not offset:
        return found
    if not isinstance(found, Sinusoidal):
        raise FormersError(f"offset={offset} is for sinusoidal positions, and position={word} has none: leave one of them out.")
    return Sinusoidal(offset=offset)


def tokens_or(features: int | None, fact: int | None = None) -> Input:
    """The input of a member: tokens, facts of `fact` words, or vectors of `features` values."""
    return Facts(words=fact) if fact is not None else Tokens() if features is None else Features()


def residual(word: str) -> Residual:
    """The residual part of a word."""
    return _named("norm", word, RESIDUALS)


def words(
    vocab: int,
    cutoffs: tuple[int, ...] | None,
    division: int,
    tied: bool,
    label_smoothing: float = 0.0,
    loss_chunk: int | None = None,
) -> Head:
    """The head of a language model: an adaptive softmax with cutoffs (None: chosen from the vocabulary), or a full softmax with cutoffs=[].

    loss_chunk: for the full softmax, the number of positions whose logits are computed at a time in training.
    """
    if loss_chunk is not None and (cutoffs or division > 1):
        other = f"cutoffs={list(cutoffs)}" if cutoffs else f"division={division}"
        raise FormersError(f"loss_chunk={loss_chunk} is for a full softmax, and {other} is for an adaptive one: leave one of them out.")
    if cutoffs and label_smoothing:
        raise FormersError(f"label_smoothing={label_smoothing} has no meaning with cutoffs={list(cutoffs)}: leave one of them out.")
    if division > 1 and cutoffs == ():
        raise FormersError(f"division={division} is for an adaptive softmax, and cutoffs=[] is a full one: leave one of them out.")
    if cutoffs is None:
        cutoffs = () if label_smoothing or loss_chunk else chosen_cutoffs(vocab)
    if not cutoffs:
        return LanguageModel(tied=tied, label_smoothing=label_smoothing, chunk=loss_chunk)
    return AdaptiveSoftmax(cutoffs=cutoffs, division=division, tied=tied, tied_projections="tails" if tied else "none")


def _named(option: str, word: str, known: dict[str, P]) -> P:
    if word not in known:
        raise FormersError(f"{option}={word!r} is unknown: {nearest(word, known)}")
    return known[word]
