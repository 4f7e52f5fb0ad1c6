"""Every gate against its formula, its gradients, and its known limits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import formers
from formers.residual import Gated, Residual
from formers.residual.gated import BIASES, GATES
from helpers import close, refused, sweep

DIM = 6


def built(kind, **fields):
    """A join of a gate, with norms that are not the identity."""
    join = Gated(kind=kind, **fields).build(DIM, 0.0).double().eval()
    with torch.no_grad():
        for name, parameter in join.named_parameters():
            if name != "bias":
                parameter.add_(0.3 * torch.randn_like(parameter))
    return join


def formula(kind, join, x, y):
    """The gate as the paper writes it, from matrices taken apart."""
    weights = {name: w for name, w in join.named_parameters() if not name.startswith("norm")}
    if kind == "sum":
        return x + y
    b = weights.get("bias")
    if kind == "gru":
        w_r, w_z, w_g = weights["w"].split(DIM)
        u_r, u_z = weights["u"].split(DIM)
        r = torch.sigmoid(y @ w_r.T + x @ u_r.T)
        z = torch.sigmoid(y @ w_z.T + x @ u_z.T - b)
        return (1 - z) * x + z * torch.tanh(y @ w_g.T + (r * x) @ weights["u_g"].T)
    w = weights["w"]
    if kind == "input":
        return torch.sigmoid(x @ w.T) * x + y
    if kind == "output":
        return x + torch.sigmoid(x @ w.T - b) * y
    if kind == "highway":
        s = torch.sigmoid(x @ w.T + b)
        return s * x + (1 - s) * y
    return x + torch.sigmoid(y @ w.T - b) * torch.tanh(y @ weights["u"].T)


@sweep("kind", GATES)
def test_formula(kind):
    join = built(kind)
    x, y = torch.randn(2, 2, 3, DIM, dtype=torch.float64).unbind(0)
    close(join.prenorm(x), F.layer_norm(x, (DIM,), join.norm.weight, join.norm.bias))
    close(join.merge(x, y), formula(kind, join, x, y.relu()))
    assert ("bias" in dict(join.named_parameters())) == (kind in BIASES)
    if kind in BIASES:
        assert join.bias.tolist() == [BIASES[kind]] * DIM


@sweep("kind", GATES)
def test_gradients(kind):
    join = built(kind)
    x, y = torch.randn(2, 3, DIM, dtype=torch.float64).unbind(0)
    weights = [w for name, w in join.named_parameters() if not name.startswith("norm")]
    inputs = (x.requires_grad_(), (y + 2 * y.sign()).detach().requires_grad_())  # away from the corner of the ReLU
    torch.autograd.gradcheck(lambda x, y, *_: join.merge(x, y), (*inputs, *weights))


def test_a_large_bias_is_the_identity():
    join = built("gru", bias=60.0)
    x, y = torch.randn(2, 4, DIM, dtype=torch.float64).unbind(0)
    assert join.merge(x, y).equal(x)


def test_without_weights_the_bias_alone_decides():
    join = Gated(kind="gru").build(DIM, 0.0).double()
    with torch.no_grad():
        for name in ("w", "u", "u_g"):
            getattr(join, name).zero_()
    x, y = torch.randn(2, 4, DIM, dtype=torch.float64).unbind(0)
    close(join.merge(x, y), (1 - torch.sigmoid(torch.tensor(-2.0, dtype=torch.float64))) * x)


def test_the_additive_gate_is_the_reordering_alone():
    """One block, written out: x + ReLU Attn(LN x), then x + ReLU FF(LN x), and no final norm."""
    model = formers.create("gtrxl", vocab=7, dim=16, heads=2, layers=1, gate="sum").double().eval()
    tokens = torch.randint(7, (2, 9))
    block = model.stack.depth.blocks[0]
    x = model.embedding(tokens)
    from formers.core import Context, Range

    context = Context(Range(0, 9))
    x = x + block.attention(block.residual_attention.norm(x), context, None, 0)[0].relu()
    x = x + block.feedforward(block.residual_feedforward.norm(x), context, None, 0)[0].relu()
    close(model(tokens).hidden, x)


def test_a_gated_sparse_decoder_trains():
    spec = formers.spec("sparse-transformer", vocab=11, dim=32, heads=2, layers=2, length=32, stride=4, summary=1)
    model = formers.build(spec.replace(residual=Gated(kind="output")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    row = torch.randint(11, (1, 33)).expand(4, -1)
    losses = []
    for _ in range(60):
        loss = model(row[:, :-1], row[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < 2.0 < losses[0]


def test_json_and_names():
    part = Gated(kind="output", bias=0.5)
    assert part.kind == part.gate == "output"
    assert Residual.read(part.model_dump(mode="json")) == part
    assert part.replace(kind="gru") == Gated(kind="gru", bias=0.5)


@pytest.mark.parametrize("kind", ["input", "sum"])
def test_a_bias_that_has_no_place_is_refused(kind):
    with refused(kind):
        Gated(kind=kind, bias=1.0)


def test_words_of_the_member():
    with refused("memory=0"):
        formers.spec("gtrxl", vocab=7, memory=0)
    with refused("gate=gru"):
        formers.spec("gtrxl", vocab=7, norm="post", gate="gru")
    with refused("gate"):
        formers.spec("gtrxl", vocab=7, gate="lstm")
    base = formers.spec("gtrxl", vocab=7, preset="base")
    assert (base.depth.layers, base.dim, base.heads, base.head_dim, base.memory.length) == (12, 256, 8, 64, 512)
