"""The epsilon of norms is the spec's: it is saved and loaded with it, and a manually set one is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import formers
from formers.residual import NormOnly, PostNorm, PreNorm, Residual, Reversible
from helpers import refused

TINY = {"dim": 16, "heads": 2, "layers": 2, "hidden": 24, "length": 16, "dropout": 0.0}
PARTS = [
    PostNorm(epsilon=1e-12, final=True),
    PreNorm(epsilon=0.1, final=False),
    PreNorm(epsilon=1e-6),
    Reversible(epsilon=0.1, ends="concat"),
    Reversible(epsilon=1e-6, final=False),
    NormOnly(epsilon=0.1),
    NormOnly(of="pre", epsilon=0.1, final=False),
]


def norms(model: formers.Model) -> list[nn.LayerNorm]:
    return [module for module in model.modules() if isinstance(module, nn.LayerNorm)]


@pytest.mark.parametrize("part", PARTS, ids=repr)
@torch.no_grad()
def test_it_survives_saving(part: Residual, tmp_path: Path) -> None:
    torch.manual_seed(0)
    spec = formers.spec("decoder", vocab=11, **TINY).replace(residual=part)
    spec = spec.replace(head=spec.head.replace(tied=spec.width == spec.dim))
    model = formers.build(spec).eval()
    model.save_pretrained(tmp_path)
    loaded = formers.load(tmp_path)
    assert loaded.spec == spec
    assert [norm.eps for norm in norms(loaded)] == [part.epsilon] * len(norms(model))
    assert isinstance(loaded.stack.final, nn.LayerNorm) == isinstance(model.stack.final, nn.LayerNorm)
    tokens = torch.randint(11, (2, 9))
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    plain = formers.build(spec.replace(residual=part.replace(epsilon=1e-5))).eval()
    plain.load_state_dict(model.state_dict())
    assert not torch.equal(plain(tokens).logits, model(tokens).logits), "an epsilon that changes nothing shows nothing"


@pytest.mark.parametrize("member", ["decoder", "transformer"])
def test_one_set_by_hand_is_refused_where_the_model_is_saved(member: str, tmp_path: Path) -> None:
    model = formers.create(member, vocab=11, **{**TINY, "norm": "pre"})
    for norm in norms(model):
        norm.eps = 1e-12
        with refused("eps=1e-12", "epsilon=1e-05", "residual has epsilon=1e-12"):
            model.save_pretrained(tmp_path)
        norm.eps = 1e-5
    assert not any(tmp_path.iterdir())
    model.save_pretrained(tmp_path)
    formers.load(tmp_path)
