"""`decoder` is GPT-2 with the same weights: logits, loss, every gradient, and cached decoding against GPT-2's own cache."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import formers
from formers import Model
from helpers import close
from parity.copying import Pair, copy, linear, same_gradients, shake

VOCAB, DIM, HEADS, LAYERS, LENGTH, PLACES = 17, 16, 4, 2, 9, 24


@pytest.fixture
def both() -> tuple[Model, torch.nn.Module, list[Pair]]:
    """Our decoder, a random GPT-2 with its weights, and which is which."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=PLACES, n_embd=DIM, n_layer=LAYERS, n_head=HEADS, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).double()
    model = formers.create(
        "decoder", vocab=VOCAB, dim=DIM, heads=HEADS, layers=LAYERS, hidden=4 * DIM, length=PLACES,
        position="learned", activation="gelu-tanh", embedding_scale="none", norm="pre", dropout=0.0,
    ).double()  # fmt: skip
    body = theirs.transformer
    pairs = [Pair([model.embedding.weight], body.wte.weight), Pair([model.stack.position.table], body.wpe.weight)]
    for ours, block in zip(model.stack.depth.blocks, body.h, strict=True):
        pairs += linear(ours.residual_attention.norm, block.ln_1) + linear(ours.residual_feedforward.norm, block.ln_2)
        pairs += linear(ours.attention.qkv, block.attn.c_attn, True) + linear(ours.attention.out, block.attn.c_proj, True)
        pairs += linear(ours.feedforward.into, block.mlp.c_fc, True) + linear(ours.feedforward.out, block.mlp.c_proj, True)
    pairs += linear(model.stack.final, body.ln_f)
    shake(model)
    copy(pairs, theirs)
    return model, theirs, pairs


def test_logits_loss_and_gradients(both: tuple[Model, torch.nn.Module, list[Pair]]) -> None:
    model, theirs, pairs = both
    tokens = torch.randint(VOCAB, (3, LENGTH + 1))
    x, targets = tokens[:, :-1], tokens[:, 1:]
    out, logits = model(x, targets), theirs(x).logits
    close(out.logits, logits)
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
    close(out.loss, loss)
    close(out.loss.detach().float(), theirs(tokens, labels=tokens).loss.detach().float(), 1e-6)  # it rounds its loss to float32
    out.loss.backward()
    loss.backward()
    same_gradients(pairs)
    assert model.parameter_count() == sum(p.numel() for p in theirs.parameters())


@torch.no_grad()
def test_cached_decoding(both: tuple[Model, torch.nn.Module, list[Pair]]) -> None:
    model, theirs, _ = both
    model.eval()
    theirs.eval()
    tokens = torch.randint(VOCAB, (2, PLACES))
    ours, other = model(tokens[:, :5]), theirs(tokens[:, :5], use_cache=True)
    close(ours.logits, other.logits)
    for t in range(5, PLACES):
        ours = model(tokens[:, t : t + 1], state=ours.state)
        other = theirs(tokens[:, t : t + 1], past_key_values=other.past_key_values, use_cache=True)
        close(ours.logits, other.logits)
