"""The bias of token heads: logits are h E^T + b, tied or not, chunked or not; it is trained, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import formers
from formers import Model
from formers.heads import AdaptiveSoftmax, Auxiliary, Head, LanguageModel, MaskedLM
from helpers import close

VOCAB = 13
TINY = {"dim": 16, "heads": 2, "layers": 2, "hidden": 24, "length": 16, "dropout": 0.0}
HEADS = [
    LanguageModel(bias=True),
    LanguageModel(bias=True, tied=False),
    LanguageModel(bias=True, chunk=3),
    MaskedLM(bias=True),
    Auxiliary(bias=True),
]


def built(head: Head, scale: str = "input") -> Model:
    """A small model with this head, in float64, none of whose weights is 0."""
    torch.manual_seed(0)
    spec = formers.spec("decoder" if head.generates else "encoder", vocab=VOCAB, **TINY, embedding_scale=scale).replace(head=head)
    model = formers.build(spec).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_logits_loss_and_gradient(head: LanguageModel) -> None:
    for scale in ("input", "output"):
        model = built(head, scale).eval()
        tokens, targets = torch.randint(VOCAB, (2, 2, 9))
        out = model(tokens, targets=targets)
        table = model.embedding.weight * (16**-0.5 if scale == "output" else 1.0) if head.tied else model.head.weight
        logits = out.hidden @ table.T + model.head.bias
        close(model(tokens).logits, logits)
        wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        close(out.losses["cross_entropy"], wanted)
        close(model.head.token_losses(out.hidden, model.embedding, targets).mean(), wanted)
        slopes = [torch.autograd.grad(loss, model.head.bias, retain_graph=True)[0] for loss in (out.losses["cross_entropy"], wanted)]
        close(*slopes)
        assert (slopes[0] != 0).all()


def test_unless_asked_for_there_is_none_but_in_an_adaptive_softmax() -> None:
    assert all(built(head.replace(bias=False)).head.bias is None for head in HEADS)
    assert LanguageModel().bias is MaskedLM().bias is Auxiliary().bias is False
    assert AdaptiveSoftmax(cutoffs=()).bias
    words = AdaptiveSoftmax(cutoffs=(4, 7), division=2, bias=False)
    model, with_bias = built(words), built(words.replace(bias=True))
    names, more = ({name for name, _ in each.named_parameters()} for each in (model, with_bias))
    assert more - names == {"head.bias", "head.cluster_bias"}
    with torch.no_grad():
        with_bias.load_state_dict({**with_bias.state_dict(), **model.state_dict()})
        with_bias.head.bias.zero_()
        with_bias.head.cluster_bias.zero_()
        tokens = torch.randint(VOCAB, (2, 9))
        close(model.eval()(tokens).logits, with_bias.eval()(tokens).logits)


def test_auxiliary_classifiers_have_it_too_and_leave_it_behind(tmp_path: Path) -> None:
    model = built(Auxiliary(bias=True))
    assert model.auxiliary is not None
    assert all(classifier.bias is not None for classifier in model.auxiliary.classifiers.values())
    model.save_pretrained(tmp_path)
    loaded = formers.load(tmp_path)
    assert loaded.spec.head == LanguageModel(bias=True)
    assert torch.equal(loaded.head.bias, model.head.bias)
