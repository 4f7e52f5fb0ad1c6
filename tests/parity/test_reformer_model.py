"""`reformer` in the conventions of others is the Reformer of `transformers` with the same weights: logits and gradients, float64 to 1e-10.

LSH and local layers, axial positions, two streams that end side by side; gradients by their reversible function and by ours. Their
epsilons, of keys and of norms, are their own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import formers
from helpers import close, sweep
from parity.copying import shake

VOCAB, DIM, HEADS, WIDTH, CHUNK, LOCAL, LENGTH, SEED = 17, 12, 2, 5, 4, 8, 32, 3
THEIRS: dict[str, Any] = {
    "reach": "chunk", "across_buckets": True, "duplicates": True, "wrap": "rounds", "scaled": False, "ends": "concat", "tied": False,
    "embedding_scale": "none", "activation": "relu", "key_epsilon": 1e-6, "norm_epsilon": 1e-12,
}  # fmt: skip


def peer() -> Any:
    """The module of theirs. The tests load it, not the collection: it takes seconds."""
    return pytest.importorskip("transformers.models.reformer.modeling_reformer")


@pytest.fixture(autouse=True)
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours draws as theirs does from its seed."""

    def drawn(heads: int, width: int, rounds: int, columns: int, *keys: int) -> Tensor:
        torch.manual_seed(SEED)
        return torch.randn(heads, width, rounds, columns, dtype=torch.float64).permute(2, 0, 1, 3)

    for name in ("rotations", "fixed_rotations"):
        monkeypatch.setattr(f"formers.attention.lsh.layer.{name}", drawn)


Pairs = list[tuple[nn.Parameter, list[nn.Parameter]]]
"""A parameter of ours, and those of theirs that it is one below the other."""


def both(layers: tuple[str, ...], **options: Any) -> tuple[formers.Model, Any, Pairs]:
    """Our model, theirs with its weights, and which is which."""
    ours = formers.create(
        "reformer", vocab=VOCAB, dim=DIM, heads=HEADS, head_dim=WIDTH, layers=len(layers), hidden=20, length=LENGTH, attention=layers,
        rounds=2, chunk=CHUNK, buckets=6, local_chunk=LOCAL, shape=(4, 8), dims=(5, 7), **THEIRS, **options,
    ).double()  # fmt: skip
    shake(ours)
    config = peer().ReformerConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_attention_heads=HEADS, attention_head_size=WIDTH, feed_forward_size=20, hidden_act="relu",
        attn_layers=list(layers), is_decoder=True, num_hashes=2, num_buckets=6, hash_seed=SEED, lsh_attn_chunk_length=CHUNK,
        local_attn_chunk_length=LOCAL, local_num_chunks_after=0, axial_pos_shape=(4, 8), axial_pos_embds_dim=(5, 7),
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, lsh_attention_probs_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0, tie_word_embeddings=False,
    )  # fmt: skip
    assert config.layer_norm_eps == THEIRS["norm_epsilon"]
    theirs = peer().ReformerModelWithLMHead(config).double()
    theirs.lm_head.bias = None  # it has one, and never uses it
    body, stack = theirs.reformer, ours.stack
    tables = body.embeddings.position_embeddings.weights
    pairs: Pairs = [
        (ours.embedding.weight, [body.embeddings.word_embeddings.weight]),
        (ours.head.weight, [theirs.lm_head.decoder.weight]),
        (stack.position.row, [tables[0]]),
        (stack.position.column, [tables[1]]),
        *linear(stack.final, body.encoder.layer_norm),
    ]
    for block, layer in zip(stack.depth.blocks, body.encoder.layers, strict=True):
        inner, mine = layer.attention.self_attention, block.attention
        into = [inner.query_key, inner.value] if hasattr(mine, "qv") else [inner.query, inner.key, inner.value]
        pairs += [((mine.qv if hasattr(mine, "qv") else mine.qkv).weight, [one.weight for one in into])]
        pairs += [(mine.out.weight, [layer.attention.output.dense.weight])]
        pairs += linear(block.residual_attention.norm, layer.attention.layer_norm)
        pairs += linear(block.residual_feedforward.norm, layer.feed_forward.layer_norm)
        pairs += linear(block.feedforward.into, layer.feed_forward.dense.dense)
        pairs += linear(block.feedforward.out, layer.feed_forward.output.dense)
    assert {id(t) for _, several in pairs for t in several} == {id(p) for p in theirs.parameters()}
    assert {id(mine) for mine, _ in pairs} == {id(p) for p in ours.parameters()}
    with torch.no_grad():
        for mine, several in pairs:
            for one, part in zip(several, mine.split([one.numel() * len(mine) // mine.numel() for one in several]), strict=True):
                one.copy_(part.view_as(one))
    return ours, theirs, pairs


def linear(ours: nn.Module, theirs: nn.Module) -> Pairs:
    return [(ours.weight, [theirs.weight]), (ours.bias, [theirs.bias])]


@sweep("slices", [{}, {"ff_chunk": 5, "loss_chunk": 7}])
@sweep("layers", [("lsh",), ("lsh", "lsh", "lsh"), ("local", "lsh", "local", "lsh")])
def test_logits_and_gradients_of_a_language_model(layers: tuple[str, ...], slices: dict[str, int]) -> None:
    ours, theirs, pairs = both(layers, **slices)
    rows = torch.randint(VOCAB, (3, LENGTH + 1))
    tokens, targets = rows[:, :-1], rows[:, 1:]
    found, wanted = ours(tokens, targets=targets), theirs(tokens).logits  # both in training: only so theirs has gradients
    loss = nn.functional.cross_entropy(wanted.flatten(0, 1), targets.flatten())
    close(found.loss, loss)
    close(ours(tokens).logits, wanted)
    found.loss.backward()
    loss.backward()
    for mine, several in pairs:
        close(mine.grad, torch.cat([one.grad.reshape(-1, *mine.shape[1:]) for one in several]))


@torch.no_grad()
def test_in_evaluation_at_any_length() -> None:
    """Theirs pads itself there, and looks around its ends at padding: multiples of the chunk are what both define alike."""
    ours, theirs, _ = both(("local", "lsh"))
    ours.eval()
    theirs.eval()
    for n in (1, 3, CHUNK, 2 * LOCAL, LENGTH):
        tokens = torch.randint(VOCAB, (2, n))
        close(ours(tokens).logits, theirs(tokens, use_cache=False).logits)
