"""The vanilla members equal torch.nn's with the same weights: logits, loss and every gradient, in float64 to 1e-10."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import formers
from formers import Model, Output
from formers.attention import DotProduct
from formers.core import Context, Range, Source
from formers.patterns import Causal, Full, Pattern
from helpers import close, sweep
from parity.copying import Pair, attention, copy, layer, linear, same_gradients, shake, sinusoid

VOCAB, DIM, HEADS, HIDDEN, LAYERS, LENGTH = 13, 16, 4, 24, 2, 7
SIZES = {"dim": DIM, "heads": HEADS, "hidden": HIDDEN, "layers": LAYERS, "length": 16, "dropout": 0.0}
PLAIN = formers.spec("encoder", vocab=VOCAB, **SIZES).sizes
KINDS = sweep(("norm", "activation"), [("post", "relu"), ("post", "gelu"), ("pre", "relu"), ("pre", "gelu")])
SOURCE_MASK = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] * 1 + [False] * 6])
TARGET_MASK = torch.tensor([[True] * 3 + [False] * 2, [True] * 5, [True] * 4 + [False]])


def peer(kind: type[nn.Module], stack: type[nn.Module], norm: str, activation: str) -> nn.Module:
    """A stack of torch.nn's layers with a last norm where pre-norm needs one (nn.Transformer adds it to post-norm, too)."""
    one = kind(DIM, HEADS, HIDDEN, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre", dtype=torch.float64)
    options = {} if stack is nn.TransformerDecoder else {"enable_nested_tensor": False}
    return stack(one, LAYERS, norm=nn.LayerNorm(DIM, dtype=torch.float64) if norm == "pre" else None, **options)


def stack_pairs(ours: nn.Module, theirs: nn.Module) -> list[Pair]:
    pairs = [pair for a, b in zip(ours.depth.blocks, theirs.layers, strict=True) for pair in layer(a, b)]
    return pairs if theirs.norm is None else [*pairs, *linear(ours.final, theirs.norm)]


def table_of(model: Model) -> Tensor:
    """A copy of the embedding table that gathers gradients of its own."""
    return model.embedding.weight.detach().clone().requires_grad_()


def embed(table: Tensor, tokens: Tensor) -> Tensor:
    """sqrt(d) E[token] + PE."""
    return table[tokens] * DIM**0.5 + sinusoid(tokens.shape[1], DIM)


def loss_of(logits: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    real = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
    return F.cross_entropy(logits[real], targets[real])


def same_results(model: Model, out: Output, hidden: Tensor, table: Tensor, targets: Tensor, mask: Tensor | None, pairs: list[Pair]) -> None:
    """Fails unless hidden states, logits, loss and every gradient are those of the peer's hidden states and table."""
    logits = hidden @ table.T
    real = torch.ones(targets.shape, dtype=torch.bool) if mask is None else mask
    close(out.logits[real], logits[real])
    close(out.hidden[real], hidden[real])
    loss = loss_of(logits, targets, mask)
    close(out.loss, loss)
    out.loss.backward()
    loss.backward()
    same_gradients(pairs)
    close(model.embedding.weight.grad, table.grad)


@KINDS
@sweep("masked", [False, True])
def test_encoder_decoder(norm: str, activation: str, masked: bool) -> None:
    options = {**SIZES, "norm": norm, "activation": activation, "label_smoothing": 0.0}
    model = shake(formers.create("transformer", vocab=VOCAB, **options).double())
    theirs = nn.Transformer(
        DIM, batch_first=True, dtype=torch.float64,
        custom_encoder=peer(nn.TransformerEncoderLayer, nn.TransformerEncoder, norm, activation),
        custom_decoder=peer(nn.TransformerDecoderLayer, nn.TransformerDecoder, norm, activation),
    )  # fmt: skip
    pairs = stack_pairs(model.encoder, theirs.encoder) + stack_pairs(model.stack, theirs.decoder)
    copy(pairs, theirs)
    table = table_of(model)
    source, target, targets = (torch.randint(VOCAB, (3, n)) for n in (7, 5, 5))
    source_mask, mask = (SOURCE_MASK, TARGET_MASK) if masked else (None, None)

    out = model(source, target, targets, source_mask=source_mask, mask=mask)
    ignored, after = (None, None) if not masked else (~SOURCE_MASK, ~TARGET_MASK)
    hidden = theirs(
        embed(table, source), embed(table, target),
        tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1), tgt_is_causal=True,
        src_key_padding_mask=ignored, tgt_key_padding_mask=after, memory_key_padding_mask=ignored,
    )  # fmt: skip
    same_results(model, out, hidden, table, targets, mask, pairs)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_nn_transformer_as_it_is(norm: str) -> None:
    """Its own norms, a final one behind post-norm too, and an epsilon of one's own."""
    model = formers.create("transformer", vocab=VOCAB, **SIZES, norm=norm, norm_epsilon=1e-3, final_norm=True, label_smoothing=0.0)
    shake(model.double())
    theirs = nn.Transformer(
        DIM, HEADS, LAYERS, LAYERS, HIDDEN, dropout=0.0, activation="relu", layer_norm_eps=1e-3, batch_first=True,
        norm_first=norm == "pre", dtype=torch.float64,
    )  # fmt: skip
    pairs = stack_pairs(model.encoder, theirs.encoder) + stack_pairs(model.stack, theirs.decoder)
    copy(pairs, theirs)
    table = table_of(model)
    source, target, targets = (torch.randint(VOCAB, (3, n)) for n in (7, 5, 5))
    hidden = theirs(embed(table, source), embed(table, target), tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1), tgt_is_causal=True)
    same_results(model, model(source, target, targets), hidden, table, targets, None, pairs)


