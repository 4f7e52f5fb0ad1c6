"""Extra vectors: learned tokens before the row, which are removed after the stack."""

from __future__ import annotations

import torch

import formers
from formers.heads import NoHead
from formers.patterns import BigBird, Full, Globals, Local, Pattern
from formers.position import Learned
from helpers import close, refused, sweep

VOCAB, EXTRA = 11, 3
PLAIN = formers.spec("encoder", vocab=VOCAB + EXTRA, dim=16, heads=2, layers=2, hidden=24, dropout=0.0, position="none")
SPARSE = Globals(tokens=EXTRA) | BigBird(block=2, window=1, global_blocks=0, random_blocks=1)


@sweep("pattern", [Full(), SPARSE, Globals(tokens=EXTRA) | Local(window=2, causal=False)])
@torch.no_grad()
def test_they_are_tokens_that_nobody_gave(pattern: Pattern) -> None:
    """With their vectors in the table, and their ids before every row, a model without them computes the same."""
    given = formers.build(PLAIN.replace(pattern=pattern)).double().eval()
    model = formers.build(PLAIN.replace(pattern=pattern, extra=EXTRA)).double().eval()
    model.load_state_dict({**given.state_dict(), "stack.extra": given.embedding.weight[VOCAB:] * given.embedding.scale})
    x = torch.randint(VOCAB, (3, 9))
    before = torch.arange(VOCAB, VOCAB + EXTRA).expand(3, -1)
    whole = given(torch.cat([before, x], dim=1))
    close(model(x).hidden, whole.hidden[:, EXTRA:])
    close(model(x).logits, whole.logits[:, EXTRA:])
    mask = torch.rand(3, 9) < 0.6
    mask[1] = False
    padded = given(torch.cat([before, x], dim=1), mask=torch.cat([torch.ones_like(before, dtype=torch.bool), mask], dim=1))
    close(model(x, mask=mask).hidden[mask], padded.hidden[:, EXTRA:][mask])


def test_positions_tell_tokens_apart_and_not_them() -> None:
    spec = PLAIN.replace(extra=EXTRA, position=Learned(), length=6)
    model = formers.build(spec)
    assert model.stack.position.table.shape == (6, 16)
    assert model(torch.randint(VOCAB, (2, 6))).logits.shape == (2, 6, VOCAB + EXTRA)
    with refused("7 tokens"):
        model(torch.randint(VOCAB, (2, 7)))


def test_they_learn_and_they_are_read() -> None:
    model = formers.build(PLAIN.replace(extra=EXTRA, pattern=SPARSE))
    x = torch.randint(VOCAB, (2, 8))
    model(x, targets=x).loss.backward()
    assert (model.stack.extra.grad.abs().sum(dim=1) > 0).all()
    assert model.parameter_count() == formers.build(PLAIN).parameter_count() + EXTRA * 16


def test_a_source_is_its_tokens() -> None:
    pair = formers.spec("bigbird", vocab=VOCAB, decoder_layers=1, extra=EXTRA, dim=16, heads=2, layers=1)
    source, _ = formers.build(pair).encode(torch.randint(VOCAB, (2, 5)))
    assert source.hidden.shape == (2, 5, 16)


def test_a_causal_stack_has_none() -> None:
    with refused("extra=2", "Causal"):
        formers.build(formers.spec("decoder", vocab=VOCAB, dim=16, heads=2).replace(extra=2))
    with refused("extra"):
        PLAIN.replace(extra=-1)
    assert PLAIN.replace(extra=2, head=NoHead()).extra == 2
