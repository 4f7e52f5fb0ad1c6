"""LSH attention equals that of `transformers` and of `reformer-pytorch` under the same rotations, in their conventions by named options.

Both look back around the ends of rounds and, unless told otherwise, see other buckets and count a pair as often as it meets. In float64 to
1e-10, values and gradients, with the peers' own epsilons: `key_epsilon` is that of `transformers`. `reformer-pytorch` takes the logarithm
of how often a pair is met in float32: where it does, and pairs are met more than once, the two agree to 1e-6.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from formers.attention import LSH
from formers.attention.lsh.layer import LSHAttention
from formers.core import Context, Range, Sizes
from formers.patterns import Causal, Full
from helpers import EXACT, close, gradients

HEADS, DIM, WIDTH, CHUNK, LENGTH, BATCH = 2, 12, 6, 4, 24, 3
SIZES = Sizes(dim=DIM, heads=HEADS, head_dim=WIDTH, value_dim=WIDTH, length=LENGTH, depth_steps=1, dropout=0.0, attention_dropout=0.0)
THEIRS: dict[str, Any] = {"reach": "chunk", "across_buckets": True, "duplicates": True, "wrap": "rounds", "chunk": CHUNK}
SEED = 5
either = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both sides"])
any_rounds = pytest.mark.parametrize("rounds", [1, 2, 3])


def built(monkeypatch: pytest.MonkeyPatch, part: LSH, causal: bool, by_head: bool) -> LSHAttention:
    """Our sublayer, with the rotations that a peer draws from a seed: for each head, or one for all."""

    def drawn(heads: int, width: int, rounds: int, columns: int, *keys: int) -> Tensor:
        torch.manual_seed(SEED)
        theirs = torch.randn(heads if by_head else 1, width, rounds, columns, dtype=torch.float64)
        return theirs.permute(2, 0, 1, 3).expand(-1, heads, -1, -1)

    for name in ("rotations", "fixed_rotations"):
        monkeypatch.setattr(f"formers.attention.lsh.layer.{name}", drawn)
    return part.build(SIZES, Causal() if causal else Full()).double().eval()


def compare(layer: LSHAttention, theirs: Any, valid: Tensor | None = None, tolerance: float = EXACT) -> None:
    """Fails unless outputs and gradients agree; theirs(x) gives the heads (batch, heads, length, width), and for which tokens."""
    x = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    ours = layer(x, Context(Range(0, LENGTH), valid), None, 0)[0]
    mixed, real = theirs(x)
    other = layer.merge(mixed)
    close(ours[real], other[real], tolerance)
    given = [x, layer.qv.weight, layer.out.weight]
    for found, wanted in zip(gradients(ours[real], given), gradients(other[real], given), strict=True):
        close(found, wanted, tolerance)


@any_rounds
@pytest.mark.parametrize("duplicates", [True, False], ids=["as often as met", "once"])
@pytest.mark.parametrize("across", [True, False], ids=["all buckets", "own bucket"])
@either
def test_reformer_pytorch(monkeypatch: pytest.MonkeyPatch, causal: bool, across: bool, duplicates: bool, rounds: int) -> None:
    """Its buckets are half as many as the paper's: one for each chunk.

    Its count of how often a pair meets leaves out meetings around the end of a round; a pair with no other counts as 1e-9, and has 1e9
    times its weight. Ours counts all of them, so that queries of the first chunk of a round, which have such, are not compared there.
    """
    package = pytest.importorskip("reformer_pytorch.reformer_pytorch")
    part = LSH(**{**THEIRS, "across_buckets": across, "duplicates": duplicates}, rounds=rounds, buckets=LENGTH // CHUNK)
    layer = built(monkeypatch, part, causal, by_head=False)
    peer = package.LSHAttention(
        bucket_size=CHUNK, n_hashes=rounds, causal=causal, allow_duplicate_attention=duplicates, attend_across_buckets=across
    )

    def theirs(x: Tensor) -> tuple[Tensor, Tensor]:
        q, v = layer.split_all(layer.qv(x), 2)
        torch.manual_seed(SEED)
        found, _, buckets = peer(q.flatten(0, 1), v.flatten(0, 1))
        place = buckets.view(BATCH, HEADS, rounds, LENGTH).argsort(dim=-1, stable=True).argsort(dim=-1)
        right = (place >= CHUNK).all(dim=2).all(dim=1) if across and not duplicates and rounds > 1 else torch.ones(BATCH, LENGTH).bool()
        assert right.sum() >= 10
        return found.unflatten(0, (BATCH, HEADS)), right

    compare(layer, theirs, tolerance=EXACT if duplicates or rounds == 1 else 1e-6)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("buckets", [6, (2, 4)], ids=str)
@any_rounds
@pytest.mark.parametrize(("causal", "look_back", "look_ahead"), [(True, 1, 0), (True, 2, 0), (False, 1, 0), (False, 1, 1)])
def test_transformers(
    monkeypatch: pytest.MonkeyPatch, causal: bool, look_back: int, look_ahead: int, rounds: int, buckets: Any, padded: bool
) -> None:
    module = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    part = LSH(**THEIRS, rounds=rounds, buckets=buckets, look_back=look_back, look_ahead=look_ahead, scaled=False, key_epsilon=1e-6)
    layer = built(monkeypatch, part, causal, by_head=True)
    config = module.ReformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_head_size=WIDTH, is_decoder=causal, num_hashes=rounds, hash_seed=SEED,
        num_buckets=list(buckets) if isinstance(buckets, tuple) else buckets, lsh_attn_chunk_length=CHUNK, lsh_num_chunks_before=look_back,
        lsh_num_chunks_after=look_ahead, lsh_attention_probs_dropout_prob=0.0, attn_layers=["lsh"],
    )  # fmt: skip
    peer = module.LSHSelfAttention(config).double().eval()
    # Theirs wraps around padding, too, and ours around tokens alone, so that a padded row is the row alone: the last chunks are not empty.
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 1], [LENGTH - CHUNK + 1]]) if padded else None

    def theirs(x: Tensor) -> tuple[Tensor, Tensor]:
        """The peer with our projections in place of its own."""
        weights = dict(zip(("query_key.weight", "value.weight"), layer.qv.weight.split(HEADS * WIDTH), strict=True))
        found = torch.func.functional_call(peer, weights, (x,), {"attention_mask": real}).hidden_states
        return found.unflatten(2, (HEADS, WIDTH)).transpose(1, 2), torch.ones(BATCH, LENGTH).bool() if real is None else real

    compare(layer, theirs, real)
