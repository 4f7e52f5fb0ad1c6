"""Recurrent layers against torch's modules, padded rows against the rows alone, and invalid combinations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import formers
from formers.attention import DotProduct
from formers.core import Context, Range, RecurrentMemory
from formers.memory import Carry, Recurrence
from formers.model.check import check
from formers.patterns import Causal, Full, Local
from formers.recurrent import Recurrent
from formers.recurrent.cells import RecurrentWeights, advance
from formers.recurrent.final_states import FinalStates
from formers.recurrent.layer import RecurrentLayer, run
from formers.recurrent.padded import KERNELS
from formers.score import Relative
from helpers import close, gradients, refused, sweep

DIM, LENGTH = 6, 7
TORCH = {"tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
CELLS = sweep("cell", list(TORCH))
WAYS = sweep("direction", ["forward", "both"])
# All, some, none, one.
VALID = torch.arange(LENGTH) < torch.tensor([[LENGTH], [3], [0], [1]])


def pair(cell: str, direction: str) -> tuple[RecurrentLayer, nn.RNNBase]:
    """A layer, and torch's module with the same weights."""
    layer = RecurrentLayer(DIM, Recurrent(cell=cell, direction=direction)).double()
    both = direction == "both"
    theirs = TORCH[cell](DIM, DIM // (2 if both else 1), batch_first=True, bidirectional=both).double()
    theirs.load_state_dict(layer.recurrence.state_dict())
    return layer, theirs


def last(states: Tensor | tuple[Tensor, Tensor]) -> list[Tensor]:
    """torch's last states as ours: (batch, dim), directions side by side."""
    return [torch.cat(s.unbind(0), dim=1) for s in (states if isinstance(states, tuple) else (states,))]


@CELLS
@WAYS
def test_values_states_and_gradients_are_torchs(cell: str, direction: str) -> None:
    layer, theirs = pair(cell, direction)
    x = torch.randn(4, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    context = Context(Range(0, LENGTH)).with_channels(FinalStates())
    y, left = layer(x, context, None, 0)
    wanted, states = theirs(x)
    close(y, wanted)
    assert left is None, "nobody has asked for a state"
    for mine, other in zip(context.channels[FinalStates][0], last(states), strict=True):
        close(mine, other)
    found = gradients(y, [x, *layer.parameters()])
    for slope, other in zip(found, gradients(wanted, [x, *theirs.parameters()]), strict=True):
        close(slope, other)


@CELLS
@WAYS
@sweep("unrolled", [False, True])
def test_padded_rows_end_at_their_last_token(cell: str, direction: str, unrolled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are unrolled, as for torch.compile, which cannot look into lengths; a row of no token keeps its state."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: unrolled)
        rows_end_at_their_last_token(cell, direction, run)


@pytest.mark.slow
@CELLS
@WAYS
def test_padded_rows_compile_into_one_graph(cell: str, direction: str) -> None:
    torch._dynamo.reset()
    rows_end_at_their_last_token(cell, direction, torch.compile(run, fullgraph=True, backend="aot_eager"))


def rows_end_at_their_last_token(cell: str, direction: str, through: Callable[..., Any]) -> None:
    """Fails unless padded rows are those of torch's module alone."""
    layer, theirs = pair(cell, direction)
    x = torch.randn(4, LENGTH, DIM, dtype=torch.float64)
    states = tuple(torch.randn_like(s) for s in layer.recurrence.zeros(x))
    y, ends = through(layer.recurrence, x, states, VALID)
    directions = 2 if direction == "both" else 1
    for row, count in enumerate(VALID.sum(dim=1).tolist()):
        before = tuple(torch.stack(s[row : row + 1].chunk(directions, dim=1)) for s in states)
        if not count:
            for end, old in zip(ends, states, strict=True):
                close(end[row], old[row])
            continue
        wanted, after = theirs(x[row : row + 1, :count], before if cell == "lstm" else before[0])
        close(y[row, :count], wanted[0])
        for end, other in zip(ends, last(after), strict=True):
            close(end[row], other[0])


@CELLS
def test_a_step_is_the_cell_of_torch(cell: str) -> None:
    weights = RecurrentWeights(cell, DIM, DIM).double()
    theirs = {"tanh": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}[cell](DIM, DIM).double()
    theirs.load_state_dict({name.removesuffix("_l0"): value for name, value in weights.state_dict().items()})
    x, states = torch.randn(3, DIM, dtype=torch.float64), tuple(torch.randn(3, DIM, dtype=torch.float64) for _ in range(2))
    drive = x @ weights.weight_ih_l0.T + weights.bias_ih_l0
    found = advance(cell, drive, states if cell == "lstm" else states[:1], weights.weight_hh_l0, weights.bias_hh_l0)
    wanted = theirs(x, states if cell == "lstm" else states[0])
    for mine, other in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        close(mine, other)


@CELLS
def test_a_whole_model_is_torchs_module_between_a_table_and_its_transpose(cell: str) -> None:
    model = formers.create("rnn", vocab=11, cell=cell, dim=DIM, layers=3, length=LENGTH).double()
    theirs = TORCH[cell](DIM, DIM, num_layers=3, batch_first=True).double()
    weights = {}
    for i, block in enumerate(model.stack.depth.blocks):
        weights |= {name.replace("_l0", f"_l{i}"): value for name, value in block.attention.recurrence.state_dict().items()}
    theirs.load_state_dict(weights)
    tokens = torch.randint(11, (2, LENGTH))
    table = model.embedding.weight
    wanted = theirs(table[tokens] * DIM**0.5)[0] @ table.T
    found = model(tokens).logits
    close(found, wanted)
    mine = [p for block in model.stack.depth.blocks for p in block.parameters()]
    for slope, other in zip(gradients(found, [table, *mine]), gradients(wanted, [table, *theirs.parameters()]), strict=True):
        close(slope, other)


@sweep("kind", [torch.bfloat16, torch.float32])
@CELLS
def test_half_precision_is_computed_in_more(cell: str, kind: torch.dtype) -> None:
    layer, _ = pair(cell, "forward")
    layer, x = layer.to(kind), torch.randn(2, LENGTH, DIM).to(kind)
    context = Context(Range(0, LENGTH), keep=True)
    wanted, _ = layer.double()(x.double(), context, None, 0)
    layer = layer.to(kind)
    y, left = layer(x, context, None, 0)
    assert y.dtype == kind
    close(y.double(), wanted, 1e-2 if kind == torch.bfloat16 else 1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, _ = layer(x, context, left, 0)
    cast.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_a_forget_gate_starts_open() -> None:
    weights = RecurrentWeights("lstm", 4, 8)
    total = weights.bias_ih_l0 + weights.bias_hh_l0
    close(total[8:16], torch.ones(8), 0.0)
    assert (total[:8].abs() < 1).all()


def test_a_state_of_another_cell_or_width_is_refused() -> None:
    layer, _ = pair("lstm", "forward")
    x, context = torch.randn(2, 3, DIM, dtype=torch.float64), Context(Range(0, 3))
    with refused("another model made"):
        layer(x, context, RecurrentMemory(torch.zeros(2, DIM)), 0)
    with refused("another model made"):
        layer(x, context, RecurrentMemory(torch.zeros(2, 4), torch.zeros(2, 4)), 0)


def test_what_recurrent_layers_cannot_have_is_refused() -> None:
    spec = formers.spec("rnn", vocab=11, dim=DIM, length=8)
    both = formers.spec("encoder", vocab=11, dim=7, heads=1, length=8).replace(attention=Recurrent(direction="both"))
    for wrong, words in (
        (spec.replace(pattern=Local(window=2)), ("Local", "Causal")),
        (spec.replace(pattern=Full(), memory=formers.spec("decoder", vocab=11).memory, head=both.head), ("Full", "Causal")),
        (spec.replace(attention=Recurrent(direction="both")), ("Causal", "Full")),
        (both, ("dim=7", "direction=forward")),
        (spec.replace(score=Relative()), ("Relative", "NoScore")),
        (spec.replace(memory=Recurrence(length=4)), ("Recurrence", "Carry")),
        (spec.replace(attention=DotProduct()), ("Carry", "DotProduct")),
    ):
        with refused(*words):
            check(wrong)
    check(spec.replace(pattern=Causal(), memory=Carry()))
    check(both.replace(dim=8))


def test_an_encoders_last_states_come_layer_by_layer() -> None:
    spec = formers.spec("encoder", vocab=11, dim=DIM, heads=1, layers=2, length=8).replace(attention=Recurrent(direction="both"))
    model = formers.build(spec).double().eval()
    x, context, packed = model.prepare(torch.randint(11, (4, LENGTH)), VALID, None)
    context = context.with_channels(FinalStates())
    model.stack(x, context)
    assert [[s.shape for s in states] for states in context.channels[FinalStates]] == [[(4, DIM), (4, DIM)]] * 2
    assert packed is not None
    assert all(s.requires_grad for states in context.channels[FinalStates] for s in states)
    assert all((s[2] == 0).all() for states in context.channels[FinalStates] for s in states), "a row of padding alone has nothing to tell"


@sweep("member", ["rnn", "act-rnn"])
def test_a_batch_of_no_rows_has_no_rows(member: str) -> None:
    model = formers.create(member, vocab=5, dim=8, layers=1)
    tokens, mask = torch.zeros(0, 4, dtype=torch.int64), torch.ones(0, 4, dtype=torch.bool)
    assert all(torch.isfinite(loss) for loss in model(tokens).losses.values())
    with torch.no_grad():  # where states are kept
        assert model(tokens, mask=mask).logits.shape == (0, 4, 5)


@pytest.mark.parametrize(("learning", "told"), [(True, True), (False, False)])
def test_the_kernel_is_told_whether_a_backward_pass_will_follow(learning: bool, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN keeps nothing for one unless it is told so."""
    seen = []

    def kernel(*given: object) -> object:
        seen.append(given[6])
        return torch.lstm(*given)

    monkeypatch.setitem(KERNELS, "lstm", kernel)
    with torch.set_grad_enabled(learning):
        formers.create("rnn", vocab=5, dim=8, layers=1)(torch.zeros(1, 3, dtype=torch.int64))
    assert seen == [told]
