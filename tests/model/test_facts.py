"""Facts: a position is a sentence, the sum of its words' vectors times learned vectors of their index."""

from __future__ import annotations

import torch

import formers
from formers import Model
from helpers import close, refused, sweep

SIZES = {"vocab": 11, "classes": 3, "dim": 16, "heads": 2, "layers": 1, "length": 8, "dropout": 0.0}


def reader(fact: int = 4, **options: object) -> Model:
    model = formers.create("encoder", fact=fact, **{**SIZES, **options}).double().eval()
    with torch.no_grad():
        model.embedding.mask.add_(torch.randn_like(model.embedding.mask))
    return model


@sweep("scale", ["input", "none"])
@torch.no_grad()
def test_it_is_the_equation_word_by_word(scale: str) -> None:
    model = reader(embedding_scale=scale)
    tokens = torch.randint(11, (3, 5, 4))
    wanted = torch.zeros(3, 5, 16, dtype=torch.float64)
    for row in range(3):
        for fact in range(5):
            for place, word in enumerate(tokens[row, fact].tolist()):
                if word:
                    wanted[row, fact] += model.embedding.mask[place] * model.embedding.weight[word]
    close(model.embedding(tokens), wanted * (4.0 if scale == "input" else 1.0))


def test_no_word_adds_nothing_whatever_is_learnt() -> None:
    model = reader()
    with torch.no_grad():
        model.embedding.weight[0] = torch.nan
    tokens = torch.tensor([[[3, 4, 0, 0], [0, 0, 0, 0]]])
    x = model.embedding(tokens)
    assert not x[0, 1].any()
    x.sum().backward()
    assert not model.embedding.weight.grad[0].any()
    assert model.embedding.mask.grad[:2].all()
    assert not model.embedding.mask.grad[2:].any()


@torch.no_grad()
def test_at_the_start_places_count_the_same_and_a_fact_is_spread_as_a_token_is() -> None:
    model = formers.create("encoder", fact=9, **{**SIZES, "vocab": 4000, "dim": 64})
    facts = torch.randint(1, 4000, (50, 20, 9))
    x = model.embedding(facts)
    close(model.embedding(facts.flip(2)), x, 1e-5)
    assert abs(float(x.std()) - model.spec.spread) < 0.05


@torch.no_grad()
def test_learnt_masks_tell_the_order_of_words() -> None:
    model = reader()
    assert not torch.allclose(model(torch.tensor([[[1, 2, 3, 0]]])).logits, model(torch.tensor([[[2, 1, 3, 0]]])).logits)


def test_what_are_no_facts_is_refused() -> None:
    model = reader()
    for shape in ((2, 5), (2, 5, 3), (2, 5, 4, 1)):
        with refused(str(shape), "(batch, facts, 4)", "0 = no word"):
            model(torch.zeros(shape, dtype=torch.int64))
    with refused("a list", "(batch, facts, 4)"):
        model([[1, 2]])
    with refused("token id 11", "vocab=11"):
        model(torch.full((1, 2, 4), 11))


@torch.no_grad()
def test_the_last_real_token_may_stand_for_the_row() -> None:
    last, first = reader(pool="last"), reader(pool="first")
    first.load_state_dict(last.state_dict())
    tokens, mask = torch.randint(1, 11, (2, 6, 4)), torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4:] = mask[1, 0] = False
    out = last(tokens, mask=mask)
    close(out.logits, last.head.out(torch.stack([out.hidden[0, 3], out.hidden[1, 5]])))
    close(last(tokens).logits, last.head.out(last(tokens).hidden[:, -1]))
    close(first(tokens, mask=mask).logits, last.head.out(torch.stack([out.hidden[0, 0], out.hidden[1, 1]])))
    nothing = last(tokens, mask=torch.zeros(2, 6, dtype=torch.bool)).logits
    close(nothing, last.head.out.bias.expand(2, -1))
