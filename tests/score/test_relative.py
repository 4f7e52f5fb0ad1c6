"""Relative scores of patterns that are not causal: negative distances against the four terms, pair by pair."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import formers
from formers.core import Context, ExplicitPositions, Range
from formers.patterns import Full, Local
from formers.position import NoPosition
from formers.score import ByDistance, Relative
from helpers import close, gradients, sweep

SPEC = formers.spec("encoder", vocab=11, dim=12, heads=2, layers=2, hidden=16, length=16, dropout=0.0)
SPEC = SPEC.replace(position=NoPosition(), score=Relative())


def written_out(module: nn.Module, q: Tensor, k: Tensor, clamp: int | None) -> Tensor:
    """( q.k + q.(W r) + u.k + v.(W r) ) / sqrt(d_h) of every pair of (heads, n, d_h), r of i-j from -clamp to clamp."""
    heads, n, width = q.shape
    dim = module.r.weight.shape[1]
    rows = []
    for h in range(heads):
        weight, u, v = (
            module.r.weight[width * h : width * (h + 1)], module.biases.u_bias[h, 0], module.biases.v_bias[h, 0],
        )  # fmt: skip
        for i in range(n):
            for j in range(n):
                x = i - j if clamp is None else max(-clamp, min(i - j, clamp))
                angles = [x / 10000 ** (2 * c / dim) for c in range(dim // 2)]
                r = weight @ torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=q.dtype)
                rows.append(q[h, i] @ k[h, j] + q[h, i] @ r + u @ k[h, j] + v @ r)
    return torch.stack(rows).view(heads, n, n) / math.sqrt(width)


@sweep("clamp", [None, 1, 3])
@sweep("n", [1, 2, 7])
def test_later_keys_are_told_by_negative_distances(n: int, clamp: int | None) -> None:
    torch.manual_seed(n)
    model = formers.build(SPEC.replace(score=Relative(clamp=clamp))).double()
    score = model.stack.depth.blocks[0].attention.score
    with torch.no_grad():
        for parameter in (score.biases.u_bias, score.biases.v_bias):
            parameter.normal_()
    q, k = torch.randn(2, 1, 2, n, 6, dtype=torch.float64)
    where = Range(0, n)
    changed, term = score(torch.empty(1, n, 12), q, where, Context(where), 6**-0.5, 0)
    found = changed @ k.mT * 6**-0.5 + term.tensor()
    wanted = written_out(score, q[0], k[0], clamp)[None]
    close(found, wanted)
    weights = [score.r.weight, score.biases.u_bias, score.biases.v_bias]
    draw = torch.randn_like(found)
    for one, other in zip(gradients(found * draw, weights), gradients(wanted * draw, weights), strict=True):
        close(one, other)


@sweep("pattern", [Full(), Local(window=3, causal=False)])
@torch.no_grad()
def test_an_encoder_sees_what_its_pattern_shows_it(pattern: Full | Local) -> None:
    """Changing one token changes the first layer's answers at all places that see it, on both sides, and at no others."""
    torch.manual_seed(0)
    model = formers.build(SPEC.replace(pattern=pattern, depth=SPEC.depth.replace(layers=1))).double().eval()
    x = torch.randint(11, (1, 9))
    other = x.clone()
    other[0, 4] = (x[0, 4] + 1) % 11
    moved = (model(x).logits - model(other).logits).abs().amax(dim=-1)[0] > 1e-9
    assert moved.equal(pattern.mask(9)[0][:, 4])


@torch.no_grad()
def test_a_shifted_row_is_the_row_and_padding_changes_nothing() -> None:
    torch.manual_seed(1)
    model = formers.build(SPEC).double().eval()
    x = torch.randint(11, (2, 9))
    real = torch.ones(2, 9, dtype=torch.bool)
    real[0, :3] = False
    real[1, 6:] = False
    padded = model(x, mask=real).logits
    close(padded[0, 3:], model(x[:1, 3:]).logits[0])
    close(padded[1, :6], model(x[1:, :6]).logits[0])


@torch.no_grad()
def test_one_table_serves_longer_rows_and_other_weights() -> None:
    torch.manual_seed(2)
    model = formers.build(SPEC).double().eval()
    long, short = torch.randint(11, (1, 300)), torch.randint(11, (1, 5))
    first = model(short).logits
    model(long)
    close(model(short).logits, first)
    model.stack.depth.blocks[0].attention.score.r.weight.mul_(2)
    assert not torch.allclose(model(short).logits, first)


@sweep("queries", [1, 3, 8])
@sweep("reach", [8, 11])
def test_the_term_of_the_last_keys_is_a_view_with_the_same_numbers(queries: int, reach: int) -> None:
    """Shifted without a copy where queries are the last of the keys: values and gradients as when every distance is looked up."""
    torch.manual_seed(3)
    q, table = torch.randn(2, 3, queries, 4, dtype=torch.float64), torch.randn(3, reach, 4, dtype=torch.float64)
    allowed = torch.rand(2, 1, queries, 8) < 0.7
    keys, last = Range(5, 8), Range(13 - queries, queries)
    found = []
    for positions in (keys, ExplicitPositions(keys.tensor(), keys.stop)):
        factors = [x.clone().requires_grad_() for x in (q, table)]
        term = ByDistance(*factors, None, last, positions)
        assert (term.shifted() is None) == isinstance(positions, ExplicitPositions)
        for who in (None, allowed):
            values = term.tensor(who)
            found.append((values, *torch.autograd.grad(values.nan_to_num(neginf=0.0).square().sum(), factors)))
    for one, other in zip(found[:2], found[2:], strict=True):
        for a, b in zip(one, other, strict=True):
            close(a, b)
    assert (found[1][0] == float("-inf")).logical_or(allowed.expand_as(found[1][0])).all()
    assert ByDistance(q, table[:, :7], None, last, keys).shifted() is None, "keys beyond the table are shut"
