"""A recurrent decoder with attention to a source: Bahdanau et al. (2015), Luong et al. (2015), or without attention.

The source is h_1 ... h_n, the encoder's outputs; padding is masked. The decoder has `layers` stacked cells, with initial states from
bridge.py; s_t is the state of the top one after token t, x_t the embedded token.

e_tj = v . tanh(W s_{t-1} + U h_j)        additive (Bahdanau): computed before the cell                                           E145
e_tj = s_t . h_j                          dot (Luong): computed after the cell                                                    E146
e_tj = s_t . W h_j                        general (Luong)                                                                         E146
a_t = softmax over real j of e_tj         c_t = sum_j a_tj h_j; 0 if there is no real token                                      E147
y_t = tanh(W_c [c_t; s_t])                the output, called h~_t by Luong; s_t itself without alignment                          E148
s_t = cell([x_t; c_t], s_{t-1})           input feeding, additive: the context of this token is concatenated with its input       E149
s_t = cell([x_t; y_{t-1}], s_{t-1})       input feeding, dot and general: the last output is concatenated; y_0 = 0                E149
s_t = cell(x_t, s_{t-1})                  without input feeding, or without alignment                                             E149

All of it is one sublayer, because with input feeding the input of every token depends on the token before it, through all layers.
Without input feeding the states do not depend on the attention: torch's fused kernel computes a whole row, and all tokens attend at once.

Differences to the papers: Bahdanau's output layer is a maxout of s_{t-1}, c_t and the last word, and his initial state is computed from
the backward encoder's first state only. No linear map here has a bias, so that the initial state of a row without a source is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.multihead import Attention
from formers.core import Context, FormersError, Sizes
from formers.core.initial import draw
from formers.patterns import Causal, Pattern
from formers.recurrent.bridge import Alignment, Bridge, BridgeState
from formers.recurrent.cells import Cell, RecurrentWeights, States, advance
from formers.recurrent.layer import run
from formers.score.base import ScoreModule


class Aligned(Attention):
    """A decoder of recurrent layers with attention to a source, and optionally input feeding."""

    cell: Cell = "lstm"
    layers: PositiveInt = 1
    alignment: Alignment = "additive"
    feeding: bool = True
    """Whether the attention output is fed back into the cells (input feeding); without effect if there is no alignment."""

    @property
    def reads_source(self) -> bool:
        return True

    @property
    def carries(self) -> bool:
        return True

    @property
    def allowed_patterns(self) -> tuple[type[Pattern], ...]:
        return (Causal,)

    @property
    def fed(self) -> bool:
        """Whether the attention output is fed back into the cells."""
        return self.feeding and self.alignment != "none"

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return AlignedDecoder(sizes, self)


class AlignedDecoder(nn.Module):
    """Recurrent layers with attention to a source."""

    name = "cross"
    """The name under which an inspection records the weights: that of cross-attention."""

    def __init__(self, sizes: Sizes, part: Aligned) -> None:
        super().__init__()
        assert sizes.source is not None
        dim = sizes.dim
        self.part, self.dim, self.dropout, self.attention_dropout = part, dim, sizes.dropout, sizes.attention_dropout
        self.feeds_output = part.fed and part.alignment != "additive"
        """Whether the output of a token is fed to the next one."""
        more = 0 if not part.fed else dim if self.feeds_output else sizes.source
        self.cells = nn.ModuleList([RecurrentWeights(part.cell, dim + (0 if layer else more), dim) for layer in range(part.layers)])
        self.source = Bridge(sizes, part.cell, part.layers, part.alignment)
        if part.alignment == "additive":
            self.query = nn.Linear(dim, dim, bias=False)
            self.energy = nn.Linear(dim, 1, bias=False)
            draw(self.query.weight, sizes.initialisation)
            draw(self.energy.weight, sizes.initialisation)
        if part.alignment != "none":
            self.out = nn.Linear(sizes.source + dim, dim, bias=False)
            draw(self.out.weight, sizes.initialisation, sizes.gain)

    def forward(self, x: Tensor, context: Context, past: BridgeState | None, step: int) -> tuple[Tensor, BridgeState | None]:
        """y (batch, length, dim) for x over context.source, which is processed once and then taken from `past`."""
        before = self.state_before(x, context, past)
        y, weights, after = self.by_token(x, before, context) if self.part.fed else self.by_row(x, before, context)
        if context.watch is not None and weights is not None:
            context.watch.note(self.name, step, lambda: weights[:, None])
        return y, after.map(Tensor.detach) if context.keep else None

    def state_before(self, x: Tensor, context: Context, past: BridgeState | None) -> BridgeState:
        """The state before the tokens x: the past, or a new state from the source."""
        if past is not None:
            self.check(past)
            return past.usable(x.dtype)
        if context.source is None:
            raise FormersError("there is neither a source nor a state with one: give source.")
        begun: BridgeState = self.source(context.source)
        return replace(begun, said=torch.zeros_like(x[:, 0])) if self.feeds_output else begun

    def check(self, past: BridgeState) -> None:
        """Raises FormersError for the state of a decoder with other cells, widths or alignment."""
        aligns = self.part.alignment != "none"
        if (
            not isinstance(past, BridgeState)
            or past.states.shape[1:] != self.source.shape
            or (past.said is not None) != self.feeds_output
            or (past.values is not None) != aligns
            or (past.values is not None and past.values.shape[2] != self.out.in_features - self.dim)
        ):
            raise FormersError(
                "the state has other cells, another width or another alignment than the model: "
                "another model made it; start from initial_state(batch)."
            )

    def by_row(self, x: Tensor, before: BridgeState, context: Context) -> tuple[Tensor, Tensor | None, BridgeState]:
        """y of all tokens, their weights (batch, length, n) and the state after them, if states do not depend on the attention."""
        valid = context.valid if context.keep else None  # only the final state depends on the end of a row
        left = []
        for layer, cell in enumerate(self.cells):
            assert isinstance(cell, RecurrentWeights)
            x, states = run(cell, self.between(x, layer), before.states[:, layer].unbind(1), valid)
            left.append(torch.stack(states, dim=1))
        after = replace(before, states=torch.stack(left, dim=1))
        if self.part.alignment == "none":
            return x, None, after
        asking = x
        if self.part.alignment == "additive":
            asking = torch.cat([before.states[:, -1, :1].to(x.dtype), x[:, :-1]], dim=1)
        weights, attended = self.attend(asking, before)
        return self.output(attended, x), weights, after

    def by_token(self, x: Tensor, before: BridgeState, context: Context) -> tuple[Tensor, Tensor, BridgeState]:
        """The same with input feeding: one token after the other. Padding does not change the state of its row."""
        first = self.cells[0]
        assert isinstance(first, RecurrentWeights)
        own, fed = first.weight_ih_l0[:, : self.dim], first.weight_ih_l0[:, self.dim :]
        drives = F.linear(x, own, first.bias_ih_l0).unbind(1)  # what does not depend on the previous token is computed at once
        real = None if context.valid is None else context.valid[:, :, None].unbind(1)
        layers: list[States] = [layer.unbind(1) for layer in before.states.unbind(1)]
        said, answers, found, seen = before.said, [], [], []
        for t, drive in enumerate(drives):
            if said is None:
                weights, attended = self.attend(layers[-1][0][:, None], before)
                new = self.advance_layers(drive + F.linear(attended[:, 0], fed), layers)  # E149
            else:
                new = self.advance_layers(drive + F.linear(said, fed), layers)  # E149
                weights, attended = self.attend(new[-1][0][:, None], before)
                answers.append(self.output(attended, new[-1][0][:, None]))
            found.append((attended, new[-1][0]))
            seen.append(weights)
            here = None if real is None else real[t]
            layers = [tuple(where_real(here, a, b) for a, b in zip(*both, strict=True)) for both in zip(new, layers, strict=True)]
            said = None if said is None else where_real(here, answers[-1][:, 0], said)
        after = replace(before, states=torch.stack([torch.stack(states, dim=1) for states in layers], dim=1), said=said)
        if said is None:
            contexts, tops = zip(*found, strict=True)
            return self.output(torch.cat(contexts, dim=1), torch.stack(tops, dim=1)), torch.cat(seen, dim=1), after
        return torch.cat(answers, dim=1), torch.cat(seen, dim=1), after

    def advance_layers(self, drive: Tensor, layers: Sequence[States]) -> list[States]:
        """The states of all layers after one more token; drive is W x + b of the first cell."""
        new: list[States] = []
        for layer, (cell, states) in enumerate(zip(self.cells, layers, strict=True)):
            assert isinstance(cell, RecurrentWeights)
            if layer:
                drive = F.linear(self.between(new[-1][0], layer), cell.weight_ih_l0, cell.bias_ih_l0)
            new.append(advance(cell.cell, drive, states, cell.weight_hh_l0, cell.bias_hh_l0))
        return new

    def between(self, x: Tensor, layer: int) -> Tensor:
        """The input of a layer from the output of the one below: with dropout in training."""
        return F.dropout(x, self.dropout) if layer and self.training and self.dropout else x

    def attend(self, asking: Tensor, source: BridgeState) -> tuple[Tensor, Tensor]:
        """The weights (batch, length, n) of queries (batch, length, dim) over a source, and the contexts (batch, length, source)."""
        assert source.keys is not None
        assert source.values is not None
        if self.part.alignment == "additive":
            scores = self.energy(torch.tanh(self.query(asking)[:, :, None] + source.keys[:, None])).squeeze(3)  # E145
        else:
            scores = asking @ source.keys.transpose(1, 2)  # E146
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # autocast lowers the products
        if source.valid is None:
            weights = scores.softmax(dim=2)
        else:  # not minus infinity, which gives NaN for a row without a real token
            padding = ~source.valid[:, None]
            weights = scores.masked_fill(padding, torch.finfo(scores.dtype).min).softmax(dim=2).masked_fill(padding, 0.0)
        if self.training and self.attention_dropout:
            weights = F.dropout(weights, self.attention_dropout)
        return weights, weights.to(source.values.dtype) @ source.values  # E147

    def output(self, attended: Tensor, states: Tensor) -> Tensor:
        """The output (batch, length, dim), from the contexts and the states of the top layer."""
        return torch.tanh(self.out(torch.cat([attended, states.to(attended.dtype)], dim=2)))  # E148


def where_real(here: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """New values (batch, width) where here (batch, 1) is a real token, else the old ones."""
    return new if here is None else torch.where(here, new, old.to(new.dtype))
