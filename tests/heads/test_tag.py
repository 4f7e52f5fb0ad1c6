"""A class at every position: its equation, excluded targets, and a row in chunks."""

from __future__ import annotations

import torch
from torch.nn import functional as F

import formers
from formers import Model
from formers.core import IGNORED
from formers.heads import Tag
from formers.inspect.measure.costs import example
from helpers import close, refused, sweep

LENGTH = 5


def model(places: int = 1, causal: bool = True) -> Model:
    member = "decoder" if causal else "encoder"
    spec = formers.spec(member, vocab=7, dim=8, heads=2, layers=1, hidden=12, length=8, dropout=0.0)
    return formers.build(spec.replace(head=Tag(classes=4, places=places))).double().eval()


@sweep("places", [1, 3])
@sweep("causal", [True, False])
def test_logits_are_a_linear_map_of_every_position_and_the_loss_is_the_mean_of_what_counts(places: int, causal: bool) -> None:
    tagger = model(places, causal)
    x, mask = torch.randint(7, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.bool)
    mask[1, 3:] = False
    shape = (2, LENGTH) if places == 1 else (2, LENGTH, places)
    assert tagger.spec.head.target_shape(2, LENGTH) == shape == example(tagger.spec, 2, LENGTH)[1].shape
    targets = torch.randint(4, shape)
    targets[0, 0] = IGNORED
    out = tagger(x, targets=targets, mask=mask)
    head = tagger.head.out
    assert out.logits.shape == (*shape, 4)
    close(out.logits, (out.hidden @ head.weight.T + head.bias).view(*shape, 4))
    terms = [
        F.cross_entropy(out.logits[place], targets[place])
        for place in torch.cartesian_prod(*(torch.arange(size) for size in shape)).unbind()
        if bool(mask[tuple(place[:2])]) and targets[tuple(place)] != IGNORED
        for place in [tuple(place)]
    ]
    assert len(terms) == 7 * places
    close(out.losses["cross_entropy"], torch.stack(terms).mean())
    close(tagger.head.token_losses(out.hidden, tagger.embedding, targets)[0].sum(), torch.stack(terms[: 4 * places]).sum())


@torch.no_grad()
def test_a_causal_tagger_reads_a_stream_piece_by_piece() -> None:
    tagger, x = model(places=2), torch.randint(7, (2, LENGTH))
    first = tagger(x[:, :3], state=tagger.initial_state(2))
    rest = tagger(x[:, 3:], state=first.state)
    close(torch.cat([first.logits, rest.logits], dim=1), tagger(x).logits)
    assert tagger.spec.head.per_position
    assert not tagger.spec.head.generates


def test_what_does_not_fit_is_refused() -> None:
    tagger, x = model(places=2), torch.randint(7, (2, LENGTH))
    with refused("(2, 5, 2)", "-100"):
        tagger(x, targets=torch.zeros(2, LENGTH, dtype=torch.long), mask=torch.ones(2, LENGTH, dtype=torch.bool))
    with refused("target 4", "0 ... 3"):
        tagger(x, targets=torch.full((2, LENGTH, 2), 4))
    with refused("Tag", "classes"):
        Tag(classes=0)
