"""The Universal Transformer (Dehghani et al., 2018): one block, applied repeatedly, with encodings of position and step.

A = LN((H + P^t) + Attention(H + P^t))        H' = LN(A + Transition(A))        t = 1 ... steps

With `act` each position decides after how many steps it halts.
Equations E100-E104, E14 and E40-E44; docs/universal-transformer.md.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from formers.core import FormersError
from formers.depth import Adaptive, Depth, Shared
from formers.depth.halting import Bias, Epsilon, Price
from formers.family.parts import position as positions
from formers.family.parts import residual, tokens_or
from formers.family.sizes import AttentionSizes
from formers.feedforward import Dense, SeparableConv
from formers.heads import Classify, LanguageModel, MaskedLM, NoHead
from formers.memory import NoMemory, Recurrence
from formers.model import Spec
from formers.patterns import Causal, Full
from formers.position import Coordinate, Position
from formers.score import NoScore, Relative

Signal = Literal["sinusoidal", "learned", "none"]

# The paper's base model, for pairs: one block with as many weights as six layers of the Transformer's base model.
BASE: dict[str, Any] = {
    "dim": 1024, "heads": 16, "hidden": 4096, "steps": 6, "decoder_steps": 6, "length": 512, "dropout": 0.1, "norm": "post",
    "activation": "relu", "label_smoothing": 0.1,
}  # fmt: skip
# The same with halting after at most twice as many steps.
ADAPTIVE: dict[str, Any] = {**BASE, "steps": 12, "decoder_steps": 12, "act": "graves"}
# The authors' code (tensor2tensor, adaptive_universal_transformer_base), as far as our parts match: it also drops activations
# of the feed-forward network (0.1), has no biases in attention, and puts all sines of a position before all cosines.
T2T: dict[str, Any] = {**ADAPTIVE, "norm": "pre", "step_signal": "learned", "act": "t2t", "dropout": 0.3, "attention_dropout": 0.1}

_T2T: dict[str, Any] = {"schedule": "inverse-sqrt", "warmup": 8000, "learning_rate": 2 * (1024 * 8000) ** -0.5, "weight_decay": 0.0}
TRAINING: dict[str, dict[str, Any]] = {
    "": {"learning_rate": 2e-3, "warmup": 100, "weight_decay": 0.0},
    **dict.fromkeys(("base", "adaptive", "t2t"), _T2T),
}

NEVER = {"layers": "universal-transformer has one block, applied repeatedly: give steps, or decoder_steps, instead of layers."}

HALTING = {"halt_epsilon": 0.01, "ponder": 0.01, "halt_bias": 1.0}
"""The options of halting and their defaults."""


def universal_transformer(
    *,
    vocab: PositiveInt | None = None,
    features: PositiveInt | None = None,
    fact: PositiveInt | None = None,
    classes: PositiveInt | None = None,
    pool: str = "mean",
    causal: bool | None = None,
    steps: PositiveInt = 6,
    decoder_steps: NonNegativeInt = 0,
    sizes: AttentionSizes = AttentionSizes(activation="relu"),
    transition: Literal["dense", "conv"] = "dense",
    act: Literal["none", "graves", "t2t"] = "none",
    halt_epsilon: Epsilon = HALTING["halt_epsilon"],
    ponder: Price = HALTING["ponder"],
    halt_bias: Bias = HALTING["halt_bias"],
    position: str = "coordinate",
    step_signal: Signal | None = None,
    offset: NonNegativeInt = 0,
    memory: NonNegativeInt | None = None,
    clamp: PositiveInt | None = None,
    norm: str = "post",
    label_smoothing: float = 0.0,
    tied: bool = True,
) -> Spec:
    """One shared block: a language model, an encoder (causal=False or `classes`; with `fact` for stories), or with `decoder_steps` both.

    With `act` a position takes at most `steps` steps; `ponder` is the cost of one. The step signal is sinusoidal by default. With `offset`
    rows start at a random position up to it in training. With position="relative" scores depend on the relative distance, up to
    `clamp`; the same with a `memory`, where each step attends to its own states of the tokens before the segment.
    """
    causal = not (classes or decoder_steps) if causal is None else causal
    if decoder_steps and (causal or classes is not None):
        given = "causal=True" if causal else f"classes={classes}"
        raise FormersError(f"{given} and decoder_steps={decoder_steps} are two different models: give one of them.")
    relative = position == "relative" or memory is not None
    if clamp is not None and not relative:
        raise FormersError(f"clamp={clamp} is for relative scores: give position=relative or a memory, or leave clamp out.")
    halting = {"halt_epsilon": halt_epsilon, "ponder": ponder, "halt_bias": halt_bias}
    for name, value in halting.items():
        if act == "none" and value != HALTING[name]:
            raise FormersError(f"{name}={value} is for halting, and act=none always takes all steps: give act=graves, or leave {name} out.")

    def depth(count: int) -> Depth:
        if act == "none":
            return Shared(layers=count)
        return Adaptive(layers=count, epsilon=halt_epsilon, ponder=ponder, bias=halt_bias, act=act)

    kind = Dense if transition == "dense" else SeparableConv
    common: dict[str, Any] = dict(
        **sizes.fields, position=coordinates(position, step_signal, offset, not relative),
        score=Relative(clamp=clamp) if relative else NoScore(), memory=NoMemory() if memory is None else Recurrence(length=memory),
        residual=residual(norm), feedforward=kind(hidden=sizes.hidden_dim, activation=sizes.activation),
    )  # fmt: skip
    if decoder_steps:
        encoder = Spec(
            name="universal-transformer's encoder", features=features, input=tokens_or(features, fact),
            pattern=Full(), depth=depth(steps), head=NoHead(),
            **common,
        )  # fmt: skip
        head = LanguageModel(tied=tied, label_smoothing=label_smoothing)
        return Spec(
            name="universal-transformer", vocab=vocab, encoder=encoder, pattern=Causal(), depth=depth(decoder_steps), head=head, **common
        )
    words = LanguageModel(tied=tied, label_smoothing=label_smoothing) if causal else MaskedLM(tied=tied)
    return Spec(
        name="universal-transformer", vocab=vocab, features=features, input=tokens_or(features, fact),
        pattern=Causal() if causal else Full(),
        depth=depth(steps), head=words if classes is None else Classify(classes=classes, pool=pool), **common,
    )  # fmt: skip


def coordinates(word: str, signal: Signal | None, offset: int, places: bool) -> Position:
    """The position part of a word; if `places` is False, coordinates encode the step only."""
    if word in ("coordinate", "relative"):
        return Coordinate(place="sinusoidal" if places else "none", step=signal or "sinusoidal", offset=offset)
    if signal is not None:
        raise FormersError(f"step_signal={signal} is for position=coordinate, not position={word}: leave it out.")
    return positions(word, offset)
