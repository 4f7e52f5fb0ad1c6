"""The vanilla members learn what they are for: to reverse, to tell places apart, to copy. A few seconds each."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pytest
import torch
from torch import Tensor

import formers
from learn.fitting import Batch, fit, greedy, held_out

SMALL = {"dim": 32, "heads": 4, "layers": 2, "hidden": 64, "dropout": 0.0}
BATCH = 64


# (a) The encoder-decoder reverses 5 ... 10 symbols: its first word is the source's last, wherever that stands.

BEGIN, PAD, SYMBOLS, LONGEST = 0, 1, 10, 10


def reversals(n: int, unseen: bool) -> Batch:
    """Sources, padded to one length, and their reversals."""
    lengths = torch.randint(5, LONGEST + 1, (20 * n, 1))
    mask = torch.arange(LONGEST) < lengths
    source = torch.randint(2, 2 + SYMBOLS, (20 * n, LONGEST)).masked_fill(~mask, PAD)
    chosen = (held_out(source * mask) == unseen).nonzero().flatten()[:n]
    source, mask, lengths = source[chosen], mask[chosen], lengths[chosen]
    targets = source.gather(1, (lengths - 1 - torch.arange(LONGEST)).clamp(min=0))
    target = torch.cat([torch.full((n, 1), BEGIN), targets[:, :-1]], dim=1)
    return {"source": source, "target": target, "targets": targets, "source_mask": mask, "mask": mask}


def test_the_transformer_learns_to_reverse() -> None:
    model = formers.create("transformer", vocab=2 + SYMBOLS, length=LONGEST, label_smoothing=0.0, **SMALL)
    fit(model, lambda: reversals(BATCH, unseen=False), steps=600)
    test = reversals(300, unseen=True)
    real, wanted = test["mask"], test["targets"]
    with torch.no_grad():
        predicted = model(**test).logits.argmax(dim=-1)
        first = model(test["source"], test["target"][:, :1], source_mask=test["source_mask"])
    assert (predicted == wanted)[real].float().mean() > 0.99
    written = greedy(model, first.logits, first.state, LONGEST)
    assert (written == wanted)[real].float().mean() > 0.99, "what it writes by itself, from its cache"
    seen = model.inspect(test["source"], test["target"], source_mask=test["source_mask"], mask=real)
    mirrored = real.sum(dim=1, keepdim=True) - 1 - torch.arange(LONGEST)
    found = [(a.mean(dim=1).argmax(dim=-1) == mirrored)[real].float().mean().item() for a in seen.cross]
    assert max(found) > 0.6, "some layer looks at the symbol that it is about to write; by chance 0.14 would"


# (b) The encoder tells whether the first symbol reappears at the last place. A bag of tokens cannot know.

KINDS, LENGTH = 5, 6
EVERYTHING = torch.tensor(list(itertools.product(range(KINDS), repeat=LENGTH)))
LABELS = (EVERYTHING[:, 0] == EVERYTHING[:, -1]).long()


def balanced(unseen: bool) -> tuple[Tensor, Tensor]:
    """As many sequences whose ends agree as others, in random order."""
    rows = (held_out(EVERYTHING) == unseen).nonzero().flatten()
    rows = rows[torch.randperm(len(rows))]
    same, other = (rows[LABELS[rows] == label] for label in (1, 0))
    rows = torch.cat([same, other[: len(same)]])
    return EVERYTHING[rows], LABELS[rows]


def best_of_a_bag(x: Tensor, labels: Tensor) -> float:
    """The accuracy of the best function of the tokens' counts: the commoner label of each bag."""
    bags: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for row, label in zip(x.tolist(), labels.tolist(), strict=True):
        bags[tuple(sorted(row))][label] += 1
    return sum(max(count.values()) for count in bags.values()) / len(x)


def ends_agree(position: str, steps: int) -> tuple[float, float]:
    """The accuracy on sequences never seen of an encoder with such positions, and the bound for a bag of tokens."""
    x, labels = balanced(unseen=False)

    def draw() -> Batch:
        half = torch.randint(len(x) // 2, (BATCH // 2,))
        rows = torch.cat([half, half + len(x) // 2])
        return {"tokens": x[rows], "targets": labels[rows]}

    model = formers.create("encoder", vocab=KINDS, classes=2, length=LENGTH, position=position, **SMALL)
    fit(model, draw, steps)
    test, wanted = balanced(unseen=True)
    with torch.no_grad():
        return (model(test).logits.argmax(dim=-1) == wanted).double().mean().item(), best_of_a_bag(test, wanted)


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_the_encoder_learns_places(position: str) -> None:
    accuracy, _ = ends_agree(position, steps=300)
    assert accuracy > 0.98


def test_without_positions_the_encoder_is_a_bag_of_tokens() -> None:
    accuracy, bound = ends_agree("none", steps=300)
    assert bound < 0.75
    assert accuracy <= bound


# (c) The decoder copies: eight symbols, a separator, the same symbols.

SPAN, SEPARATOR = 8, 10


def copies(n: int, unseen: bool) -> Batch:
    """Sequences twice, with a separator; only the second half counts."""
    symbols = torch.randint(SEPARATOR, (20 * n, SPAN))
    symbols = symbols[held_out(symbols) == unseen][:n]
    whole = torch.cat([symbols, torch.full((n, 1), SEPARATOR), symbols], dim=1)
    targets = whole[:, 1:].clone()
    targets[:, :SPAN] = -100
    return {"tokens": whole[:, :-1], "targets": targets}


def test_the_decoder_learns_to_copy() -> None:
    model = formers.create("decoder", vocab=SEPARATOR + 1, length=2 * SPAN + 1, **SMALL)
    fit(model, lambda: copies(BATCH, unseen=False), steps=400)
    test = copies(300, unseen=True)
    wanted = test["targets"][:, SPAN:]
    with torch.no_grad():
        predicted = model(test["tokens"]).logits.argmax(dim=-1)[:, SPAN:]
        prompt = model(test["tokens"][:, : SPAN + 1])
    assert (predicted == wanted).float().mean() > 0.99
    written = greedy(model, prompt.logits, prompt.state, SPAN)
    assert (written == wanted).float().mean() > 0.99, "what it writes by itself, from its cache"
    assert torch.equal(written[(predicted == wanted).all(dim=1)], wanted[(predicted == wanted).all(dim=1)]), (
        "the cache decodes as one pass does"
    )
