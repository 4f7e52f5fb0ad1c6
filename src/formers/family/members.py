"""The table of members, and the public `members`, `spec` and `create`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from formers.core import FormersError, nearest
from formers.core.part import checked
from formers.family import (
    act_rnn,
    adaptive_span,
    bigbird,
    character_transformer,
    gtrxl,
    image_transformer,
    linformer,
    recurrent,
    reformer,
    seq2seq,
    sparse_transformer,
    transformer,
    transformer_xl,
    universal_transformer,
    word_window,
)
from formers.family.common import adjusted
from formers.family.sizes import default_sizes, option_parameters
from formers.model import Model, Spec, build

COMMON = {name: each for name, each in inspect.signature(adjusted).parameters.items() if each.kind is each.KEYWORD_ONLY}
"""The options that every member has."""


class Member(NamedTuple):
    """A named recipe, its presets (name to options), and how its paper trains and evaluates it."""

    recipe: Callable[..., Spec]
    presets: Mapping[str, Mapping[str, Any]]
    training: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Training settings, keyed by preset name; the empty string is the default. `row_tokens` sets the tokens per batch."""
    evaluation: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Evaluation protocol of its paper, keyed by preset name, as options of `evaluation.Protocol`."""
    never: Mapping[str, str] = MappingProxyType({})
    """Options that users may expect and the member does not support, each with its error message."""
    groups: Mapping[str, Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Options that set several others: by option and value, the values of the others. The first value is the default and sets none. If
    one of the others is given as well, the given value is used."""

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The options by name: those of the recipe, those that set several others, and those that every member has."""
        groups = {option: _choice(option, list(words)) for option, words in self.groups.items()}
        return {**option_parameters(self.recipe), **groups, **COMMON}

    @property
    def options(self) -> list[str]:
        """The names of the options."""
        return list(self.parameters)

    def spec(self, what: str, options: Mapping[str, Any]) -> Spec:
        """The spec for options, after checking them; error messages begin with `what`."""
        options = self._ungrouped(what, options)
        own, sizes = get_type_hints(self.recipe, include_extras=True), default_sizes(self.recipe)
        shared = {} if sizes is None else get_type_hints(type(sizes[1]), include_extras=True)
        kinds = {**get_type_hints(adjusted, include_extras=True), **shared, **own}
        given = {option: checked(f"{what} {option}", kinds[option], value) for option, value in options.items()}
        common = {option: given.pop(option) for option in COMMON if option in given}
        if sizes is not None:
            name, default = sizes
            given[name] = replace(default, **{option: given.pop(option) for option in list(given) if option not in own})
        return adjusted(self.recipe(**given), **common)

    def _ungrouped(self, what: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options, with each option that sets several others replaced by those others that are not given."""
        for option, words in self.groups.items():
            word = options.get(option, next(iter(words)))
            if not isinstance(word, str) or word not in words:
                raise FormersError(f"{what} {option}={word!r}: {nearest(word, words)}")
            options = {**words[word], **{name: value for name, value in options.items() if name != option}}
        return options


