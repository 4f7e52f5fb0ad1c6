"""ACT(cell) equals a plain loop over tokens and steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from formers.layers import ACT
from helpers import close, gradients, refused, sweep

STEPS, EPSILON, PONDER = 5, 0.2, 0.3


def naive(layer: ACT, cell: nn.Module, x: Tensor, pair: bool, act: str) -> tuple[Tensor, Tensor, list[int]]:
    """y, the ponder loss, and the number of steps of each token: a row at a time, a step at a time (E40-E44)."""
    weight, bias = layer.layer.unit.weight, layer.layer.unit.bias
    rows, costs, taken = [], [], []
    for row in x:
        zero = x.new_zeros(1, cell.hidden_size)
        state: Any = (zero, zero) if pair else zero
        found = []
        for token in row:
            total, mean = x.new_zeros(()), None
            for n in range(STEPS):
                state_in = torch.cat([token, token.new_tensor([float(n == 0)])])[None]
                state = cell(state_in, state)
                both = torch.stack(state if pair else [state])  # (1 or 2, 1, hidden)
                h = torch.sigmoid(both[0, 0] @ weight[0] + bias[0])
                enough = total + h > 1 - EPSILON if act == "t2t" else total + h >= 1 - EPSILON or n == STEPS - 1
                p = 1 - total if enough else h
                if act == "t2t":
                    mean = p * both if mean is None else p * both + (1 - p) * mean
                else:
                    mean = p * both if mean is None else mean + p * both
                if enough:
                    break
                total = total + h
            costs.append(n + 1 + (1 - total if enough else 0))
            taken.append(n + 1)
            state = tuple(mean) if pair else mean[0]
            found.append(mean[0, 0])
        rows.append(torch.stack(found))
    return torch.stack(rows), PONDER * torch.stack([torch.as_tensor(c, dtype=x.dtype) for c in costs]).mean(), taken


class Own(nn.Module):
    """A user-defined cell."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = dim + 1, hidden
        self.read, self.keep = nn.Linear(dim + 1, hidden), nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.read(x) + self.keep(h))


CELLS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: nn.RNNCell(5, 6),
    "gru": lambda: nn.GRUCell(5, 6),
    "lstm": lambda: nn.LSTMCell(5, 6),
    "own": lambda: Own(4, 6),
}


@sweep(("name", "act"), [(name, act) for name in CELLS for act in ("graves", "t2t")])
def test_act_equals_a_naive_loop(name: str, act: Any) -> None:
    cell, pair = CELLS[name]().double(), name == "lstm"
    layer = ACT(cell, steps=STEPS, epsilon=EPSILON, ponder=PONDER, bias=-0.7, act=act).double()
    with torch.no_grad():
        layer.layer.unit.weight.normal_()
    x = torch.randn(3, 6, 4, dtype=torch.float64).requires_grad_()
    losses: dict[str, Tensor] = {}
    y = layer(x, losses=losses)
    wanted, cost, taken = naive(layer, cell, x, pair, act)
    assert len(set(taken)) > 1, "all tokens take as many steps: the test shows nothing"
    close(y, wanted)
    close(losses["ponder"], cost)
    inputs = [x, *layer.parameters()]
    both = torch.cat([y.flatten(), losses["ponder"][None]]), torch.cat([wanted.flatten(), cost[None]])
    for mine, theirs in zip(gradients(both[0], inputs), gradients(both[1], inputs), strict=True):
        close(mine, theirs, 1e-9)
    with torch.no_grad():
        close(layer.eval()(x), wanted.detach())  # evaluation leaves out the rows that have halted


def test_a_cell_that_breaks_its_contract_is_refused() -> None:
    class Wide(Own):
        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return torch.cat([h, h], dim=1)

    with refused("Wide", "(2, 12)", "(2, 6)"):
        ACT(Wide(4, 6))(torch.zeros(2, 3, 4))

    class Pair(Own):
        def forward(self, x: Tensor, h: Tensor) -> Any:
            return h, h

    with refused("Pair", "set pair"):
        ACT(Pair(4, 6))(torch.zeros(2, 3, 4))
