"""Refuses a training that memory cannot hold, before it begins.

Bytes that live at once = weights + optimiser state + max(activations, temporaries and gradients of a step)

They are found by a step on fake tensors: the model's own code runs, and nothing is computed or allocated. What kernels use inside and what
the allocator keeps is not seen: processes of four members grew by 1.15 to 1.37 times the count. Small trainings skip the step: a rough
count shows that they fit.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException

from formers.core import FormersError
from formers.core.devices import capabilities
from formers.core.live import Live
from formers.core.precision import autocast
from formers.data.batches import Batch
from formers.data.lanes import Streams
from formers.model import Spec, build
from formers.training.config import Settings
from formers.training.distributed import World
from formers.training.micro_batches import FRESH
from formers.training.optim import optimizer
from formers.training.task import Task

SMALL = 0.1
"""A training whose rough count is below this share of the free memory is not counted exactly."""
SPARE = 0.7
"""The share of the free memory that a recommended batch may take by the count."""
SAMPLE = 32
"""Rows that are drawn to know how long rows are."""
UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What fake tensors raise where code asks for values."""


def refuse_too_large(task: Task, settings: Settings, device: torch.device, world: World) -> None:
    """Raises FormersError for a model or a batch that the free memory of the device cannot hold."""
    free = free_memory(device)
    if free is None:
        return
    if capabilities(device).host:
        free //= world.size  # the processes of a machine share it
    rows = max(piece.stop - piece.start for piece in world.rows(settings.batch, settings.accumulate))
    if rough_bytes(task.spec, rows) < SMALL * free:
        return
    try:
        estimate = Estimate(task, settings)
        needed = estimate.needed(rows)
        if needed > free:
            raise FormersError(_sentence(estimate, settings, rows, needed, free, settings.batch // rows))
    except UNKNOWN:
        return


def free_memory(device: torch.device) -> int | None:
    """Bytes that the device has free; None where nothing says it."""
    if device.type == "meta":
        return None
    if device.type == "mps":  # which has no such function in torch.accelerator
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if not capabilities(device).host:
        try:
            return int(torch.accelerator.get_memory_info(device)[0])
        except (RuntimeError, NotImplementedError):
            return None
    found = [bytes_left for bytes_left in (_available(), _left_in_group()) if bytes_left is not None]
    return min(found) if found else None


def rough_bytes(spec: Spec, rows: int) -> int:
    """About how many bytes a training step takes, from the sizes of the spec: seldom less than half of it, often more than all."""
    total = 0
    for stack in (spec, spec.encoder):
        if stack is None:
            continue
        hidden = getattr(stack.feedforward, "hidden", None)
        width = max(4 * stack.dim, hidden if isinstance(hidden, int) else 0)
        reach = stack.length + (stack.memory.limit or 0)
        depth, ids = stack.depth.steps, stack.vocab or 0
        a_token = depth * (34 * stack.dim + 6 * width + 4 * stack.heads * reach) + 4 * ids
        weights = depth * (5 * stack.dim**2 + 3 * stack.dim * width) + 2 * ids * stack.dim
        total += 4 * rows * stack.length * a_token + 16 * weights
    return total


class Estimate:
    """The memory of a task's training, counted on fake tensors."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self.settings = settings
        sample = task.batches.train_batch(min(settings.batch, SAMPLE), settings.seed, 0)
        self.shapes = {name: (tuple(value.shape), value.dtype) for name, value in sample.items() if name != FRESH}
        self.length = max(shape[1] for shape, _ in self.shapes.values() if len(shape) > 1)
        if isinstance(task.batches, Streams):  # many rows of a short text are short
            self.length = min(self.length, task.batches.lane(settings.batch))
        self.continues = task.batches.continues
        self.fake = FakeTensorMode()
        with self.fake:
            self.model = build(task.spec).train()
            self.model.checkpointing(settings.checkpoint)
            weights = list(self.model.parameters())
            update = optimizer(self.model, settings)
            for weight in weights:
                weight.grad = torch.zeros_like(weight)
            update.step()
        self.gradients = _bytes(weights)
        state = [value for values in update.state.values() for value in values.values()]
        self.fixed = _bytes([*weights, *self.model.buffers(), *state])

    def needed(self, rows: int, length: int | None = None) -> int:
        """Bytes of a training with micro-batches of so many rows, as long as the task's unless given."""
        with self.fake:
            batch = self._batch(rows, self.length if length is None else length)
            further: dict[str, Any] = {} if self.model.auxiliary is None else {"progress": 0.0}
            if self.model.spec.draws:
                further["update"] = 0
            further |= self._memory(batch, rows)
            self.model.zero_grad()
            live = Live()
            precision = "bf16" if self.settings.precision == "fp16" else self.settings.precision
            with live, autocast(precision, torch.device("cpu")):
                out = self.model(**batch, **further)
                assert out.loss is not None
                out.loss.backward()
            return self.fixed + max(live.peak, self.gradients)

    def largest_batch(self, rows: int, needed: int, free: int) -> int:
        """The most rows that fit, fewer than `rows`, which need so many bytes; 0 if not even one does."""
        one = self.needed(1)
        if one > free:
            return 0
        each = (needed - one) / max(rows - 1, 1)
        return max(1, min(rows - 1, math.floor((SPARE * free - one) / max(each, 1.0)) + 1))

    def largest_length(self, free: int) -> int | None:
        """A length at which one row fits, by halving; None if there is none."""
        length = self.length // 2
        while length >= 1:
            try:
                if self.needed(1, length) <= SPARE * free:
                    return length
            except FormersError:  # a length that the model cannot read
                return None
            length //= 2
        return None

    def _batch(self, rows: int, length: int) -> Batch:
        """A batch of the shape of the task's with so many rows, cut off at a length."""
        made = {}
        for name, (shape, kind) in self.shapes.items():
            inner = shape[1:]
            if inner:
                inner = (min(inner[0], length), *inner[1:])
            made[name] = torch.zeros(rows, *inner, dtype=kind)
        return made

    def _memory(self, batch: Batch, rows: int) -> dict[str, Any]:
        """The state that a step goes on from where the memory is full."""
        if not self.continues:
            return {}
        state = self.model.initial_state(rows)
        segments = math.ceil((self.model.spec.memory.limit or 0) / self.length)
        with torch.no_grad():
            for _ in range(segments):
                state = self.model(**batch, state=state).state
        return {"state": state}


def _sentence(estimate: Estimate, settings: Settings, rows: int, needed: int, free: int, pieces: int) -> str:
    """What does not fit, and the largest that does."""
    room = f"and {_gigabytes(free)} are free"
    least = estimate.fixed + estimate.gradients
    if least > free:
        what = f"weights, gradients and optimiser state need {_gigabytes(least)}"
        return f"{what}, {room}: use a smaller dim or vocab, or fewer layers."
    begin = f"batch={settings.batch} with rows of {estimate.length:,} needs at least {_gigabytes(needed)}, {room}"
    largest = estimate.largest_batch(rows, needed, free) if rows > 1 else 0
    if largest:
        accumulate = settings.accumulate * math.ceil(rows / largest)
        fits = f"the largest batch that fits is about {largest * pieces}"
        return f"{begin}: {fits}; accumulate={accumulate} has the same gradient in less memory."
    length = estimate.largest_length(free)
    if length is None:
        return f"{begin}: not even batch=1 fits; use a smaller dim, or fewer layers."
    return f"{begin}: not even batch=1 fits; at about length={length} it does."


def _available() -> int | None:
    """What the machine has free for new processes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


def _left_in_group() -> int | None:
    """What the control groups of this process leave free; None without a limit."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    left = []
    for _, controllers, place in groups:
        if controllers == "":
            root, limit, usage = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, usage = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = root / place.lstrip("/")
        for group in (folder, *folder.parents):
            left.append(_left(group / limit, group / usage))
            if group == root:
                break
    return min((some for some in left if some is not None), default=None)


def _left(limit: Path, usage: Path) -> int | None:
    """A limit less its usage, of which the page cache is given back on demand."""
    try:
        most, used = int(limit.read_text()), int(usage.read_text())
        stat = dict(line.split()[:2] for line in (limit.parent / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such file, or no limit
        return None
    return most - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