@KINDS
@sweep("masked", [False, True])
def test_encoder(norm: str, activation: str, masked: bool) -> None:
    model = shake(formers.create("encoder", vocab=VOCAB, **SIZES, norm=norm, activation=activation).double())
    theirs = peer(nn.TransformerEncoderLayer, nn.TransformerEncoder, norm, activation)
    pairs = stack_pairs(model.stack, theirs)
    copy(pairs, theirs)
    table = table_of(model)
    tokens, targets = (torch.randint(VOCAB, (3, LENGTH)) for _ in range(2))
    mask = SOURCE_MASK if masked else None

    out = model(tokens, targets, mask=mask)
    hidden = theirs(embed(table, tokens), src_key_padding_mask=None if mask is None else ~mask)
    same_results(model, out, hidden, table, targets, mask, pairs)


@sweep("pattern", [Full(), Causal()])
def test_self_attention(pattern: Pattern) -> None:
    ours = shake(DotProduct().build(PLAIN, pattern).double())
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=torch.float64)
    pairs = attention(ours, theirs)
    copy(pairs, theirs)
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    y, left = ours(x, Context(Range(0, LENGTH)), None, 0)
    z, _ = theirs(x, x, x, attn_mask=~pattern.mask(LENGTH)[0], need_weights=False)
    assert left is None
    close(y, z)
    (a,), (b,) = (torch.autograd.grad(t.square().sum(), x, retain_graph=True) for t in (y, z))
    close(a, b)
    y.square().sum().backward()
    z.square().sum().backward()
    same_gradients(pairs)


def test_cross_attention() -> None:
    ours = shake(DotProduct().build_cross(PLAIN, DIM).double())
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True, dtype=torch.float64)
    pairs = attention(ours, theirs)
    copy(pairs, theirs)
    x, source = (torch.randn(3, n, DIM, dtype=torch.float64) for n in (4, 7))
    stream = Context(Range(0, 4), keep=True, source=Source(source, SOURCE_MASK))
    y, left = ours(x, stream, None, 0)
    z, _ = theirs(x, source, source, key_padding_mask=~SOURCE_MASK, need_weights=False)
    close(y, z)
    close(ours(x, Context(Range(0, 4)), left, 0)[0], z)
    y.square().sum().backward()
    z.square().sum().backward()
    same_gradients(pairs)


def test_sinusoids_are_the_papers() -> None:
    from formers.position import sinusoid as ours

    close(ours(torch.arange(300), DIM), sinusoid(300, DIM))
    model = formers.create("encoder", vocab=VOCAB, **SIZES).double()
    x = torch.zeros(1, 9, DIM, dtype=torch.float64)
    close(model.stack.position(x, Range(5, 9), 0)[0], sinusoid(14, DIM)[5:])
