"""Adaptive depth against the equation, token by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from formers import Spec
from formers.attention import LSH, DotProduct
from formers.core import Context, Range, Watch
from formers.depth import Adaptive, Shared
from formers.depth.adaptive import AdaptiveBlocks
from formers.feedforward import NoFeedForward, SeparableConv
from formers.heads import MaskedLM
from formers.memory import Recurrence
from formers.model.skipping import KeyValueReuse
from formers.model.stack import Stack
from formers.patterns import Full, Local, Strided
from formers.position import Coordinate, NoPosition, PerLayer
from formers.residual import Bare, PreNorm
from formers.score import DynamicSpan, Relative
from helpers import close, refused, sweep

DEEP = Adaptive(layers=5, epsilon=0.05)
PLAIN = formers.spec("decoder", vocab=11, dim=16, heads=2, layers=1, hidden=24, length=32, norm="post").replace(depth=DEEP)
ENCODER = PLAIN.replace(pattern=Full(), head=MaskedLM())
PAIR = formers.spec("transformer", vocab=11, dim=16, heads=2, layers=1, hidden=24, length=32, dropout=0.0, label_smoothing=0.0)
PAIR = PAIR.replace(depth=DEEP, encoder=PAIR.encoder.replace(depth=DEEP))
SPECS = {
    "causal": PLAIN,
    "full": ENCODER,
    "pre": PLAIN.replace(residual=PreNorm(), position=PerLayer()),
    "local": ENCODER.replace(pattern=Local(window=3, causal=False)),
    "strided": PLAIN.replace(pattern=Strided(stride=4)),
    "relative": PLAIN.replace(position=NoPosition(), score=Relative()),
    "relative, full": ENCODER.replace(position=NoPosition(), score=Relative(clamp=4)),
    "conv": PLAIN.replace(feedforward=SeparableConv(hidden=24)),
    "conv, full": ENCODER.replace(feedforward=SeparableConv(hidden=24)),
    "hashed": PLAIN.replace(attention=LSH(chunk=2, buckets=4)),
    "spans": PLAIN.replace(score=DynamicSpan(span=9, ramp=3)),
    "memory": PLAIN.replace(position=NoPosition(), score=Relative(), memory=Recurrence(length=6)),
    "told the step": PLAIN.replace(position=Coordinate()),
    "told the step, full": ENCODER.replace(position=Coordinate(step="learned")),
    "told the step, pre": PLAIN.replace(position=Coordinate(), residual=PreNorm()),
    "told no step": PLAIN.replace(position=Coordinate(step="none")),
    "told the step, extra": ENCODER.replace(position=Coordinate(), extra=2),
    "bare": ENCODER.replace(residual=Bare(), feedforward=NoFeedForward()),
    "pair": PAIR,
}


def made(spec: Spec, dtype: torch.dtype = torch.float64) -> Any:
    """A model whose tokens halt at different steps."""
    torch.manual_seed(3)
    model = formers.build(spec).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for part in model.modules():
            if isinstance(part, AdaptiveBlocks):
                part.unit.weight.normal_(std=0.7)
                part.unit.bias.fill_(-0.5)
                if spec.position.every_step:  # the same vector in all states says too much: what they have in common counts for nothing
                    part.unit.bias.sub_(common(model, part.unit) + 1.0)
    return model


def common(model: Any, unit: torch.nn.Linear) -> Tensor:
    """The mean of what the halting unit answers, before its sigmoid and without its bias, at the first step."""
    answers: list[Tensor] = []
    hook = unit.register_forward_hook(lambda module, given, answer: answers.append(answer.mean() - module.bias))
    run(model, torch.randint(11, (8, 30)))
    hook.remove()
    return answers[0]


def run(model: Any, tokens: Tensor, **more: Any) -> Any:
    if model.spec.encoder is None:
        return model(tokens, **more)
    return model(torch.arange(10).view(1, 10).expand(len(tokens), 10), tokens, **more)


def skipping(model: Any, on: bool) -> None:
    for part in model.modules():
        if isinstance(part, AdaptiveBlocks):
            part.skipping = on


def by_hand(stack: Stack, x: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """The stack's answer over one row x (1, n, dim) and N + R (n,), every token looked at by itself."""
    depth, n = stack.depth, x.shape[1]
    assert isinstance(depth, AdaptiveBlocks)
    block, part = depth.blocks[0], depth.part
    context = Context(Range(0, n))
    states = [x[0, i] for i in range(n)]
    y = [torch.zeros_like(s) for s in states]
    total, cost, running = [torch.zeros((), dtype=x.dtype)] * n, [torch.zeros((), dtype=x.dtype)] * n, [True] * n
    for t in range(part.layers):
        entered = torch.stack(states)[None]
        if t == 0 or stack.every_step:
            entered = stack.position(entered, context.positions, t)
        new = block(entered, context, None, t)[0][0]
        for i in range(n):
            looked_at = new[i] if act == "graves" else entered[0, i]
            h = torch.sigmoid(looked_at @ depth.unit.weight[0] + depth.unit.bias[0])
            if running[i]:
                if act == "graves":
                    halts = bool(total[i] + h >= 1 - part.epsilon) or t == part.layers - 1
                else:
                    halts = bool(total[i] + h > 1 - part.epsilon)
                p = 1 - total[i] if halts else h
                y[i] = y[i] + p * new[i] if act == "graves" else (1 - p) * y[i] + p * new[i]
                cost[i] = cost[i] + 1 + (p if halts else 0)
                total[i] = total[i] if halts else total[i] + h
                running[i] = not halts
                states[i] = new[i]
            elif act == "t2t":
                states[i] = new[i]
    return stack.final(torch.stack(y)[None]), torch.stack(cost)


