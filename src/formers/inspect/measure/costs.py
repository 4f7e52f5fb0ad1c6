"""The costs of a model, measured by running its code on meta tensors, which have a shape and no data.

Nothing is computed or allocated, so a length of 32,768 takes as long as one of 128; and because the code itself
runs, the figures match it. FLOPs are those of matrix products, two per multiply-add; attention is
counted over every pair of the queries and keys that an executor is given. Memory is that of the tensors that live at once, in
float32, as the CPU's kernels make them; what a kernel needs inside is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from formers.attention import LSH, Attention
from formers.attention.attend import Verdict
from formers.attention.multihead import OTHER_DEVICES
from formers.core import FormersError, Sizes, State, Watch
from formers.core.content import fixed_weights
from formers.core.live import Live
from formers.heads import NoHead
from formers.inspect.measure.counting import by_operation, counting
from formers.inspect.measure.parameters import part_of
from formers.model import Output, Spec, build, evaluating
from formers.training.config import Settings
from formers.training.optim import optimizer

SCORES = "scores"
"""How the name of a part ends that compares queries with keys and mixes values: what grows with the length."""
ROWS, PAIRS = 256, 1 << 23
"""Queries whose keys are counted to know how many pairs a pattern allows, and of how many pairs, at most."""

Layers = Mapping[str, Mapping[int, tuple[Verdict, ...]]]
"""By kind of attention and depth step: what every executor has to do with it."""
OtherDevices = Mapping[str, Mapping[int, Callable[[Callable[[Tensor], Tensor]], tuple[Verdict, ...]]]]
"""The same as functions, of tensors that are moved to another device."""
NOTED = ("executors", OTHER_DEVICES)


class PassCost(NamedTuple):
    """One pass through a model: its FLOPs by part, the torch operations that attention over pairs ran as, and the executors."""

    flops: dict[str, int]
    kernels: tuple[str, ...]
    executors: Layers
    other_devices: OtherDevices

    @property
    def total(self) -> int:
        """All of its FLOPs."""
        return sum(self.flops.values())

    @property
    def scores(self) -> int:
        """The FLOPs of attention over pairs."""
        return sum(count for part, count in self.flops.items() if part.endswith(SCORES))


class Training(NamedTuple):
    """A forward pass in training mode, and the backward pass after it."""

    forward: PassCost
    total: int
    """FLOPs of both."""
    activations: int
    """Bytes that the forward pass keeps for the backward pass."""
    peak: int
    """Bytes that live at once, at most, beside weights and optimiser: activations, temporaries, and gradients as they come."""


class Cost(NamedTuple):
    """What a batch of rows of a length costs; of an encoder-decoder, a source and a target of that length."""

    length: int
    batch: int
    pairs: float
    """The share of the pairs of a row that the pattern allows, over layers and heads."""
    forward: PassCost
    """A forward pass in evaluation."""
    training: Training | None
    """A forward and a backward pass; None for a model without a loss."""
    decoding: PassCost | None
    """One more token for each row, through the state; None where the model does not continue, or not so far."""
    state: int | None
    """Bytes of what a continuation needs after `length` tokens."""
    held: int | None
    """Bytes of the buffers that it stands in once it grows: they have room to spare."""


class Costs:
    """The costs of a spec's model for rows of any length."""

    def __init__(self, spec: Spec, batch: int = 1) -> None:
        self.spec, self.batch = spec, batch
        self.fake = FakeTensorMode()
        with self.fake:
            self.model = build(spec)
            weights = list(self.model.parameters())
            adam = optimizer(self.model, Settings(steps=1))
            for weight in weights:
                weight.grad = torch.zeros_like(weight)
            adam.step()
        self.weights = _bytes([*weights, *self.model.buffers()])
        self.gradients = _bytes(weights)
        self.optimizer = _bytes([value for values in adam.state.values() for value in values.values()])

    def at(self, length: int) -> Cost:
        """What rows of a length cost; a length that the model cannot read is refused."""
        with self.fake, fixed_weights():  # as in a generation
            inputs, targets = example(self.spec, self.batch, length)
            forward, out = self._pass(inputs)
            decoding = state = held = None
            if out.state is not None:
                state = _bytes(_tensors(out.state))
                decoding, held = self._decode(out.state)
            training = None if targets is None else self._train(inputs, targets)
        return Cost(length, self.batch, allowed_share(self.spec, length), forward, training, decoding, state, held)

    def forward(self, length: int) -> PassCost:
        """A forward pass over rows of a length, and nothing else."""
        with self.fake:
            return self._pass(example(self.spec, self.batch, length)[0])[0]

    def training_flops(self, length: int) -> dict[str, int]:
        """FLOPs of a training step over rows of a length, by torch operation."""
        with self.fake:
            inputs, targets = example(self.spec, self.batch, length)
            self.model.train()
            memory = self._memory()
            self.model.zero_grad()
            with counting() as counter:
                self.model(**inputs, targets=targets, **memory).loss.backward()
        return by_operation(counter)

    def training_peak(self, length: int) -> int:
        """Bytes that a training step over rows of a length needs at its peak, beside weights and optimiser."""
        with self.fake:
            inputs, targets = example(self.spec, self.batch, length)
            self.model.train()
            memory = self._memory()
            self.model.zero_grad()
            with Live() as live:
                out = self.model(**inputs, targets=targets, **memory)  # it lives on, as in training
                out.loss.backward()
        return live.peak

    def _pass(self, inputs: Mapping[str, Any], state: State | None = None) -> tuple[PassCost, Output]:
        """A pass in evaluation mode without gradients, and what it gives."""
        watch = Watch(only=NOTED)
        with evaluating(self.model), torch.no_grad(), counting() as counter:
            out = self.model(**inputs, state=state, watch=watch)
        return PassCost(*_by_part(counter, self.spec), *_split(watch.notes)), out

    def _train(self, inputs: Mapping[str, Any], targets: Tensor) -> Training:
        """A training step; tables that are made once must have been made."""
        watch = Watch(only=NOTED)
        live = Live()
        self.model.train()
        memory = self._memory()
        # Memory and FLOPs are two runs: the hooks of the counter hold on to graphs that would be freed, as those of reversible stacks.
        self.model.zero_grad()
        with live:
            out = self.model(**inputs, targets=targets, **memory)  # it lives on, as in training
            activations = live.now
            out.loss.backward()
        self.model.zero_grad()
        with counting() as counter:
            out = self.model(**inputs, targets=targets, watch=watch, **memory)
            forward = PassCost(*_by_part(counter, self.spec), *_split(watch.notes))
            out.loss.backward()
        return Training(forward, counter.get_total_flops(), activations, live.peak)

    def _memory(self) -> dict[str, State]:
        """The state with a full memory that a training step continues; empty without a memory."""
        limit = self.spec.memory.limit
        if not limit:
            return {}
        state = self.model(**example(self.spec, self.batch, limit)[0], state=self.model.initial_state(self.batch)).state
        return {"state": state}

    def _decode(self, state: State) -> tuple[PassCost | None, int | None]:
        """One more token for each row from a state, and the bytes of the new state's buffers."""
        one, _ = example(self.spec, self.batch, 1)
        if "source" in one:
            one["source"] = None  # the state has read it
        try:
            step, out = self._pass(one, state)
        except FormersError:  # positions end here
            return None, None
        assert out.state is not None
        storages = [t.untyped_storage() for t in _tensors(out.state)]
        return step, sum({id(storage): storage.nbytes() for storage in storages}.values())


