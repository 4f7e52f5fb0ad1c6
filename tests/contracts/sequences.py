"""Random sequences of operations on a state, each compared with a naive stream that goes through the same.

Segments are read with gradients and without, rows begin again or change places, the state is stored or moved to another type, and weights
change in between.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from contracts.cases import Violation, all_same, same
from contracts.naive_stream import Naive
from contracts.specimens import Subject
from formers import State
from formers.core.serialise import pack, unpack
from helpers import gradients


class Sequence:
    """A model with its state, and a naive stream that is to say the same."""

    def __init__(self, read: Subject, seed: int) -> None:
        self.read, self.model, self.batch = read, read.model, read.batch
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.state: State = self.model.initial_state(self.batch)
        self.naive = Naive(self.model, self.batch)
        self.done: list[str] = []
        spec = self.model.spec
        rates = (spec.dropout, spec.attention_dropout, getattr(spec.feedforward, "dropout", 0.0), getattr(spec.position, "offset", 0))
        self.draws = any(rates)
        """Whether training mode draws random numbers: then gradients are compared in evaluation mode."""

    def run(self, operations: int) -> None:
        """Does some operations, one after the other; what fails says which they were."""
        choices = [
            self.train,
            self.train,
            self.evaluate,
            self.evaluate,
            self.evaluate,
            self.reset,
            self.store,
            self.select,
            self.step,
            self.move,
        ]
        try:
            for _ in range(operations):
                operation = self.random.choice(choices)
                self.done.append(operation.__name__)
                operation()
        except Exception as error:
            raise Violation(f"after {', '.join(self.done)}: {error}") from error

    def segment(self) -> tuple[Tensor, Tensor | None]:
        """Inputs of all rows, and sometimes which of them are real; rows begin again where there is no room for more tokens."""
        spec, n = self.model.spec, self.random.randint(1, 6)
        n = n if spec.max_length is None else min(n, spec.max_length)
        if spec.max_length is not None and n + max(row.next for row in self.naive.rows) > spec.max_length:
            self.begin_again(torch.ones(self.batch, dtype=torch.bool))
        mask = torch.rand(self.batch, n) < 0.6
        mask[self.random.randrange(self.batch), self.random.randrange(n)] = True
        return self.read.input(n), mask if self.random.random() < 0.3 else None

    def train(self) -> None:
        """A segment with gradients: hidden states, and the gradients of all parameters."""
        x, mask = self.segment()
        self.model.train(not self.draws)
        out = self.model(x, state=self.state, mask=mask)
        wanted = self.naive.hidden(x, mask)
        same(out.hidden.detach(), wanted.detach(), "hidden states")
        parameters = dict(self.model.named_parameters())
        all_same(gradients(out.hidden, parameters.values()), gradients(wanted, parameters.values()), parameters, "the gradient")
        self.state = out.state

    def evaluate(self) -> None:
        """A segment without gradients."""
        x, mask = self.segment()
        self.model.eval()
        mode = self.random.choice([torch.no_grad, torch.inference_mode])
        self.done[-1] += f" in {mode.__name__}"
        with mode():
            out = self.model(x, state=self.state, mask=mask)
            same(out.hidden, self.naive.hidden(x, mask), "hidden states")
        self.state = out.state

    def reset(self) -> None:
        """Some rows begin again."""
        self.begin_again(torch.rand(self.batch) < 0.4)

    def begin_again(self, done: Tensor) -> None:
        """The rows that are marked in done (batch,) begin again."""
        self.state = self.state.reset(done)
        self.naive.reset(done)

    def store(self) -> None:
        """The state as a file has it, and back."""
        tensors: dict[str, Tensor] = {}
        packed = pack(self.state, tensors)
        self.state = unpack(packed, {name: tensor.clone() for name, tensor in tensors.items()})

    def select(self) -> None:
        """Rows in another order, one of them perhaps twice."""
        order = [self.random.randrange(self.batch) for _ in range(self.batch)]
        self.state = self.state.select(torch.tensor(order))
        self.naive.select(order)

    def step(self) -> None:
        """Other weights, as an optimiser makes them."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)

    def move(self) -> None:
        """The state in single precision, and back."""
        self.state = self.state.to(torch.float32).to(torch.float64)
        self.naive.rows = [row.change(lambda t: t.float().double()) for row in self.naive.rows]