@sweep(
    ("name", "act"),
    [
        *((name, "graves") for name in ("causal", "full", "pre", "bare", "told the step", "told the step, full", "told the step, pre")),
        *((name, "t2t") for name in ("causal", "full", "pre", "bare", "told the step, full", "told the step, pre")),
    ],
)
def test_equals_the_loop_over_tokens(name: str, act: Any) -> None:
    model = made(SPECS[name].replace(depth=DEEP.replace(act=act, ponder=0.3)))
    tokens = torch.randint(11, (3, 9))
    lengths = (9, 5, 1)
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    out = model(tokens, targets=tokens, mask=mask)
    expected, costs = [], []
    for row, n in zip(tokens, lengths, strict=True):
        hidden, cost = by_hand(model.stack, model.embedding(row[None, :n]), act)
        expected.append(hidden[0])
        costs.append(cost)
    for i, n in enumerate(lengths):
        close(out.hidden[i, :n], expected[i])
    close(out.losses["ponder"], 0.3 * torch.cat(costs).mean())
    together = out.hidden[mask].square().sum() + out.losses["ponder"]
    apart = torch.cat(expected).square().sum() + 0.3 * torch.cat(costs).mean()
    for a, b in zip(*(torch.autograd.grad(z, list(model.stack.parameters()), allow_unused=True) for z in (together, apart)), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b)
    steps = {int(c) for c in torch.cat(costs)}
    assert len(steps) > 1, "all tokens halted at one step: the test shows nothing"


def test_a_large_bias_is_one_plain_step() -> None:
    for spec in (PLAIN, ENCODER):
        once = made(spec.replace(depth=Shared(layers=1)))
        for act in ("graves", "t2t"):
            model = made(spec.replace(depth=DEEP.replace(act=act, bias=100.0)))
            model.load_state_dict(once.state_dict(), strict=False)
            with torch.no_grad():
                model.stack.depth.unit.weight.zero_()
                model.stack.depth.unit.bias.fill_(100.0)
            tokens = torch.randint(11, (2, 7))
            assert torch.equal(model(tokens).logits, once(tokens).logits)


@sweep("name", SPECS)
@torch.no_grad()
def test_skipping_equals_masking(name: str) -> None:
    model, tokens = made(SPECS[name]), torch.randint(11, (4, 13))
    assert len(run(model, tokens, watch=(watch := Watch())) and watch.notes["ponder steps"][0].unique()) > 1, "all halt at one step"
    masks = [None, torch.arange(13) < torch.tensor([13, 1, 7, 4])[:, None]]
    for mask in masks:
        found = []
        for on in (True, False):
            skipping(model, on)
            first = run(model, tokens, targets=tokens, mask=mask)
            found.append([first])
            if model.spec.is_causal and model.spec.encoder is None:
                second = model(tokens[:, :6], state=first.state)
                found[-1] += [second, model(tokens[:, :1], state=second.state)]
        for skipped, masked in zip(*found, strict=True):
            close(skipped.logits, masked.logits)
            assert skipped.losses.keys() == masked.losses.keys()
            for term in masked.losses:
                close(skipped.losses[term], masked.losses[term])


@sweep("name", ["full", "causal"])
@torch.no_grad()
def test_what_has_halted_is_not_computed(name: str) -> None:
    model, tokens = made(SPECS[name]), torch.randint(11, (4, 40))
    steps = model.inspect(tokens).notes["ponder steps"][0]
    seen: list[int] = []
    block = model.stack.depth.blocks[0]
    block.feedforward.register_forward_hook(lambda module, given, answer: seen.append(given[0].shape[0] * given[0].shape[1]))
    model(tokens)
    assert 1 < steps.mean() < 4.5
    assert sum(seen) == int(steps.sum())


def test_no_step_is_taken_when_nobody_is_running() -> None:
    model, tokens, seen = made(ENCODER), torch.randint(11, (2, 9)), []
    with torch.no_grad():
        model.stack.depth.unit.bias.fill_(0.4)
        model.stack.depth.unit.weight.zero_()
    model.stack.depth.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    model.train()(tokens, targets=tokens)
    assert len(seen) == 2  # 0.6 and 0.6 are enough
    seen.clear()
    with torch.no_grad():
        model.eval()(tokens)
    assert len(seen) == 2


