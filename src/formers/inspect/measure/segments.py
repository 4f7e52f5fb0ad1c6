"""Which tokens a token sees when a text is read in segments, by layer, with the memory of a spec and without (Dai et al., 2019).

h~ = [SG(m) ; h]        a query sees the keys of its segment, and of the `memory` tokens before it, that the pattern allows

A token of layer l has seen what the tokens that it sees have seen in layer l - 1: without a memory the start of its segment, with one
M places more for each layer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from formers.model import Spec


class Visibility(NamedTuple):
    """Who sees whom in each layer, and what has been seen behind it; row i is of token i."""

    length: int
    """Tokens of a segment."""
    sees: Tensor
    """(layers, n, n) bool: key j is one of query i's."""
    reaches: Tensor
    """(layers + 1, n, n) bool: what token i is behind so many layers depends on token j."""


def visibility(spec: Spec, segments: int, length: int, memory: int) -> Visibility:
    """Of the heads of a spec together, over segments of so many tokens, with a memory of so many tokens between them."""
    n = segments * length
    i = torch.arange(n)
    kept = i[None] >= (i // length * length)[:, None] - memory
    heads = spec.heads
    sees = torch.stack(
        [spec.pattern.mask(n, heads if spec.pattern.at(layer).by_head else 1, layer).any(0) & kept for layer in range(spec.depth.steps)]
    )
    reaches = [torch.eye(n, dtype=torch.bool)]
    for layer in sees:
        # A residual connection carries a token itself, whether its query sees it or not.
        reaches.append(((layer | reaches[0]).float() @ reaches[-1].float()) > 0)
    return Visibility(length, sees, torch.stack(reaches))
