"""The pairs of LSH attention, and how often each occurs: the reference that fast implementations are tested against.

In each round tokens are sorted by (bucket, position) and split into chunks. With reach "chunk" a query sees the keys of its chunk and of
neighbouring ones; unless `across_buckets`, only those of its bucket. With reach "bucket" it sees all keys of its bucket. A key may be
seen in several rounds; it counts once unless `duplicates`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from formers.attention.lsh.hashing import Hashed


class Rules(NamedTuple):
    """Which keys a query sees when tokens are sorted by bucket, and how keys are normalised."""

    causal: bool
    chunk: int
    reach: Literal["chunk", "bucket"] = "bucket"
    duplicates: bool = False
    """Whether a key that is seen in several rounds counts that many times."""
    across_buckets: bool = False
    """Whether keys of other buckets in the same chunks are seen too."""
    itself: Literal["alone", "always"] = "alone"
    """Whether a token attends to itself only if it sees no other key ("alone"), or always."""
    look_back: int = 1
    look_ahead: int = 0
    """The number of chunks before and after its own that a query sees."""
    wrap: Literal["round", "rounds"] = "round"
    """Across buckets: whether the chunk before the first one of a round is the last one of the same round, or of the round before."""
    key_epsilon: float = 0.0
    """Added to the mean square of a query before it is normalised to a key."""


def pair_counts(hashed: Hashed, rules: Rules, real: Tensor | None = None) -> Tensor:
    """The number of times (batch, heads, n, n) that each query sees each key; real (batch, n) marks real tokens."""
    buckets, order = hashed
    batch, n = buckets.shape[0], buckets.shape[3]
    real = torch.ones(batch, n, dtype=torch.bool, device=buckets.device) if real is None else real
    if rules.reach == "bucket":
        seen = torch.zeros(*buckets.shape[:2], n, n, dtype=torch.long, device=buckets.device)
        for r in range(buckets.shape[2]):  # one at a time, to limit memory
            seen += buckets[:, :, r, :, None] == buckets[:, :, r, None, :]
    else:
        same = buckets[..., :, None] == buckets[..., None, :]  # (batch, heads, rounds, n, n)
        seen = _by_chunks(order.argsort(dim=-1) // rules.chunk, real, rules, same)
    if not rules.duplicates:
        seen = seen.clamp(max=1)  # E93
    seen = seen * real[:, None, None, :]
    i = torch.arange(n, device=buckets.device)
    return seen * (i[:, None] >= i) if rules.causal else seen


def visible_pairs(buckets: Tensor, rules: Rules, real: Tensor | None = None) -> Tensor:
    """Whether (batch, heads, n, n) each query attends to each key, with reach "bucket"; every query attends to at least one, or itself."""
    n = buckets.shape[3]
    seen = buckets[:, :, 0, :, None] == buckets[:, :, 0, None, :]
    for r in range(1, buckets.shape[2]):
        seen |= buckets[:, :, r, :, None] == buckets[:, :, r, None, :]
    if real is not None:
        seen &= real[:, None, None, :]
    itself = torch.eye(n, dtype=torch.bool, device=buckets.device)
    if rules.causal:
        seen &= torch.ones_like(itself).tril()
    if rules.itself == "always":
        return seen | itself
    seen &= ~itself
    return seen | (itself & ~seen.any(dim=-1, keepdim=True))


def _by_chunks(chunk: Tensor, real: Tensor, rules: Rules, same: Tensor) -> Tensor:
    """The number of times that each query sees each key, from each token's chunk (batch, heads, rounds, n)."""
    rounds = chunk.shape[2]
    count = ((real.sum(dim=1) + rules.chunk - 1) // rules.chunk).clamp(min=1)[:, None, None, None]  # (batch, 1, 1, 1)
    offsets = range(-rules.look_ahead, rules.look_back + 1)
    if not rules.across_buckets:  # the ends of a round are never neighbours: their buckets differ
        apart = chunk[..., :, None] - chunk[..., None, :]
        return (((apart >= offsets[0]) & (apart <= offsets[-1])) & same).long().sum(dim=2)
    if rules.wrap == "round":
        apart = chunk[..., :, None] - chunk[..., None, :]
        seen = torch.stack([(apart - d) % count[..., None] == 0 for d in offsets]).any(dim=0)
        return seen.long().sum(dim=2)
    seen = torch.zeros_like(same[:, :, 0], dtype=torch.long)
    numbered = chunk + count * torch.arange(rounds, device=chunk.device)[:, None]  # the chunks of all rounds, concatenated
    for r in range(rounds):
        for d in offsets:
            wanted = (numbered[:, :, r] - d) % (count[:, :, 0] * rounds)
            seen += sum((wanted[..., :, None] == numbered[:, :, s, None, :]).long() for s in range(rounds))
    return seen


def term(hashed: Hashed, rules: Rules, real: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The term (batch, heads, n, n) added to the scores: log of the pair counts; minus infinity for self, unless alone."""
    added = pair_counts(hashed, rules, real).to(dtype).log()
    if rules.itself == "always":
        return added
    itself = torch.eye(added.shape[-1], dtype=torch.bool, device=added.device)
    others = (added > float("-inf")) & ~itself
    # A token that sees another does not attend to itself; other implementations add -1e5, which is the same up to rounding.
    return added.masked_fill(itself & others.any(dim=-1, keepdim=True), float("-inf"))