@torch.no_grad()
def test_a_later_token_may_think_longer_than_those_before_it() -> None:
    model, tokens = made(PLAIN), torch.randint(11, (3, 12))
    steps = model.inspect(tokens).notes["ponder steps"][0]
    state, later = model.initial_state(3), []
    for i in range(12):
        out = model(tokens[:, i : i + 1], state=state)
        state = out.state
        later.append(out.logits)
    close(torch.cat(later, dim=1), model(tokens).logits)
    assert (steps[:, 1:] > steps[:, :-1].cummax(dim=1).values).any(), "no token goes deeper than all before it: the test shows nothing"


def test_checkpointing_changes_nothing() -> None:
    model, tokens = made(PLAIN.replace(depth=DEEP.replace(ponder=0.1))), torch.randint(11, (2, 9))
    gradients = []
    for on in (False, True):
        model.checkpointing(on)
        model.zero_grad()
        model(tokens, targets=tokens).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        close(a, b)


def test_both_stacks_of_a_pair_ponder() -> None:
    model = made(PAIR.replace(depth=DEEP.replace(ponder=0.1), encoder=PAIR.encoder.replace(depth=DEEP.replace(ponder=0.2))))
    tokens = torch.randint(11, (2, 6))
    source = torch.randint(11, (2, 8))
    out, notes = model(source, tokens, targets=tokens), model.inspect(source, tokens).notes
    means = {name: (notes[f"{name}ponder steps"][0] + notes[f"{name}remainder"][0]).mean() for name in ("", "encoder ")}
    close(out.losses["ponder"], 0.1 * means[""])
    close(out.losses["encoder ponder"], 0.2 * means["encoder "])


def test_what_a_watch_is_shown() -> None:
    model, tokens = made(PLAIN), torch.randint(11, (2, 9))
    notes = model.inspect(tokens).notes
    steps, halting = notes["ponder steps"][0], notes["halting"]
    for t, h in enumerate(halting):
        assert torch.equal(h.isnan(), steps <= t)
    total = torch.stack([h.nan_to_num() for h in halting]).cumsum(dim=0)
    for i in range(2):
        for j in range(9):
            n = int(steps[i, j])
            assert n == 5 or total[n - 1, i, j] >= 0.95
            assert n == 1 or total[n - 2, i, j] < 0.95
            close(notes["remainder"][0][i, j], 1 - (total[n - 2, i, j] if n > 1 else torch.zeros((), dtype=torch.float64)))


NAN, INF = float("nan"), float("inf")


@sweep(
    "wrong",
    [{"epsilon": 0.0}, {"epsilon": 1.0}, {"epsilon": -0.1}, {"layers": 0}, {"ponder": -1.0}, {"act": "x"}, {"bias": NAN}, {"ponder": INF}],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with refused(next(iter(wrong))):
        Adaptive(**{"layers": 3, **wrong})


def test_unscaled_attention_skips_too() -> None:
    model, tokens = made(ENCODER.replace(attention=DotProduct(scaled=False, bias=False))), torch.randint(11, (2, 9))
    with torch.no_grad():
        found = []
        for on in (True, False):
            skipping(model, on)
            found.append(model(tokens).logits)
    close(*found)


@sweep("name", ["full", "causal", "told the step", "told the step, full"])
@torch.no_grad()
def test_keys_of_tokens_that_stay_are_made_once(name: str) -> None:
    """Behind the first step where somebody has halted, keys and values are made of those alone that took the step before."""
    model, tokens = made(SPECS[name]), torch.randint(11, (4, 40))
    wanted = model(tokens).logits
    made_of: list[int] = []
    whole = KeyValueReuse.project

    def counted(kept: KeyValueReuse, project: Callable[[Tensor], Tensor], x: Tensor, added: Callable[[Tensor], Tensor]) -> Tensor:
        before = None if kept.kv is None else kept.kv.clone()
        old = kept.kv
        found = whole(kept, lambda y: (made_of.append(y.shape[:-1].numel()), project(y))[1], x, added)
        assert old is None or torch.equal(old, before)  # nobody who has kept it sees it change
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyValueReuse, "project", counted)
        close(model(tokens).logits, wanted)
    steps = model.inspect(tokens).notes["ponder steps"][0]
    ran = [int((steps >= t).sum()) for t in range(int(steps.min()) + 1, int(steps.max()))]
    assert made_of[0] == 160
    assert (
        made_of[1:] == ran if model.spec.is_causal else all(a <= b for a, b in zip(made_of[1:], ran, strict=True))
    )  # rows that end are left out


@torch.no_grad()
def test_who_looks_at_attention_sees_all_queries_and_who_asks_for_steps_alone_does_not_stop_skipping() -> None:
    model, x = made(ENCODER), torch.randint(11, (3, 9))
    watch = Watch(only="attention")
    model(x, watch=watch)
    assert {weights.shape[2] for weights in watch.notes["attention"].values()} == {9}
    assert Watch(only=("ponder steps", "remainder")).records_only("ponder steps", "remainder")
    assert not Watch().records_only("ponder steps", "remainder")
    assert not Watch(only=("ponder steps", "halting")).records_only("ponder steps", "remainder")
