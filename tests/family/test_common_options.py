"""Options that every member has: the norms' epsilon, the final norm, the bias of logits, and where the scale of embeddings is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import formers
from contracts.specimens import SPECIMENS
from formers.family import MEMBERS
from formers.family.common import adjusted
from formers.heads import AdaptiveSoftmax, LanguageModel
from formers.residual import Bare, PostNorm, PreNorm, Reversible
from helpers import refused

SCALES = ("input", "output", "none")
TINY = {"dim": 16, "heads": 2, "layers": 1, "hidden": 24, "length": 16}


def norms(model: formers.Model) -> list[nn.LayerNorm]:
    return [module for module in model.modules() if isinstance(module, nn.LayerNorm)]


def test_every_member_takes_them() -> None:
    for specimen in SPECIMENS:
        plain = specimen.spec
        assert set(MEMBERS[specimen.member].options) >= {"embedding_scale", "norm_epsilon", "final_norm", "output_bias"}
        if "epsilon" in type(plain.residual).model_fields:
            changed = formers.spec(specimen.member, **specimen.options, norm_epsilon=1e-12, final_norm=True)
            model = formers.build(changed)
            assert {norm.eps for norm in norms(model)} == {1e-12}
            assert isinstance(model.stack.final, nn.LayerNorm)
            if plain.encoder is not None:
                assert isinstance(model.encoder.final, nn.LayerNorm)
            assert formers.Spec(**changed.model_dump(mode="json")) == changed
        if isinstance(plain.head, LanguageModel | AdaptiveSoftmax):
            changed = formers.spec(specimen.member, **specimen.options, output_bias=True)
            assert formers.build(changed).head.bias.shape == (plain.vocab,)


def test_unset_they_change_nothing() -> None:
    for specimen in SPECIMENS:
        assert adjusted(specimen.spec) == specimen.spec
        assert formers.spec(specimen.member, **specimen.options, norm_epsilon=None, output_bias=None) == specimen.spec


def test_the_scale_of_embeddings() -> None:
    """An option of each: what is read is sqrt(dim) times the table's row with "input" alone; defaults are what they were."""
    for name in formers.members():
        options = next(dict(s.options) for s in SPECIMENS if s.member == name and s.spec.vocab is not None)
        options.pop("embedding_scale", None)
        assert formers.spec(name, **options).embedding_scale == ("none" if name == "sparse-transformer" else "input")
        for scale in SCALES:
            spec = formers.spec(name, **options, embedding_scale=scale)
            assert spec.embedding_scale == scale
            assert spec.encoder is None or spec.encoder.embedding_scale == scale
            embedding = formers.build(spec).embedding
            if embedding.weight is not None and spec.fact is None:
                read = embedding(torch.tensor([[3]]))[0, 0]
                torch.testing.assert_close(read, embedding.weight[3] * (spec.dim**0.5 if scale == "input" else 1.0))


@pytest.mark.parametrize(
    ("member", "options", "words"),
    [
        ("rnn", {"norm_epsilon": 1e-6}, ("norm_epsilon=1e-06", "Bare")),
        ("rnn", {"final_norm": True}, ("final_norm=True", "Bare")),
        ("decoder", {"norm_epsilon": 0.0}, ("norm_epsilon=0.0",)),
        ("decoder", {"norm_epsilon": "small"}, ("norm_epsilon='small'",)),
        ("encoder", {"classes": 3, "output_bias": True}, ("output_bias=True", "Classify")),
        ("decoder", {"norm_epsilom": 1e-6}, ("norm_epsilom", "norm_epsilon")),
    ],
)
def test_what_does_not_fit_is_refused(member: str, options: dict[str, object], words: tuple[str, ...]) -> None:
    sizes = TINY if member != "rnn" else {"dim": 16, "layers": 1, "length": 16}
    with refused(*words):
        formers.spec(member, vocab=11, **sizes, **options)


def test_parts_by_themselves() -> None:
    for part, final in ((PostNorm(), False), (PreNorm(), True), (Reversible(), True)):
        assert (part.epsilon, part.final) == (1e-5, final)
        for wanted in (False, True):
            made = part.replace(epsilon=1e-3, final=wanted)
            assert isinstance(made.build_final(8), nn.LayerNorm) == wanted
            assert made.build(8, 0.0).norm.eps == 1e-3
    assert isinstance(Bare().build_final(8), nn.Identity)
