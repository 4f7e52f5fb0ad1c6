"""Axial positions are those of the Reformer of `transformers` with the same weights: padded rows, rows in pieces, and gradients."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.core import Range
from formers.position import Axial
from formers.position.axial import AxialModule
from helpers import close

SHAPE, DIMS, DIM = (5, 8), (6, 10), 16


def peer(ours: AxialModule) -> torch.nn.Module:
    """Their module, with our weights."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.reformer.modeling_reformer import AxialPositionEmbeddings

    config = transformers.ReformerConfig(
        hidden_size=DIM, axial_pos_shape=SHAPE, axial_pos_embds_dim=DIMS, hidden_dropout_prob=0.0, attn_layers=["local"],
        local_attn_chunk_length=4, lsh_attn_chunk_length=4,
    )  # fmt: skip
    theirs = AxialPositionEmbeddings(config).double()
    with torch.no_grad():
        theirs.weights[0].copy_(ours.row[:, None])
        theirs.weights[1].copy_(ours.column[None])
    return theirs


@pytest.fixture
def model() -> formers.Model:
    spec = formers.spec("decoder", vocab=11, dim=DIM, heads=2, layers=1, length=40)
    return formers.build(spec.replace(position=Axial(shape=SHAPE, dims=DIMS))).double()


@pytest.mark.parametrize("n", [1, 7, 8, 9, 23, 40])
def test_the_vectors_and_their_gradients_are_theirs(model: formers.Model, n: int) -> None:
    ours = model.stack.position
    theirs = peer(ours).train(n == 40)  # in training they take no other length
    x = torch.randn(2, n, DIM, dtype=torch.float64)
    found = ours(x, Range(0, n), 0) - x
    wanted = theirs(torch.arange(n).expand(2, n))
    close(found, wanted)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    close(ours.row.grad, theirs.weights[0].grad[:, 0])
    close(ours.column.grad, theirs.weights[1].grad[0])


@torch.no_grad()
def test_padded_rows_and_rows_in_pieces_have_them_where_their_tokens_stand(model: formers.Model) -> None:
    model.eval()
    theirs = peer(model.stack.position).eval()
    tokens = torch.randint(11, (2, 30))
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[1, :12] = False
    seen: list[torch.Tensor] = []
    model.stack.position.register_forward_hook(lambda module, given, out: seen.append(out - given[0]))
    whole = model(tokens).logits
    model(tokens, mask=mask)  # compacted: the row's 18 tokens come first
    state, pieces = model.initial_state(2), []
    for part in torch.split(tokens, [3, 14, 1, 12], dim=1):
        out = model(part, state=state)
        state = out.state
        pieces.append(out.logits)
    close(torch.cat(pieces, dim=1), whole)
    at = theirs(torch.arange(30).expand(2, 30))
    close(seen[0], at)
    close(seen[1][1, :18], at[1, :18])
    close(torch.cat(seen[2:], dim=1), at)