def example(spec: Spec, batch: int, length: int) -> tuple[dict[str, Any], Tensor | None]:
    """Inputs of a spec's model by the name of its arguments, and targets that fit them, None where there is no loss."""

    def read(reader: Spec) -> Tensor:
        if reader.features is not None:
            return torch.zeros(batch, length, reader.features)
        return torch.zeros(batch, length, *(() if reader.fact is None else (reader.fact,)), dtype=torch.long)

    inputs = {"tokens": read(spec)} if spec.encoder is None else {"source": read(spec.encoder), "target": read(spec)}
    if isinstance(spec.head, NoHead):
        return inputs, None
    return inputs, torch.zeros(spec.head.target_shape(batch, length), dtype=torch.long)


def _split(notes: Mapping[str, Mapping[int, Any]]) -> tuple[Layers, OtherDevices]:
    """The notes of this device, and those of others, both by kind of attention."""
    own = {name: by_step for name, by_step in notes.items() if not name.endswith(OTHER_DEVICES)}
    return own, {name.removesuffix(" of other devices"): by_step for name, by_step in notes.items() if name.endswith(OTHER_DEVICES)}


def _by_part(counter: FlopCounterMode, spec: Spec) -> tuple[dict[str, int], tuple[str, ...]]:
    """FLOPs of a forward pass by part, from those by module; and the operations that attention over pairs ran as."""
    counts = {path: counts for path, counts in counter.get_flop_counts().items() if path != "Global"}
    flops: dict[str, int] = {}
    kernels: dict[str, None] = {}
    for path, counted in counts.items():
        inside = [p for p in counts if p.startswith(f"{path}.") and _owner(p, counts) == path]
        own = {op: count - sum(counts[p].get(op, 0) for p in inside) for op, count in counted.items()}
        part = _part_with_scores(path, spec)
        flops[part] = flops.get(part, 0) + sum(own.values())
        if part.endswith(SCORES):
            kernels.update((str(op).removeprefix("aten."), None) for op, count in own.items() if count)
    return {part: count for part, count in flops.items() if count}, tuple(kernels)


