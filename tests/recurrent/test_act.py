"""ACT of recurrent cells against a plain loop over rows, tokens and steps; against torch without halting; and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import formers
from formers.core import Context, Range, RecurrentMemory, Watch
from formers.depth.halting import begin
from formers.model.check import check
from formers.recurrent import Pondering
from formers.recurrent import act as where
from formers.recurrent.act import HaltingLayer, PonderingLayer
from formers.residual import Reversible
from helpers import close, gradients, refused

DIM, LENGTH, ROWS = 5, 4, 4
STEPPED = {"tanh": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}
CELLS = pytest.mark.parametrize("cell", list(STEPPED))
ACTS = pytest.mark.parametrize("act", ["graves", "t2t"])
VALID = torch.arange(LENGTH) < torch.tensor([[LENGTH], [2], [0], [1]])


def built(cell: str = "tanh", **options: object) -> PonderingLayer:
    """A layer whose halting depends on the state, some halting early, some late and some never."""
    part = Pondering(**{"cell": cell, "steps": 5, "epsilon": 0.2, "bias": -0.5, **options})
    torch.manual_seed(3)
    sizes = formers.spec("decoder", vocab=11, dim=DIM, heads=1).sizes
    layer = part.build(sizes, formers.patterns.Causal()).double()
    if isinstance(layer, HaltingLayer):
        nn.init.normal_(layer.unit.weight, std=3.0)
    return layer


def naive(layer: PonderingLayer, row: Tensor, act: str) -> tuple[list[Tensor], list[Tensor], list[tuple[int, Tensor]], list[list[Tensor]]]:
    """One row by Graves' text: outputs, the states behind it, (N, R) of each token, and the weights of its steps."""
    weights, part = layer.recurrence, layer.part
    cell = STEPPED[part.cell](DIM + 1, DIM).double()
    named = {name.removesuffix("_l0"): p for name, p in weights.named_parameters()}
    lstm = part.cell == "lstm"
    state, ys, spent, all_weights = [torch.zeros(DIM, dtype=torch.float64) for _ in range(1 + lstm)], [], [], []
    for x in row:
        s, total, mean, count, rest, ps = (
            state,
            torch.zeros(()).double(),
            [torch.zeros_like(state[0])] * len(state),
            0,
            torch.zeros(()).double(),
            [],
        )
        for n in range(1, part.steps + 1):
            flagged = torch.cat([x, torch.ones(1).double() if n == 1 else torch.zeros(1).double()])[None]
            before = tuple(v[None] for v in s)
            out = torch.func.functional_call(cell, named, (flagged, before if lstm else before[0]))
            s = [v[0] for v in (out if lstm else (out,))]
            h = torch.sigmoid(layer.unit.weight[0] @ s[0] + layer.unit.bias[0])
            count = n
            enough = total + h > 1 - part.epsilon if act == "t2t" else total + h >= 1 - part.epsilon or n == part.steps
            p = 1 - total if enough else h
            mean = [m + p * v if act == "graves" else (1 - p) * m + p * v for m, v in zip(mean, s, strict=True)]
            ps.append(torch.as_tensor(p))
            if enough:
                rest = torch.as_tensor(p)
                break
            total = total + h
        state = mean
        ys.append(state[0])
        spent.append((count, rest))
        all_weights.append(ps)
    return ys, state, spent, all_weights