MEMBERS: dict[str, Member] = {
    "transformer": Member(transformer.transformer, {"base": transformer.BASE}, transformer.TRAINING),
    "encoder": Member(transformer.encoder, {"base": transformer.BASE}),
    "decoder": Member(transformer.decoder, {"base": transformer.BASE}, {"": {"learning_rate": 2e-3}}),
    "character-transformer": Member(
        character_transformer.character_transformer,
        {"base": character_transformer.BASE, "t12": character_transformer.T12},
        character_transformer.TRAINING,
        character_transformer.EVALUATION,
    ),
    "transformer-xl": Member(
        transformer_xl.transformer_xl,
        {
            "base": transformer_xl.ENWIK8,
            "wikitext103": transformer_xl.WIKITEXT103,
            "large": transformer_xl.LARGE,
            "wikitext103-large": transformer_xl.WIKITEXT103_LARGE,
        },
        transformer_xl.TRAINING,
        transformer_xl.EVALUATION,
    ),
    "gtrxl": Member(gtrxl.gtrxl, {"base": gtrxl.BASE}, gtrxl.TRAINING),
    "adaptive-span": Member(
        adaptive_span.adaptive_span, {"base": adaptive_span.BASE, "large": adaptive_span.LARGE}, adaptive_span.TRAINING
    ),
    "sparse-transformer": Member(
        sparse_transformer.sparse_transformer,
        {"base": sparse_transformer.BASE, "cifar10": sparse_transformer.CIFAR10, "imagenet64": sparse_transformer.IMAGENET64},
        sparse_transformer.TRAINING,
    ),
    "image-transformer": Member(
        image_transformer.image_transformer,
        {"base": image_transformer.BASE, "mixture": image_transformer.MIXTURE, "superresolution": image_transformer.SUPERRESOLUTION},
        image_transformer.TRAINING,
    ),
    "linformer": Member(linformer.linformer, {"base": linformer.BASE}, never=linformer.NEVER),
    "bigbird": Member(bigbird.bigbird, {"base": bigbird.BASE, "etc": bigbird.ETC}, bigbird.TRAINING),
    "reformer": Member(
        reformer.reformer,
        {
            "base": reformer.ENWIK8,
            "ablation": reformer.ABLATION,
            "trax": reformer.TRAX,
            "imagenet64": reformer.IMAGENET64,
            "wmt": reformer.WMT,
        },
        reformer.TRAINING,
        groups={"convention": reformer.CONVENTIONS},
    ),
    "rnn": Member(recurrent.rnn, {"base": recurrent.MEDIUM, "large": recurrent.LARGE}, recurrent.TRAINING),
    "seq2seq": Member(seq2seq.seq2seq, {}, seq2seq.TRAINING),
    "word-window": Member(word_window.word_window, {}, word_window.TRAINING),
    "act-rnn": Member(
        act_rnn.act_rnn,
        {"parity": act_rnn.PARITY, "logic": act_rnn.LOGIC, "addition": act_rnn.ADDITION, "sort": act_rnn.SORT},
        act_rnn.TRAINING,
    ),
    "universal-transformer": Member(
        universal_transformer.universal_transformer,
        {"base": universal_transformer.BASE, "adaptive": universal_transformer.ADAPTIVE, "t2t": universal_transformer.T2T},
        universal_transformer.TRAINING,
        never=universal_transformer.NEVER,
    ),
}


def _choice(option: str, words: list[str]) -> inspect.Parameter:
    """The parameter of an option that takes one of some words; the first is the default."""
    kind = f"Literal[{', '.join(map(repr, words))}]"
    return inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=words[0], annotation=kind)


def members() -> list[str]:
    """The names of all members."""
    return list(MEMBERS)


def member(name: str) -> Member:
    """The member of a name."""
    if not isinstance(name, str) or name not in MEMBERS:
        raise FormersError(f"there is no member {name!r}: {nearest(name, MEMBERS)}")
    return MEMBERS[name]


def spec(name: str, *, preset: str | None = None, **options: Any) -> Spec:
    """The frozen spec of a member: its small defaults, or a preset ("base" is the paper's), changed by options."""
    known = member(name)
    if preset is not None and (not isinstance(preset, str) or preset not in known.presets):
        raise FormersError(f"{name} has no preset {preset!r}: {nearest(preset, known.presets)}")
    for option in options:
        if option in known.never:
            raise FormersError(known.never[option])
        if option not in known.options:
            raise FormersError(f"{name} has no option {option!r}: {nearest(option, known.options)}")
    chosen = {**(known.presets[preset] if preset else {}), **options}
    for option, parameter in known.parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in chosen:
            raise FormersError(f"{name} needs {option!r}: give it a value.")
    return known.spec(f"{name} cannot take", chosen)


def create(name: str, *, preset: str | None = None, **options: Any) -> Model:
    """A newly initialised model of a member: build(spec(name, ...))."""
    return build(spec(name, preset=preset, **options))