def _owner(path: str, paths: Mapping[str, Any]) -> str:
    """The nearest module around one that has counted anything, too."""
    while path:
        path, _, _ = path.rpartition(".")
        if path in paths:
            return path
    return ""


def _part_with_scores(path: str, spec: Spec) -> str:
    """The part that a module's own FLOPs count as: an attention's are its scores, those of the maps inside it its projections.

    What carries a state instead compares no pairs, and is one part.
    """
    _, *names = path.split(".")
    part = part_of(names)
    side = "encoder " if names[:1] == ["encoder"] else ""
    if part not in ("attention", "cross-attention"):
        return side + part
    reader = spec.encoder if side and spec.encoder is not None else spec
    if part == "attention" and "blocks" in names and reader.attention.at(int(names[names.index("blocks") + 1])).carries:
        return side + part
    inside = names[-1] not in ("attention", "cross", "score")
    return f"{side}{part} {'projections' if inside else SCORES}"


def allowed_share(spec: Spec, length: int) -> float:
    """The share of the pairs of queries and keys that a pattern allows, over layers and heads, counted on evenly spread queries."""
    length += spec.extra
    rows = min(length, ROWS, max(1, PAIRS // (length * spec.heads)))
    i = ((torch.arange(rows, dtype=torch.float64) + 0.5) * length / rows).long()[:, None]
    j = torch.arange(length)[None, :]
    patterns = [spec.pattern.at(step).of(length) for step in range(spec.depth.steps)]
    shares = {}
    for pattern in set(patterns):
        head = torch.arange(spec.heads)[:, None, None] if pattern.by_head else 0
        shares[pattern] = torch.as_tensor(pattern.allows(i, j, head)).double().mean().item()
    densities = [expected_density(spec.attention.at(step), spec.sizes) for step in range(len(patterns))]
    return sum(shares[pattern] * density for pattern, density in zip(patterns, densities, strict=True)) / len(patterns)


@singledispatch
def expected_density(attention: Attention, sizes: Sizes) -> float:
    """The expected share of the pairs allowed by a pattern that attention computes, for random queries and keys."""
    return 1.0


@expected_density.register
def _(attention: LSH, sizes: Sizes) -> float:
    buckets, rounds = math.prod(attention.factors(sizes.length)), attention.evaluation_rounds or attention.rounds
    return float(1.0 - (1.0 - 1.0 / buckets) ** rounds)


def _tensors(state: State) -> list[Tensor]:
    """Every tensor of a state."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    state.map(take)
    return found


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
