"""The epsilon in the norm of keys: every path of LSH and shared-QK attention has the same keys, q / sqrt(|q|^2 + d epsilon)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import formers
from formers.attention import LSH, SharedQK
from formers.attention.lsh import layer as lsh
from formers.attention.lsh.layer import LSHAttention
from formers.attention.shared_qk import unit_keys
from formers.core import Context, Range, Sizes
from formers.patterns import Causal
from helpers import close, gradients

HEADS, DIM, WIDTH, N = 2, 8, 4, 24
SIZES = Sizes(dim=DIM, heads=HEADS, head_dim=WIDTH, value_dim=3, length=N, depth_steps=1, dropout=0.0, attention_dropout=0.0)
EPSILON = 0.3
"""So large that leaving it out somewhere shows."""


def test_keys_are_the_equation() -> None:
    q = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    close(unit_keys(q, EPSILON), q / (q.pow(2).mean(dim=-1, keepdim=True) + EPSILON).sqrt() / WIDTH**0.5)
    close(unit_keys(q), q / q.norm(dim=-1, keepdim=True))
    zero = torch.zeros(1, WIDTH, dtype=torch.float16, requires_grad=True)
    found = unit_keys(zero, 1e-6)
    assert (found == 0).all()
    assert torch.autograd.grad(found.sum(), zero)[0].isfinite().all()


def layer_of(**options: object) -> LSHAttention:
    torch.manual_seed(0)
    layer = LSH(chunk=4, buckets=4, key_epsilon=EPSILON, **options).build(SIZES, Causal()).double().eval()
    assert isinstance(layer, LSHAttention)
    return layer


def answers(layer: LSHAttention, x: Tensor) -> list[Tensor]:
    """The output and its gradients by the input and the weights."""
    y = layer(x, Context(Range(0, N)), None, 0)[0]
    return [y, *gradients(y, [x, layer.qv.weight])]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("reach", ["bucket", "chunk"])
def test_tiles_the_fused_kernel_and_the_equation_agree(reach: str, scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(reach=reach, scaled=scaled), torch.randn(2, N, DIM, dtype=torch.float64, requires_grad=True)
    found = {"fused": answers(layer, x)}
    monkeypatch.setattr("formers.attention.lsh.paths.SHORT", 0)
    found["tiles"] = answers(layer, x)
    q, v = layer.split_all(layer.qv(x), 2)
    context = Context(Range(0, N))
    hashed = lsh.in_order(layer.hash(q, layer.draw(context, 0), context))
    y = layer.merge(layer.dense_attention(q, v, hashed, Context(Range(0, N)), 0))
    wanted = [y, *gradients(y, [x, layer.qv.weight])]
    for each in found.values():
        for one, other in zip(each, wanted, strict=True):
            close(one, other)
    other = LSH(chunk=4, buckets=4, reach=reach, scaled=scaled).build(SIZES, Causal()).double().eval()
    other.load_state_dict(layer.state_dict())
    assert not torch.allclose(other(x, Context(Range(0, N)), None, 0)[0], wanted[0], atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("part", [LSH(chunk=4, buckets=4, key_epsilon=EPSILON), SharedQK(key_epsilon=EPSILON)], ids=repr)
def test_decoding_has_the_same_keys(part: LSH | SharedQK) -> None:
    spec = formers.spec("reformer", vocab=11, dim=16, heads=2, layers=2, hidden=24, length=N, chunk=4, norm="pre")
    model = formers.build(spec.replace(attention=part)).double().eval()
    tokens = torch.randint(11, (2, N))
    whole, state, steps = model(tokens).logits, model.initial_state(2), []
    for t in range(N):
        out = model(tokens[:, t : t + 1], state=state)
        state = out.state
        steps.append(out.logits)
    close(torch.cat(steps, dim=1), whole)


def test_the_recipe_gives_it_to_both_kinds() -> None:
    spec = formers.spec("reformer", vocab=11, attention=("lsh", "full"), key_epsilon=1e-6)
    assert [part.key_epsilon for part in spec.attention.kinds] == [1e-6, 1e-6]
    assert formers.Spec(**spec.model_dump(mode="json")) == spec