@CELLS
@ACTS
def test_a_padded_batch_equals_the_plain_loop_row_by_row(cell: str, act: str) -> None:
    layer = built(cell, act=act, ponder=0.5)
    x = torch.randn(ROWS, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    watch = Watch()
    context = Context(Range(0, LENGTH), VALID, keep=True, watch=watch)
    y, left = layer(x, context, None, 0)
    steps, costs, wanted = watch.notes["ponder steps"][0], [], []
    for row, count in enumerate(VALID.sum(dim=1).tolist()):
        ys, state, spent, weights = naive(layer, x[row, :count], act)
        for t in range(count):
            close(y[row, t], ys[t])
            wanted.append(ys[t])
            assert steps[row, t] == spent[t][0]
            costs.append(spent[t][0] + spent[t][1])
            if act == "graves":
                close(torch.stack(weights[t]).sum(), torch.ones(()).double())
        for mine, other in zip(left.states, state, strict=True):
            close(mine[row], other.detach())
    assert (steps[~VALID] == 0).all(), "padding costs nothing"
    assert len(set(steps[VALID].tolist())) > 1, "the case must have rows that halt at different steps"
    close(context.losses["ponder"], 0.5 * torch.stack(costs).mean())
    inputs = [x, *layer.parameters()]
    whole, theirs = (
        torch.cat([y[VALID].flatten(), context.losses["ponder"][None]]),
        torch.cat([*wanted, 0.5 * torch.stack(costs).mean()[None]]),
    )
    for slope, other in zip(gradients(whole, inputs), gradients(theirs, inputs), strict=True):
        close(slope, other)


@CELLS
@ACTS
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@torch.no_grad()
def test_leaving_out_what_has_halted_changes_nothing(cell: str, act: str, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not many:
        monkeypatch.setattr(where, "ROWS", 1)
    rows = 40 if many else 6
    layer = built(cell, act=act).eval()
    x, valid = torch.randn(rows, LENGTH, DIM, dtype=torch.float64), torch.rand(rows, LENGTH).sort(dim=1, descending=True)[0] > 0.3
    computed = []
    real = layer.cell_step
    monkeypatch.setattr(layer, "cell_step", lambda drive, states, n: (computed.append(len(drive)), real(drive, states, n))[1])
    found = []
    for skipping in (True, False):
        layer.skipping = skipping
        context = Context(Range(0, LENGTH), valid, keep=True)
        y, left = layer(x, context, None, 0)
        found.append((y[valid], *left.states, context.losses["ponder"], torch.tensor(sum(computed))))
        computed.clear()
    for skipped, masked in zip(found[0][:-1], found[1][:-1], strict=True):
        close(skipped, masked)
    assert found[0][-1] < 0.9 * found[1][-1], "less is computed"


@pytest.mark.parametrize(("cell", "theirs"), [("tanh", nn.RNN), ("lstm", nn.LSTM)])
def test_without_halting_one_step_is_torchs_module_on_the_flagged_input(cell: str, theirs: type[nn.RNNBase]) -> None:
    layer = built(cell, steps=1, act="none")
    module = theirs(DIM + 1, DIM, batch_first=True).double()
    module.load_state_dict(layer.recurrence.state_dict())
    x = torch.randn(ROWS, LENGTH, DIM, dtype=torch.float64)
    found, _ = layer(x, Context(Range(0, LENGTH)), None, 0)
    wanted, _ = module(torch.cat([x, torch.ones(ROWS, LENGTH, 1).double()], dim=2))
    close(found, wanted)
    for slope, other in zip(gradients(found, layer.parameters()), gradients(wanted, module.parameters()), strict=True):
        close(slope, other)
    eager = built(cell, bias=50.0, act="graves")
    eager.recurrence.load_state_dict(layer.recurrence.state_dict())
    context = Context(Range(0, LENGTH))
    nn.init.zeros_(eager.unit.weight)
    close(eager(x, context, None, 0)[0], wanted)  # a large bias halts everybody after one step
    close(context.losses["ponder"], torch.tensor(0.01 * 2, dtype=torch.float64))


def test_without_halting_the_last_of_all_steps_counts() -> None:
    layer = built("tanh", steps=3, act="none")
    x, flag = torch.randn(1, 1, DIM, dtype=torch.float64), layer.recurrence.weight_ih_l0[:, -1]
    w, u = layer.recurrence.weight_ih_l0[:, :-1], layer.recurrence.weight_hh_l0
    bias = layer.recurrence.bias_ih_l0 + layer.recurrence.bias_hh_l0
    s = torch.tanh(x[0, 0] @ w.T + flag + bias)
    for _ in range(2):
        s = torch.tanh(x[0, 0] @ w.T + s @ u.T + bias)
    context = Context(Range(0, 1))
    close(layer(x, context, None, 0)[0][0, 0], s)
    assert not context.losses


def test_the_ponder_cost_falls_with_every_probability_but_the_last() -> None:
    h = torch.tensor([[0.2], [0.3], [0.4], [0.3], [0.9]], dtype=torch.float64, requires_grad=True)
    spent = begin(torch.ones(1, dtype=torch.bool), torch.float64)
    for n in range(5):
        _, spent = spent.step(h[n], 0.01, last=n == 4)
    assert spent.steps.item() == 4
    slopes = torch.autograd.grad(spent.cost.sum(), h)[0][:, 0]
    assert slopes.tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0]


def test_several_layers_add_their_costs_and_tell_of_themselves() -> None:
    model = formers.create("act-rnn", features=3, classes=2, layers=2, dim=DIM, steps=3, ponder=0.25).double()
    seen = model.inspect(torch.randn(2, LENGTH, 3).double())
    assert [n.shape for n in seen.notes["halting"]] == [(2, LENGTH, 3)] * 2
    out = model(torch.randn(2, LENGTH, 3).double(), targets=torch.zeros(2, LENGTH, dtype=torch.long))
    assert set(out.losses) == {"cross_entropy", "ponder"}
    spent = sum((n + r).mean() for n, r in zip(seen.notes["ponder steps"], seen.notes["remainder"], strict=True))
    close(out.losses["ponder"].detach(), 0.25 * spent)  # at the start halting does not depend on the input


def test_a_state_goes_on() -> None:
    layer = built("lstm").eval()
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    with torch.no_grad():
        whole, end = layer(x, Context(Range(0, LENGTH), keep=True), None, 0)
        first, left = layer(x[:, :1], Context(Range(0, 1), keep=True), None, 0)
        assert isinstance(left, RecurrentMemory)
        second, last = layer(x[:, 1:], Context(Range(1, 3), keep=True), left, 0)
    close(torch.cat([first, second], dim=1), whole)
    close(last.c, end.c)


def test_bad_options_are_refused() -> None:
    for options, words in (
        ({"steps": 0}, ("steps=0", "greater than 0")),
        ({"steps": 3, "epsilon": 0.0}, ("epsilon=0.0", "greater than 0")),
        ({"steps": 3, "epsilon": 1.0}, ("epsilon=1.0", "less than 1")),
        ({"steps": 3, "ponder": -0.1}, ("ponder=-0.1", "greater than or equal to 0")),
        ({"steps": 3, "act": "graph"}, ("act='graph'",)),
    ):
        with refused("Pondering", *words):
            Pondering(**options)
    with refused("act-rnn cannot take halt_epsilon=1.5"):
        formers.spec("act-rnn", vocab=11, halt_epsilon=1.5)
    with refused("features=3", "give classes"):
        formers.spec("act-rnn", features=3)
    with refused("places=2", "give classes"):
        formers.spec("act-rnn", vocab=11, places=2)
    spec = formers.spec("act-rnn", vocab=11)
    with refused("Reversible", "act=none"):
        check(spec.replace(residual=Reversible()))
