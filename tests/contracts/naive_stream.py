"""A stack that reads streams one row at a time, from the definition: what states are compared with.

What is kept of the past is a Python list of tokens for every row and depth step. With a memory, a token is what the layer was given, and
its keys and values are made with the weights as they are now. Without one, it is its keys and values as they were computed. Either way it
is a constant for the gradient. Attention is the full matrix of weights; nothing of the model's state code is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers import Model, Spec
from formers.attention import DotProduct
from formers.core import Range
from formers.depth import Adaptive
from formers.feedforward import SeparableConv
from formers.residual import Reversible
from formers.score.relative import RelativeScore
from formers.score.span import DynamicSpanScore, FixedSpanScore, SpanScore


@dataclass
class Row:
    """What one row has read: the position of its next token, and by depth step the tokens that are kept, with their positions."""

    next: int = 0
    kept: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)

    def copy(self) -> Row:
        return Row(self.next, {step: list(tokens) for step, tokens in self.kept.items()})

    def change(self, by: Callable[[Tensor], Tensor]) -> Row:
        """The row with each of its tensors changed."""
        return Row(self.next, {step: [(where, tuple(map(by, token))) for where, token in tokens] for step, tokens in self.kept.items()})


def has_naive(spec: Spec) -> bool:
    """Whether a naive stream can say what a model of a spec computes."""
    plain = isinstance(spec.attention, DotProduct) and not isinstance(spec.feedforward, SeparableConv)
    plain = plain and spec.labels is None
    return plain and spec.is_causal and spec.encoder is None and getattr(spec.depth, "act", "graves") == "graves"


class Naive:
    """Reads segments with the weights of a model, and remembers them by itself."""

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.spec = model, model.spec
        self.limit = self.spec.memory.limit
        self.rows = [self.row() for _ in range(batch)]
        self.shares: dict[int, Tensor] = {}
        """By depth step, the shares of the largest span that heads look back over in this segment."""

    def row(self) -> Row:
        """A row that has read nothing; its memory may begin with zeros, at the positions before its first token."""
        count = self.spec.memory.origin
        zeros = [(where, (torch.zeros(self.spec.dim, dtype=torch.float64),)) for where in range(count)]
        return Row(count, {step: list(zeros) for step in range(self.spec.depth.steps)})

    def hidden(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The hidden states (batch, length, width) of a segment, 0 at padding; the rows remember it."""
        rows = []
        blocks = self.model.stack.depth.blocks
        scores = {t: blocks[t % len(blocks)].attention.score for t in range(self.spec.depth.steps)}
        self.shares = {t: bounded(score.share) for t, score in scores.items() if isinstance(score, SpanScore)}
        for row, inputs, real in zip(self.rows, x, torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask, strict=True):
            made = self.segment(row, inputs[real]) if real.any() else torch.zeros(0, self.spec.width, dtype=torch.float64)
            rows.append(torch.zeros(len(real), self.spec.width, dtype=torch.float64).index_copy(0, real.nonzero()[:, 0], made))
        return torch.stack(rows)

    def segment(self, row: Row, inputs: Tensor) -> Tensor:
        """The hidden states (n, width) of the real tokens, facts or vectors of one row."""
        stack, places = self.model.stack, Range(row.next, len(inputs))
        x = self.model.embedding(inputs[None], places)[0]
        blocks = stack.depth.blocks

        def enter(x: Tensor, t: int) -> Tensor:
            return stack.position(x[None], places, t)[0] if t == 0 or stack.every_step else x

        def block(x: Tensor, t: int) -> Tensor:
            for join, sublayer in self.sublayers(blocks[t % len(blocks)], row, t):
                x = join.merge(x, sublayer(x))
            return x

        if isinstance(self.spec.residual, Reversible):
            first = second = enter(x, 0)
            for t in range(self.spec.depth.steps):
                for _, sublayer in self.sublayers(blocks[t % len(blocks)], row, t):
                    first, second = second, first + sublayer(second)
            x = self.spec.residual.end(first, second)
        elif isinstance(self.spec.depth, Adaptive):
            x = self.halting(x, enter, block)
        else:
            for t in range(self.spec.depth.steps):
                x = block(enter(x, t), t)
        row.next += len(inputs)
        return stack.final(x)

    def sublayers(self, block: nn.Module, row: Row, t: int) -> list[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
        """Attention and the transition of a block, each with its join."""
        around = block.residual_attention
        found = [(around, lambda x: self.attention(block.attention, around, row, x, t))]
        if "feedforward" in block._modules:
            after = block.residual_feedforward
            found.append((after, lambda x: block.feedforward(after.prenorm(x)[None], None, None, t)[0][0]))
        return found

    def halting(self, x: Tensor, enter: Callable[[Tensor, int], Tensor], block: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Adaptive depth, token by token: a sum of the states of the steps before a token halts."""
        depth, steps = self.spec.depth, self.spec.depth.steps
        state, total = x, [x.new_zeros(()) for _ in x]
        running, y = [True] * len(x), [torch.zeros_like(x[0]) for _ in x]
        for t in range(steps):
            new = block(enter(state, t), t)
            h = torch.sigmoid(self.model.stack.depth.unit(new))[:, 0]
            states = list(state)
            for i in range(len(x)):
                if running[i]:
                    halts = t == steps - 1 or float((total[i] + h[i]).detach()) >= 1 - depth.epsilon
                    y[i] = y[i] + (1 - total[i] if halts else h[i]) * new[i]
                    total[i], running[i], states[i] = total[i] + h[i], not halts, new[i]
            state = torch.stack(states)
        return torch.stack(y)

    def attention(self, module: nn.Module, join: nn.Module, row: Row, x: Tensor, t: int) -> Tensor:
        """Attention of x (n, dim) over what is kept and itself; x is remembered."""
        sizes, entered = module.sizes, join.prenorm(x)
        own, wide = sizes.heads * sizes.head_dim, sizes.heads * sizes.value_dim
        weights = module.qkv.weight.split([own, own, wide])
        biases = [None] * 3 if module.qkv.bias is None else module.qkv.bias.split([own, own, wide])
        q, k, v = (F.linear(entered, w, b) for w, b in zip(weights, biases, strict=True))
        past = row.kept.get(t, [])
        if past and self.limit is not None:
            states = join.prenorm(torch.stack([token[0] for _, token in past]))
            k = torch.cat([F.linear(states, weights[1], biases[1]), k])
            v = torch.cat([F.linear(states, weights[2], biases[2]), v])
        elif past:
            k = torch.cat([torch.stack([token[0] for _, token in past]), k])
            v = torch.cat([torch.stack([token[1] for _, token in past]), v])
        i = row.next + torch.arange(len(x))
        j = torch.cat([torch.tensor([where for where, _ in past], dtype=torch.int64), i])
        heads = []
        for head in range(sizes.heads):
            narrow, broad = (
                slice(head * sizes.head_dim, (head + 1) * sizes.head_dim),
                slice(head * sizes.value_dim, (head + 1) * sizes.value_dim),
            )
            z = self.shares[t][head] if t in self.shares else None
            scores, shut = score(module.score, head, q[:, narrow] * module.scale, k[:, narrow], i[:, None] - j, entered, module.scale, z)
            open_ = self.spec.pattern.at(t).allows(i[:, None], j[None], head) & ~shut
            heads.append(softmax(scores, open_) @ v[:, broad])
        new = [(int(where), (state.detach(),)) for where, state in zip(i, x, strict=True)]
        if self.limit is None:
            new = [(int(w), (a.detach(), b.detach())) for w, a, b in zip(i, k[len(past) :], v[len(past) :], strict=True)]
        kept = [*past, *new]
        row.kept[t] = kept if self.limit is None else kept[max(0, len(kept) - self.limit) :]
        return module.out(torch.cat(heads, dim=-1))

    def reset(self, done: Tensor) -> None:
        """Lets some rows begin again."""
        self.rows = [self.row() if gone else row for row, gone in zip(self.rows, done.tolist(), strict=True)]

    def select(self, order: list[int]) -> None:
        """Goes on with these rows."""
        self.rows = [self.rows[row].copy() for row in order]


def bounded(share: Tensor) -> Tensor:
    """The shares (heads,) of a layer within [0, 1]; where a descent would lead further out, the whole gradient of a share is 0."""
    inside = share + (share.clamp(0.0, 1.0) - share).detach()
    if inside.requires_grad:
        inside.register_hook(lambda g: torch.where(((share <= 0) & (g > 0)) | ((share >= 1) & (g < 0)), 0.0, g))
    return inside


def score(
    module: nn.Module | None, head: int, q: Tensor, k: Tensor, back: Tensor, x: Tensor, scale: float, share: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The scores (n, m) of the scaled queries q of a head, and which are shut; `back` (n, m) is how far back a key is from a query.

    x: what the layer was given; share: of the largest span, of a head that learns its span.
    """
    shut = torch.zeros_like(back, dtype=torch.bool)
    if module is None:
        return q @ k.T, shut
    if isinstance(module, RelativeScore):
        u, v, width = module.biases.u_bias[head, 0] * scale, module.biases.v_bias[head, 0] * scale, q.shape[1]
        far = back if module.clamp is None else back.clamp(-module.clamp, module.clamp)
        dim = module.r.weight.shape[1]
        angle = far[..., None] / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        r = torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :dim] @ module.r.weight[head * width : (head + 1) * width].T
        return (q + u) @ k.T + torch.einsum("nd,nmd->nm", q + v, r), shut
    assert isinstance(module, FixedSpanScore)
    keys = F.pad(module.position.position_keys, (0, 0, 1, 0))
    scores = q @ k.T + torch.einsum("nd,nmd->nm", q, keys[back.clamp(0, module.span)])
    shut = back > module.span
    if isinstance(module, SpanScore | DynamicSpanScore):
        z = torch.sigmoid(module.share(x)[:, head, None]) if share is None else share
        soft = ((module.span * z + (module.ramp - back)) / module.ramp).clamp(0.0, 1.0)
        shut = shut | (soft == 0)
        scores = scores + soft.masked_fill(shut, 1.0).log()
    return scores, shut


def softmax(scores: Tensor, open_: Tensor) -> Tensor:
    """Weights (n, m) over what is open; 0 where nothing is."""
    some = open_.any(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(~open_, -math.inf).masked_fill(~some, 0.0), dim=-1) * some
