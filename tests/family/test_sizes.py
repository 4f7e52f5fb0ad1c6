"""Common sizes as options: the defaults of each member, a recipe's own parameter of the same name, and refusals."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields

import pytest

import formers
from formers.family import MEMBERS, Member
from formers.family.sizes import AttentionSizes, MemberSizes, TransformerSizes, default_sizes, option_parameters
from formers.family.transformer import decoder
from helpers import refused, sweep

NAMES = sweep("name", formers.members())


def own_length(*, vocab: int, sizes: MemberSizes = MemberSizes(dim=64), length: int | None = None) -> formers.Spec:
    return formers.spec("rnn", vocab=vocab, dim=sizes.dim, length=length or 7)


@NAMES
def test_every_member_states_its_sizes_once(name: str) -> None:
    found = default_sizes(MEMBERS[name].recipe)
    assert found is not None
    own = inspect.signature(MEMBERS[name].recipe).parameters
    assert {field.name for field in fields(found[1])} & set(own) <= {"length"}
    assert found[0] not in MEMBERS[name].options
    assert not [p for p in own.values() if p.kind is p.VAR_KEYWORD]


@NAMES
def test_defaults_reach_the_spec(name: str) -> None:
    member = MEMBERS[name]
    needed = {} if name == "image-transformer" else {"vocab": 11}
    spec = formers.spec(name, **needed)
    for option in ("dim", "heads", "dropout", "attention_dropout", "embedding_scale"):
        if option in member.parameters:
            assert getattr(spec, option) == member.parameters[option].default, option


def test_a_recipe_called_with_sizes_is_the_member_with_options() -> None:
    assert decoder(vocab=11, sizes=TransformerSizes(dim=32, heads=2)) == formers.spec("decoder", vocab=11, dim=32, heads=2)


def test_a_parameter_of_the_recipe_replaces_the_size_of_its_name() -> None:
    member = Member(own_length, {})
    assert list(option_parameters(own_length)) == ["vocab", "dim", "length", "dropout", "embedding_scale"]
    assert member.parameters["length"].default is None
    assert member.spec("it", {"vocab": 5, "dim": 16}).length == 7
    assert member.spec("it", {"vocab": 5, "length": 9}).length == 9


def test_sizes_are_frozen_and_typed() -> None:
    with pytest.raises(FrozenInstanceError):
        AttentionSizes().dim = 3  # type: ignore[misc]
    assert AttentionSizes(dim=10).feedforward.hidden == 40
    assert AttentionSizes(dim=10, hidden=7).feedforward.hidden == 7
    with refused("decoder cannot take dim='wide'"):
        formers.spec("decoder", vocab=11, dim="wide")
    with refused("decoder cannot take length=None"):
        formers.spec("decoder", vocab=11, length=None)


@pytest.mark.parametrize(
    ("member", "option", "hint"),
    [("decoder", "dimm", "dim"), ("rnn", "heads", "rnn has no option 'heads'"), ("decoder", "sizes", "decoder has no option 'sizes'")],
)
def test_an_option_that_a_member_lacks_is_refused(member: str, option: str, hint: str) -> None:
    with refused(option, hint):
        formers.spec(member, vocab=11, **{option: 8})
