"""Low-rank attention equals the public Linformers' with the same weights: outputs and gradients, in float64 to 1e-10.

`linformer` shares one E and one F among the heads of a layer, and slices them for shorter inputs. `linformer-pytorch` has all sharings and
the convolution, zeroes padding before it projects, and gives E and F a bias, which the paper does not have and which is taken off here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from formers.attention import LowRank
from formers.attention.lowrank import LowRankAttention
from formers.core import Context, Range, Sizes
from helpers import close, gradients, sweep

HEADS, DIM, LENGTH, RANK, WIDTH = 2, 12, 8, 4, 6
SIZES = Sizes(dim=DIM, heads=HEADS, head_dim=WIDTH, value_dim=WIDTH, length=LENGTH, depth_steps=1, dropout=0.0, attention_dropout=0.0)


@torch.no_grad()
def built(part: LowRank, q: Tensor, k: Tensor, v: Tensor, out: nn.Linear) -> LowRankAttention:
    """Our sublayer with a peer's weights; peers have no bias in q, k and v, and ours begin at 0."""
    layer = part.build(SIZES).double().eval()
    layer.q.weight.copy_(q)
    layer.condense.kv.weight.copy_(torch.cat([k, v]))
    layer.out.load_state_dict(out.state_dict())
    return layer


def compare(layer: LowRankAttention, x: Tensor, theirs: Tensor, pairs: list[tuple[Tensor, list[Tensor], Any]], real: Tensor | None) -> None:
    """Fails unless outputs and gradients agree; a pair is ours, a peer's, and what makes a gradient of theirs one of ours."""
    ours = layer(x, Context(Range(0, x.shape[1]), real), None, 0)[0]
    here = torch.ones(x.shape[:2], dtype=torch.bool) if real is None else real
    close(ours[here], theirs[here])
    found = gradients(ours[here], [x, *(mine for mine, _, _ in pairs)])
    flat = [t for _, several, _ in pairs for t in several]
    other = list(gradients(theirs[here], [x, *flat]))
    close(found[0], other.pop(0))
    for gradient, (_, several, turn) in zip(found[1:], pairs, strict=True):
        close(gradient, turn([other.pop(0) for _ in several]))


@sweep("n", [1, 5, LENGTH])
def test_linformer(n: int) -> None:
    peer = pytest.importorskip("linformer.linformer").LinformerSelfAttention(DIM, LENGTH, k=RANK, heads=HEADS).double().eval()
    layer = built(LowRank(rank=RANK, sharing="headwise"), peer.to_q.weight, peer.to_k.weight, peer.to_v.weight, peer.to_out)
    with torch.no_grad():
        layer.condense.projections.keys.copy_(peer.proj_k.T)
        layer.condense.projections.values.copy_(peer.proj_v.T)
    x = torch.randn(3, n, DIM, dtype=torch.float64, requires_grad=True)
    pairs = [
        (layer.condense.projections.keys, [peer.proj_k], lambda t: t[0].T),
        (layer.condense.projections.values, [peer.proj_v], lambda t: t[0].T),
        (layer.condense.kv.weight, [peer.to_k.weight, peer.to_v.weight], torch.cat),
        (layer.q.weight, [peer.to_q.weight], torch.cat),
    ]
    compare(layer, x, peer(x), pairs, None)


@sweep("padded", [False, True])
@sweep("projection", ["linear", "conv"])
@sweep("sharing", ["none", "headwise", "key-value", "layerwise"])
def test_linformer_pytorch(sharing: str, projection: str, padded: bool) -> None:
    package = pytest.importorskip("linformer_pytorch.linformer_pytorch")
    method = {"linear": "learnable", "conv": "convolution"}[projection]
    one = package.get_EF(LENGTH, RANK, method, WIDTH)
    theirs_say = {"key-value": "kv"}.get(sharing, sharing)
    peer = package.MHAttention(LENGTH, WIDTH, DIM, RANK, HEADS, 0.0, "C0", theirs_say, one, one, False, None, method=method).double().eval()
    for head in peer.heads:
        head.E.bias = head.F.bias = None
    weights = [torch.cat([m.weight for m in side]) for side in (peer.to_q, peer.to_k, peer.to_v)]
    layer = built(LowRank(rank=RANK, sharing=sharing, projection=projection), *weights, peer.w_o)
    # theirs are (rank, length), and (out, in, window) of a convolution
    turn = (lambda t: t) if projection == "linear" else (lambda t: t.permute(2, 1, 0))
    pairs: list[tuple[Tensor, list[Tensor], Any]] = [
        (layer.q.weight, [m.weight for m in peer.to_q], torch.cat),
        (layer.condense.kv.weight, [m.weight for side in (peer.to_k, peer.to_v) for m in side], torch.cat),
    ]
    for mine, name in zip((layer.condense.projections.keys, layer.condense.projections.values), "EF", strict=True):
        if mine is None:
            continue
        several = [getattr(head, name).weight for head in (peer.heads if sharing == "none" else peer.heads[:1])]
        gather = (lambda t: torch.stack([turn(g) for g in t])) if sharing == "none" else (lambda t: turn(t[0]))
        with torch.no_grad():
            mine.copy_(gather(several))
        pairs.append((mine, several, gather))
    x = torch.randn(3, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    # a window without real tokens is looked at by theirs and not by ours: the padding ends inside one
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [7 if projection == "conv" else 1]]) if padded else None
    compare(layer, x, peer(x, **({} if real is None else {"input_mask": real})), pairs, real)
