"""`bigbird` is the BigBird of `transformers` with the same weights where all see all, and sees the same blocks where it draws the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import formers
from formers.patterns import BigBird, Full
from helpers import close, sweep
from parity.copying import Pair, linear, same_gradients, shake

VOCAB, DIM, HEADS, LAYERS, BLOCK, LENGTH = 17, 16, 4, 2, 4, 40


def peer(kind: str) -> nn.Module:
    """A BigBird of `transformers` without dropout, in float64."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BigBirdConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=3 * DIM,
        hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=LENGTH,
        attention_type=kind, block_size=BLOCK, num_random_blocks=2, attn_implementation="eager",
    )  # fmt: skip
    return transformers.BigBirdModel(config, add_pooling_layer=False).double()


@sweep("n", [1, 7, LENGTH])
def test_with_a_window_over_everything_the_stack_is_theirs(n: int) -> None:
    theirs = peer("original_full").encoder
    model = formers.create(
        "bigbird", vocab=VOCAB, dim=DIM, heads=HEADS, layers=LAYERS, hidden=3 * DIM, length=LENGTH, block=BLOCK, window=99,
        norm="post", norm_epsilon=1e-12, position="none", embedding_scale="none", dropout=0.0,
    ).double()  # fmt: skip
    shake(model)
    pairs: list[Pair] = []
    for ours, layer in zip(model.stack.depth.blocks, theirs.layer, strict=True):
        widths = [ours.attention.qkv.weight, ours.attention.qkv.bias]
        for number, name in enumerate(("query", "key", "value")):
            one = getattr(layer.attention.self, name)
            for whole, mine in zip(widths, (one.weight, one.bias), strict=True):
                with torch.no_grad():
                    mine.copy_(whole.view(3, DIM, *whole.shape[1:])[number])
        pairs += linear(ours.attention.out, layer.attention.output.dense) + linear(
            ours.residual_attention.norm, layer.attention.output.LayerNorm
        )
        pairs += linear(ours.feedforward.into, layer.intermediate.dense) + linear(ours.feedforward.out, layer.output.dense)
        pairs += linear(ours.residual_feedforward.norm, layer.output.LayerNorm)
    with torch.no_grad():
        for pair in pairs:
            pair.theirs.copy_(pair.join(list(pair.ours)))
    tokens = torch.randint(VOCAB, (3, n))
    mask = torch.arange(n) < torch.tensor([[n], [(n + 1) // 2], [1]])
    ours_hidden = model(tokens, mask=mask).hidden
    x = model.embedding(tokens).detach()
    hidden = theirs(x, attention_mask=(~mask)[:, None, None, :] * -1e30).last_hidden_state
    close(ours_hidden[mask], hidden[mask])
    weights = torch.randn_like(hidden[mask])
    (ours_hidden[mask] * weights).sum().backward()
    (hidden[mask] * weights).sum().backward()
    same_gradients(pairs)


def test_with_their_random_blocks_attention_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Window and global blocks are ours, also in the rows that they compute apart; the blocks that they draw stand for ours."""
    theirs = peer("block_sparse").train().encoder.layer[0].attention.self
    drawn: list[Tensor] = []
    draw = theirs._bigbird_block_rand_mask_with_head

    def recorded(*given: object, **named: object) -> object:
        found = draw(*given, **named)
        drawn.append(torch.tensor(np.array(found)))
        return found

    monkeypatch.setattr(theirs, "_bigbird_block_rand_mask_with_head", recorded)
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    real = torch.ones(2, LENGTH, dtype=torch.float64)
    transformers = pytest.importorskip("transformers")
    blocked, band, from_mask, to_mask = transformers.BigBirdModel.create_masks_for_block_sparse_attn(real, BLOCK)
    wanted = theirs(x, band_mask=band, from_mask=from_mask, to_mask=to_mask, from_blocked_mask=blocked, to_blocked_mask=blocked)[0]

    count = LENGTH // BLOCK
    seen = BigBird(block=1, random_blocks=0).mask(count, HEADS)
    for head, rows in enumerate(drawn[0]):
        for a, some in enumerate(rows.tolist(), 1):
            assert len(set(some)) == 2
            assert not seen[head, a, some].any(), "what they draw is neither near nor global"
            seen[head, a, some] = True
    pairs = seen.repeat_interleave(BLOCK, dim=1).repeat_interleave(BLOCK, dim=2)
    q, k, v = (m(x).view(2, LENGTH, HEADS, DIM // HEADS).transpose(1, 2) for m in (theirs.query, theirs.key, theirs.value))
    found = formers.attend(q, k, v, Full(), bias=torch.zeros(pairs.shape, dtype=torch.float64).masked_fill(~pairs, float("-inf")))
    close(found.transpose(1, 2).reshape(wanted.shape), wanted)
