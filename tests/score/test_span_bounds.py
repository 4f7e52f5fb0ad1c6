"""Span parameters outside [0, 1]: values stay at the bounds, gradients lead back inside, no clamp after a step is needed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import formers
from formers import Model
from formers.inspect.measure.spans import spans_of
from formers.score.span import SpanScore
from helpers import close

SPAN, RAMP, HEADS = 24, 6, 3
OUTSIDE = (-0.3, 1.7, 0.4)


def model_of(*shares: float, **options: object) -> Model:
    """A decoder of one layer whose heads have these shares of the maximum span, in float64."""
    torch.manual_seed(0)
    sizes = {"vocab": 11, "dim": 12, "heads": HEADS, "layers": 1, "hidden": 16, "length": 40, "span": SPAN, "ramp": RAMP}
    model = formers.create("adaptive-span", **{**sizes, "span_penalty": 1e-2, **options}).double()
    with torch.no_grad():
        score_of(model).share.copy_(torch.tensor(shares, dtype=torch.float64))
    return model


def score_of(model: Model) -> SpanScore:
    """The score of the only layer."""
    found: SpanScore = model.stack.depth.blocks[0].attention.score
    return found


def tokens(rows: int = 2) -> Tensor:
    """The same random tokens at every call."""
    return torch.randint(11, (rows, 40), generator=torch.Generator().manual_seed(1))


def loss(model: Model) -> Tensor:
    """The whole loss, the penalty among it, on the same tokens."""
    found = model(tokens()[:, :-1], targets=tokens()[:, 1:]).loss
    assert found is not None
    return found


def slope(*shares: float) -> Tensor:
    """The gradient of the whole loss by the shares."""
    model = model_of(*shares)
    return torch.autograd.grad(loss(model), score_of(model).share)[0]


def test_inside_the_gradient_is_the_slope_of_the_loss() -> None:
    shares, step = (0.07, 0.41, 0.83), 1e-6
    found = slope(*shares)
    for head in range(HEADS):
        ends = []
        for sign in (1, -1):
            moved = [share + sign * step * (i == head) for i, share in enumerate(shares)]
            ends.append(loss(model_of(*moved)).item())
        assert found[head].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_outside_everything_is_as_at_the_bound() -> None:
    out, at = model_of(*OUTSIDE), model_of(0.0, 1.0, 0.4)
    found, wanted = (model(tokens()[:, :-1], targets=tokens()[:, 1:]) for model in (out, at))
    assert torch.equal(found.logits, wanted.logits)
    assert torch.equal(found.losses["span"], wanted.losses["span"])
    assert score_of(out).reach(0) == score_of(at).reach(0)
    assert score_of(out).reaches() == score_of(at).reaches()
    assert score_of(out).spans().tolist() == [0.0, SPAN, 0.4 * SPAN]
    drawn, same = (spans_of(model) for model in (out, at))
    assert (drawn.read, drawn.mean.tolist()) == (same.read, same.mean.tolist())
    with torch.no_grad():
        assert torch.equal(out.eval()(tokens()).logits, at.eval()(tokens()).logits)


@pytest.mark.parametrize("push", [2.0, -2.0])
def test_gradients_never_lead_further_out(push: float) -> None:
    """At a bound or beyond it, a slope passes where a descent along it leads inside, and is 0 where it leads out."""
    score = score_of(model_of(0.0, 0.0, 0.0))
    for share, out in ((-0.3, 1.0), (0.0, 1.0), (1.0, -1.0), (1.7, -1.0), (0.4, 0.0)):
        with torch.no_grad():
            score.share.fill_(share)
        found = torch.autograd.grad((push * score.spans()).sum(), score.share)[0]
        wanted = 0.0 if push * out > 0 else push * SPAN
        close(found, torch.full((HEADS,), wanted, dtype=torch.float64))


def test_the_penalty_and_the_scores_are_weighed_against_each_other_at_a_bound() -> None:
    """The gradient is bounded as a whole: where the penalty outweighs what the scores gain, a span at 0 stays."""
    light, heavy = (model_of(0.0, 0.0, 0.0, span_penalty=penalty) for penalty in (1e-9, 10.0))
    grows, stays = (torch.autograd.grad(loss(model), score_of(model).share)[0] for model in (light, heavy))
    assert (grows < 0).any(), "without a penalty some span would grow"
    assert (stays == 0).all()


@pytest.mark.parametrize(("kind", "rate"), [(torch.optim.SGD, 0.05), (torch.optim.Adam, 0.05), (torch.optim.Adagrad, 0.3)])
def test_a_loop_of_ten_lines_needs_no_other_call(kind: type[torch.optim.Optimizer], rate: float) -> None:
    """A penalty drives all spans to 0; then reading far back pays, and they grow again."""
    model = model_of(0.2, 0.5, 0.9, span_penalty=1.0)
    score, made = score_of(model), kind([score_of(model).share], lr=rate)
    low = []
    for step in range(60):
        made.zero_grad()
        out = model(tokens()[:, :-1], targets=tokens()[:, 1:])
        (out.losses["span"] if step < 40 else -out.losses["span"]).backward()
        made.step()
        low.append(out.losses["span"].item())
        assert ((score.spans() >= 0) & (score.spans() <= SPAN)).all()
    assert min(low) == 0.0
    assert low[-1] > 1.0, f"spans that have been at 0 should grow again: {low[-20:]}"
    assert (score.share > -0.5).all(), "a parameter should not wander off"
