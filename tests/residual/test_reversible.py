"""The reversible residual: the paper's equations, and how the two halves are combined."""

from __future__ import annotations

import torch

import formers
from formers.core import Context, Range
from formers.residual import PreNorm, Reversible
from helpers import close, sweep


def model_that(ends: str, layers: int = 2) -> formers.Model:
    """A small decoder whose streams end so."""
    spec = formers.spec("decoder", vocab=11, dim=8, heads=2, layers=layers, tied=False).replace(residual=Reversible(ends=ends))
    return formers.build(spec).double().eval()


def by_hand(model: formers.Model, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Y_1 = X_1 + Attn(LN X_2), Y_2 = X_2 + FF(LN Y_1), block by block."""
    stack, context = model.stack, Context(Range(0, tokens.shape[1]))
    first = second = stack.position(model.embedding(tokens), context.positions, 0)
    for step, block in enumerate(stack.depth.blocks):
        first = first + block.attention(block.residual_attention.norm(second), context, None, step)[0]
        second = second + block.feedforward(block.residual_feedforward.norm(first), context, None, step)[0]
    return first, second


@sweep("ends", ["mean", "concat", "sum"])
def test_the_papers_equations(ends):
    model, tokens = model_that(ends), torch.randint(11, (2, 7))
    first, second = by_hand(model, tokens)
    ended = {"mean": (first + second) / 2, "concat": torch.cat([first, second], dim=-1), "sum": first + second}[ends]
    found = model(tokens)
    close(found.hidden, model.stack.final(ended))
    assert found.hidden.shape[2] == Reversible(ends=ends).width(8) == (16 if ends == "concat" else 8)
    close(found.logits, found.hidden @ model.head.weight.T)


def test_one_block_of_attention_alone_leaves_the_first_stream_as_it_was():
    spec = formers.spec("decoder", vocab=11, dim=8, heads=2, layers=1)
    model = formers.build(spec.replace(residual=Reversible(), feedforward=formers.feedforward.NoFeedForward())).double()
    tokens = torch.randint(11, (2, 7))
    out = model(tokens, targets=tokens)
    out.loss.backward()
    context, block = Context(Range(0, 7)), model.stack.depth.blocks[0]
    x = model.stack.position(model.embedding(tokens), context.positions, 0)
    close(out.hidden, model.stack.final(x + block.attention(block.residual_attention.norm(x), context, None, 0)[0] / 2))
    assert model.embedding.weight.grad.abs().sum() > 0


def test_output_projections_start_as_those_of_pre_norm():
    assert [Reversible().gain(steps) for steps in (1, 12)] == [PreNorm().gain(steps) for steps in (1, 12)]


def test_a_decoder_reads_an_encoder_whose_streams_stand_side_by_side():
    spec = formers.spec("transformer", vocab=11, dim=8, heads=2, layers=2)
    model = formers.build(spec.replace(encoder=spec.encoder.replace(residual=Reversible(ends="concat"))))
    source, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 7))
    assert model.encode(source)[0].hidden.shape == (2, 5, 16)
    model(source, target, targets=target).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_word_norm_reversible_is_it():
    assert formers.spec("decoder", vocab=11, norm="reversible").residual == Reversible()
    assert formers.spec("transformer", vocab=11, norm="reversible").encoder.residual == Reversible()
