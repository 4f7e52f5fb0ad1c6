"""Specs are frozen, typed, hashable values that are unchanged by JSON; options are checked by name; create is build of spec."""

from __future__ import annotations

import json

import pytest
import torch

import formers
from contracts.specimens import FIRST, SPECIMENS, Specimen
from formers import Spec
from formers.family import MEMBERS
from helpers import refused, sweep


def needs(name: str) -> dict[str, int]:
    options = next(s for s in FIRST if s.member == name).options
    return {key: options[key] for key in ("vocab", "features") if key in options}


NAMED = [
    *(s.spec for s in SPECIMENS),
    *(formers.spec(name, **needs(name)) for name in formers.members()),
    *(formers.spec(name, preset=preset, **needs(name)) for name in formers.members() for preset in MEMBERS[name].presets),
]
SPECS = sweep("spec", NAMED)
SWEPT = sweep("specimen", FIRST)


@SPECS
def test_survives_json(spec: Spec) -> None:
    written = json.dumps(spec.model_dump(mode="json"))
    again = Spec(**json.loads(written))
    assert again == spec
    assert hash(again) == hash(spec)
    assert json.dumps(again.model_dump(mode="json")) == written


@SPECS
def test_frozen(spec: Spec) -> None:
    with pytest.raises(ValueError, match="frozen"):
        spec.dim = 8
    with pytest.raises(ValueError, match="frozen"):
        spec.pattern = spec.pattern


@SPECS
def test_a_misspelt_field_is_refused_with_the_nearest(spec: Spec) -> None:
    written = spec.model_dump(mode="json")
    with refused("'dims'", "did you mean 'dim'?"):
        Spec(**written, dims=3)
    with refused("'Prenom'"):
        Spec(**{**written, "residual": {"kind": "Prenom"}})


@SPECS
def test_a_spec_can_be_checked_without_allocating(spec: Spec) -> None:
    formers.model.check(spec)


@SWEPT
def test_equal_options_give_equal_specs(specimen: Specimen) -> None:
    assert formers.spec(specimen.member, **specimen.options) == formers.spec(specimen.member, **specimen.options)
    assert formers.spec(specimen.member, **specimen.options) != formers.spec(specimen.member, **{**specimen.options, "dim": 32})
    assert {specimen.spec: 1}[formers.spec(specimen.member, **specimen.options)] == 1


@SWEPT
def test_every_option_has_a_default_or_is_asked_for(specimen: Specimen) -> None:
    for option in MEMBERS[specimen.member].options:
        wrong = option + "x" if len(option) < 4 or option[-1] == option[-2] else option[:-2] + option[-1] + option[-2]
        with refused(specimen.member, repr(wrong), "did you mean"):
            formers.spec(specimen.member, **{**specimen.options, wrong: 1})


@SWEPT
@sweep("wrong", [{"dim": 0}, {"heads": -1}, {"layers": 0}, {"length": 1.5}, {"dropout": 1.0}, {"dropout": -0.1}, {"dim": "wide"}])
def test_values_out_of_range_are_refused_by_name(specimen: Specimen, wrong: dict[str, object]) -> None:
    (name, value), *_ = wrong.items()
    name = "steps" if name in MEMBERS[specimen.member].never else name
    if name in MEMBERS[specimen.member].options:
        with refused(name, repr(value)):
            formers.spec(specimen.member, **{**specimen.options, name: value})


@sweep("option", ["norm", "position"])
@sweep("value", ["sinusoidl", None, 3])
def test_words_that_stand_for_parts(option: str, value: object) -> None:
    for name in ("transformer", "encoder", "decoder"):
        with refused(option, repr(value)):
            formers.spec(name, vocab=5, **{option: value})


@SWEPT
def test_a_preset_is_changed_by_options_and_known_by_name(specimen: Specimen) -> None:
    name = specimen.member
    for preset in MEMBERS[name].presets:
        assert formers.spec(name, preset=preset, **{**needs(name), "dim": 64}).dim == 64
        with refused(name, repr(preset + "x"), f"did you mean {preset!r}?"):
            formers.spec(name, preset=preset + "x", **needs(name))


@sweep("name", ["transformer", "encoder", "decoder"])
def test_base_is_the_papers(name: str) -> None:
    spec = formers.spec(name, preset="base", vocab=50)
    assert (spec.dim, spec.heads, spec.depth.steps, spec.feedforward.hidden) == (512, 8, 6, 2048)
    assert (spec.dropout, spec.feedforward.activation, type(spec.residual).__name__) == (0.1, "relu", "PostNorm")
    assert type(spec.position).__name__ == "Sinusoidal"


def test_an_unknown_member_is_refused_with_the_nearest() -> None:
    with refused("'decodr'", "did you mean 'decoder'?"):
        formers.create("decodr", vocab=5)
    with refused("decoder", "'vocab'"):
        formers.spec("decoder")


@sweep("specimen", SPECIMENS)
def test_create_is_build_of_spec(specimen: Specimen) -> None:
    torch.manual_seed(3)
    a = formers.create(specimen.member, **specimen.options)
    torch.manual_seed(3)
    b = formers.build(formers.spec(specimen.member, **specimen.options))
    assert a.spec == b.spec == specimen.spec
    assert list(a.state_dict()) == list(b.state_dict())
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
    assert a.parameter_count() == sum(p.numel() for p in set(a.parameters()))
