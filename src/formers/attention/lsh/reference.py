"""Which queries meet which keys by hashing, and how often: the truth that fast paths are tested against.

In each round tokens are sorted by (bucket, position) and cut into chunks; with reach "chunk" a query meets the keys of its chunk and of
those beside it, and of these, unless `across_buckets`, only the keys of its bucket. With reach "bucket" it meets all of its bucket.
Over all rounds a key may be met more than once; it counts once unless `duplicates`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from formers.attention.lsh.hashing import Hashed


class Rules(NamedTuple):
    """How far a query looks when tokens are sorted by bucket, and how it is made a key."""

    causal: bool
    chunk: int
    reach: Literal["chunk", "bucket"] = "bucket"
    duplicates: bool = False
    """Whether a key that is met in several rounds counts as often."""
    across_buckets: bool = False
    """Whether keys of other buckets in the chunks are met, too."""
    itself: Literal["alone", "always"] = "alone"
    """Whether a token looks at itself only where it meets no other."""
    look_back: int = 1
    look_ahead: int = 0
    """Chunks before and behind its own that a query looks at."""
    wrap: Literal["round", "rounds"] = "round"
    """Across buckets: whether the first chunk of a round looks back at the last one of its own or of the round before."""
    key_epsilon: float = 0.0
    """What is added to the mean square of a query before it is made a key."""


def meetings(hashed: Hashed, rules: Rules, real: Tensor | None = None) -> Tensor:
    """How often (batch, heads, n, n) each query meets each key; real (batch, n) says which are tokens."""
    buckets, order = hashed
    batch, n = buckets.shape[0], buckets.shape[3]
    real = torch.ones(batch, n, dtype=torch.bool, device=buckets.device) if real is None else real
    same = buckets[..., :, None] == buckets[..., None, :]  # (batch, heads, rounds, n, n)
    whole = rules.reach == "bucket"
    met = same.long().sum(dim=2) if whole else _by_chunks(order.argsort(dim=-1) // rules.chunk, real, rules, same)
    if not rules.duplicates:
        met = met.clamp(max=1)  # E93
    met = met * real[:, None, None, :]
    i = torch.arange(n, device=buckets.device)
    return met * (i[:, None] >= i) if rules.causal else met


def meet(buckets: Tensor, rules: Rules, real: Tensor | None = None) -> Tensor:
    """Whether (batch, heads, n, n) each query looks at each key, by whole buckets; every query looks at one at least, perhaps itself."""
    n = buckets.shape[3]
    met = buckets[:, :, 0, :, None] == buckets[:, :, 0, None, :]
    for r in range(1, buckets.shape[2]):
        met |= buckets[:, :, r, :, None] == buckets[:, :, r, None, :]
    if real is not None:
        met &= real[:, None, None, :]
    itself = torch.eye(n, dtype=torch.bool, device=buckets.device)
    if rules.causal:
        met &= torch.ones_like(itself).tril()
    if rules.itself == "always":
        return met | itself
    met &= ~itself
    return met | (itself & ~met.any(dim=-1, keepdim=True))


def _by_chunks(chunk: Tensor, real: Tensor, rules: Rules, same: Tensor) -> Tensor:
    """How often keys stand in the chunks that queries look at, given each token's chunk (batch, heads, rounds, n)."""
    rounds = chunk.shape[2]
    count = ((real.sum(dim=1) + rules.chunk - 1) // rules.chunk).clamp(min=1)[:, None, None, None]  # (batch, 1, 1, 1)
    offsets = range(-rules.look_ahead, rules.look_back + 1)
    if not rules.across_buckets:  # no round looks around its ends: nothing of the same bucket is there
        apart = chunk[..., :, None] - chunk[..., None, :]
        return (((apart >= offsets[0]) & (apart <= offsets[-1])) & same).long().sum(dim=2)
    if rules.wrap == "round":
        apart = chunk[..., :, None] - chunk[..., None, :]
        seen = torch.stack([(apart - d) % count[..., None] == 0 for d in offsets]).any(dim=0)
        return seen.long().sum(dim=2)
    met = torch.zeros_like(same[:, :, 0], dtype=torch.long)
    numbered = chunk + count * torch.arange(rounds, device=chunk.device)[:, None]  # the chunks of all rounds, one behind the other
    for r in range(rounds):
        for d in offsets:
            wanted = (numbered[:, :, r] - d) % (count[:, :, 0] * rounds)
            met += sum((wanted[..., :, None] == numbered[:, :, s, None, :]).long() for s in range(rounds))
    return met


def term(hashed: Hashed, rules: Rules, real: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What is added to the scores (batch, heads, n, n): the logarithm of how often a pair meets; little for a token itself."""
    added = meetings(hashed, rules, real).to(dtype).log()
    if rules.itself == "always":
        return added
    itself = torch.eye(added.shape[-1], dtype=torch.bool, device=added.device)
    others = (added > float("-inf")) & ~itself
    # A token that meets another does not look at itself; -1e5, as others have it, is the same but for rounding.
    return added.masked_fill(itself & others.any(dim=-1, keepdim=True), float("-inf"))
