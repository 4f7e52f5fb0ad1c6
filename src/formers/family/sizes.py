"""The sizes that members share, each stated once with its type and its usual default.

A recipe has one parameter of these classes. Its default states what differs for the member: `sizes: TransformerSizes =
TransformerSizes(length=128)`. Every field is an option of the member (`formers.spec("decoder", dim=64)`, `--set dim=64`). A recipe whose
option has another type states that option itself, beside `sizes`; its own parameter is then the option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pydantic import PositiveInt

from formers.feedforward import Dense
from formers.model import Spec


@dataclass(frozen=True, kw_only=True)
class MemberSizes:
    """The sizes of every member."""

    dim: PositiveInt = 128
    length: PositiveInt = 256
    dropout: float = 0.0
    embedding_scale: str = "input"

    @property
    def fields(self) -> dict[str, Any]:
        """Those that a spec has as fields, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in Spec.model_fields}


@dataclass(frozen=True, kw_only=True)
class AttentionSizes(MemberSizes):
    """The sizes of members with heads and a feed-forward network."""

    heads: PositiveInt = 4
    head_dim: PositiveInt | None = None
    value_dim: PositiveInt | None = None
    hidden: PositiveInt | None = None
    attention_dropout: float = 0.0
    activation: str = "gelu"

    @property
    def hidden_dim(self) -> int:
        """The width of the feed-forward network: four times that of the model unless `hidden` is given."""
        return self.hidden or 4 * self.dim

    @property
    def feedforward(self) -> Dense:
        """The feed-forward network of these sizes."""
        return Dense(hidden=self.hidden_dim, activation=self.activation)


@dataclass(frozen=True, kw_only=True)
class TransformerSizes(AttentionSizes):
    """The sizes of members that stack layers and choose their norm by a word."""

    layers: PositiveInt = 4
    norm: str = "pre"


def default_sizes(recipe: Callable[..., Spec]) -> tuple[str, MemberSizes] | None:
    """The parameter of a recipe that holds its sizes, and its default; None for a recipe without one."""
    found = ((name, each.default) for name, each in inspect.signature(recipe).parameters.items() if isinstance(each.default, MemberSizes))
    return next(found, None)


def option_parameters(recipe: Callable[..., Spec]) -> dict[str, inspect.Parameter]:
    """The options of a recipe by name, with types and defaults: its own parameters, and its sizes at the place of their parameter."""
    own = dict(inspect.signature(recipe).parameters)
    sizes = default_sizes(recipe)
    if sizes is None:
        return own
    name, default = sizes
    kind = inspect.Parameter.KEYWORD_ONLY
    inner = {
        field.name: own.get(field.name, inspect.Parameter(field.name, kind, default=getattr(default, field.name), annotation=field.type))
        for field in fields(default)
    }
    before = list(own)[: list(own).index(name)]
    return {**{key: own[key] for key in before}, **inner, **{key: each for key, each in own.items() if key != name}}
