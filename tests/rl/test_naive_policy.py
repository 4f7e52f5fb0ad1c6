"""A policy written as plain loops, with a memory of its own, against the rollout and the training pass, at every update.

The naive policy keeps what each layer read at every step of the run, computed with the weights of that step's rollout. It shares nothing
with the library but the weights: no cache, no mask, no state.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from helpers import close
from rl.test_rollout import SIZES, Chance, agent


def gate(join, x, y):
    """The GRU gate of one vector (dim,)."""
    w_r, w_z, w_g = join.w.chunk(3)
    u_r, u_z = join.u.chunk(2)
    r, z = torch.sigmoid(w_r @ y + u_r @ x), torch.sigmoid(w_z @ y + u_z @ x - join.bias)
    return (1 - z) * x + z * torch.tanh(w_g @ y + join.u_g @ (r * x))


def attention(block, read, heads):
    """What the last of the vectors (n, dim) that a layer has read attends to, all of them, itself among them."""
    layer, dim = block.attention, read.shape[1]
    normed = F.layer_norm(read, (dim,), block.residual_attention.norm.weight, block.residual_attention.norm.bias, 1e-5)
    w_q, w_k, w_v = layer.qkv.weight.chunk(3)
    size, found = dim // heads, []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, u, v = w_q[rows] @ normed[-1], layer.score.biases.u_bias[head, 0], layer.score.biases.v_bias[head, 0]
        scores = []
        for j in range(len(read)):
            angles = [(len(read) - 1 - j) / 10000 ** (2 * i / dim) for i in range(dim // 2)]
            r = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)
            scores.append(((q + u) @ (w_k[rows] @ normed[j]) + (q + v) @ (layer.score.r.weight[rows] @ r)) / math.sqrt(size))
        weights = torch.softmax(torch.stack(scores), 0)
        found.append(sum(weights[j] * (w_v[rows] @ normed[j]) for j in range(len(read))))
    return layer.out.weight @ torch.cat(found)


def step(model, observation, past, memory, heads):
    """Logits and value of one step; appends what each layer reads to its list in past, the steps of this episode so far."""
    x = model.embedding.into.weight @ observation + model.embedding.into.bias
    for block, read in zip(model.stack.depth.blocks, past, strict=True):
        read.append(x)
        x = gate(block.residual_attention, x, attention(block, torch.stack(read[-memory:]), heads).relu())
        norm, net = block.residual_feedforward.norm, block.feedforward
        h = F.layer_norm(x, x.shape, norm.weight, norm.bias, 1e-5)
        y = net.out.weight @ (net.into.weight @ h + net.into.bias).relu() + net.out.bias
        x = gate(block.residual_feedforward, x, y.relu())
    return model.head.out.weight @ x + model.head.out.bias, model.head.worth.weight[0] @ x + model.head.worth.bias[0]


@pytest.mark.parametrize("memory", [3, 7, 30])
def test_rollout_and_training_are_the_naive_policy(memory, monkeypatch):
    """Episodes end and are cut off anywhere; weights change between segments, and the memory is of the older ones."""
    from rl import test_rollout

    monkeypatch.setitem(test_rollout.POLICIES, "gtrxl", ("gtrxl", {**SIZES, "memory": memory}))
    loop = agent("gtrxl", Chance(3, ends=0.08, cuts=0.08), learning_rate=0.02, target_kl=None)
    copies, heads, layers = 3, SIZES["heads"], SIZES["layers"]
    pasts = [[[] for _ in range(layers)] for _ in range(copies)]
    ids = [0] * copies
    for update in range(4):
        with torch.no_grad():
            segment = loop.collector.collect(SIZES["length"], update)
            trained = loop.model(segment.observations, state=segment.state, episodes=segment.episodes)
            for row in range(copies):
                for t in range(SIZES["length"]):
                    if int(segment.episodes[row, t]) != ids[row]:
                        ids[row], pasts[row] = int(segment.episodes[row, t]), [[] for _ in range(layers)]
                    logits, value = step(loop.model, segment.observations[row, t], pasts[row], memory, heads)
                    chosen = logits.log_softmax(0)[segment.actions[row, t]]
                    close(segment.log_probs[row, t], chosen, 1e-10)
                    close(segment.values[row, t], value, 1e-10)
                    close(trained.logits[row, t].log_softmax(0)[segment.actions[row, t]], chosen, 1e-10)
                    close(trained.value[row, t], value, 1e-10)
        before = loop.model.head.out.weight.clone()
        assert loop.learner.learn(segment, update, 0.02)["ratio_error"] <= 1e-10
        assert not loop.model.head.out.weight.equal(before)
    assert max(ids) >= 3
