"""Small models on a device against the same ones on the CPU: training steps, decoding, saving and loading."""

from __future__ import annotations

import copy
import math
import tempfile
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.family import create
from formers.generation import generate
from formers.inspect.measure.doctor.clock import finish, timed
from formers.inspect.measure.doctor.compare import LIMITS, TYPES, brief, difference
from formers.inspect.measure.doctor.report import finding
from formers.model import Model, load
from formers.training.config import Settings
from formers.training.optim import optimizer

VOCAB, BATCH, LENGTH = 61, 2, 520
"""The length reaches the executors for long rows."""
STEPS = 3
NEW, PROMPT = 32, 8
SCALE = 1024.0
"""The factor of the loss in fp16, so that small gradients do not vanish."""
TRAINING_LIMITS = {**LIMITS, "float32": 1e-3}
"""Of losses and of the norm of the first gradient, relative: rounding may change a bucket of LSH attention."""
SPREAD = 0.15
"""The standard deviation of what is added to the initial weights."""
SIZES: dict[str, Any] = {"vocab": VOCAB, "dim": 32, "heads": 2, "dropout": 0.0, "length": LENGTH}
MEMBERS: dict[str, dict[str, Any]] = {
    "decoder": {"layers": 2},
    "transformer-xl": {"layers": 2, "memory": 64},
    "sparse-transformer": {"layers": 2, "stride": 16},
    "bigbird": {"layers": 2, "block": 16},
    "reformer": {"layers": 2, "chunk": 32},
    "universal-transformer": {"steps": 2},
}
"""The options of each, besides SIZES; head width 16."""


class Losses(NamedTuple):
    """The losses of a few training steps, the norm of the first gradient, and the seconds of the first and of later steps."""

    losses: list[float]
    norm: float
    first: float
    later: float


def small_model(member: str) -> Model:
    """A small model of a member, always with the same weights, none of them 0: heads and gates that are 0 would hide errors of the rest."""
    torch.manual_seed(0)
    numbers = torch.Generator().manual_seed(0)
    model = create(member, **SIZES, **MEMBERS[member])
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(SPREAD * torch.randn(weight.shape, generator=numbers))
    return model


def check_training(member: str, precision: str, device: torch.device, on_cpu: dict[str, Losses]) -> dict[str, Any]:
    """Training steps of a member in a precision against those of the CPU in float32, which `on_cpu` caches."""
    name = f"training {member}"
    try:
        if member not in on_cpu:
            on_cpu[member] = train(small_model(member), "float32")
        found, wanted = train(small_model(member).to(device), precision), on_cpu[member]
    except Exception as error:  # any error of a kernel
        return finding("training", name, precision, wrong=brief(error))
    pairs = zip([*found.losses, found.norm], [*wanted.losses, wanted.norm], strict=True)
    away = [abs(ours - right) / right if math.isfinite(ours) else math.inf for ours, right in pairs]
    words = None
    if not all(map(math.isfinite, away)):
        words = "a loss or a gradient is not finite"
    elif max(away) > TRAINING_LIMITS[precision]:
        words = (
            f"losses {_numbers(found.losses)} instead of {_numbers(wanted.losses)}, gradient {found.norm:.5f} instead of {wanted.norm:.5f}"
        )
    return finding("training", name, precision, max(away), found.first, found.later, words)


def train(model: Model, precision: str) -> Losses:
    """A few training steps on the device of a model."""
    device = next(model.parameters()).device
    model.train()
    update = optimizer(model, Settings(steps=STEPS))
    tokens = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(1)).to(device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:] if model.is_causal else tokens[:, :-1]
    half = precision in ("bf16", "fp16")
    scale = SCALE if precision == "fp16" else 1.0
    losses: list[float] = []
    norms: list[float] = []

    def step() -> None:
        further = {"update": len(losses)} if model.spec.draws else {}
        with torch.autocast(device.type, dtype=TYPES[precision]) if half else nullcontext():
            loss = model(inputs, targets=targets, **further).loss
        (loss * scale).backward()
        slopes = [p.grad.div_(scale) for p in model.parameters() if p.grad is not None]
        norms.append(torch.stack([slope.float().norm() for slope in slopes]).norm().item())
        losses.append(loss.item())
        update.step()
        update.zero_grad()

    times = timed(step, device, STEPS - 1)
    return Losses(losses, norms[0], times.first, times.later)


def check_streaming(member: str, precision: str, device: torch.device) -> dict[str, Any]:
    """Token by token with a cache on a device against one pass over all tokens on the CPU in float64."""
    name = f"decoding {member} against one pass"
    model = small_model(member).eval()
    tokens = torch.randint(VOCAB, (BATCH, PROMPT + NEW), generator=torch.Generator().manual_seed(2))
    try:
        ours = _streamed(copy.deepcopy(model).to(TYPES[precision]).to(device), tokens.to(device))
    except Exception as error:  # any error of a kernel
        return finding("decoding", name, precision, wrong=brief(error))
    with torch.no_grad():
        wanted = model.to(TYPES[precision]).double()(tokens).logits
    assert wanted is not None
    largest = difference(ours, wanted)
    words = None if largest <= LIMITS[precision] else f"largest difference {largest:.1e} in logits"
    return finding("decoding", name, precision, largest, wrong=words)


@torch.no_grad()
def _streamed(model: Model, tokens: Tensor) -> Tensor:
    """Logits of all tokens: a prompt, then one token after another through the state."""
    out = model(tokens[:, :PROMPT], state=model.initial_state(len(tokens)))
    found = [out.logits]
    for t in range(PROMPT, tokens.shape[1]):
        out = model(tokens[:, t : t + 1], state=out.state)
        found.append(out.logits)
    return torch.cat(found, dim=1)


def check_generation(member: str, device: torch.device) -> dict[str, Any]:
    """The most likely tokens after a prompt, which must be those of the CPU."""
    name = f"generating {NEW} tokens, {member}"
    model = small_model(member).eval()
    prompt = torch.randint(VOCAB, (BATCH, PROMPT), generator=torch.Generator().manual_seed(3))
    wanted = _greedy(model, prompt)
    found = []
    try:
        model = model.to(device)
        times = timed(lambda: found.append(_greedy(model, prompt)), device, 1)
    except Exception as error:  # any error of a kernel
        return finding("decoding", name, "float32", wrong=brief(error))
    same = (found[0] == wanted).all(dim=0)
    words = None if bool(same.all()) else f"token {int((~same).int().argmax())} is another than on the CPU"
    return finding("decoding", name, "float32", None, times.first, times.later, words)


def _greedy(model: Model, prompt: Tensor) -> Tensor:
    """The most likely tokens; the penalty keeps small models from repeating one token."""
    return generate(model, prompt, max_new_tokens=NEW, temperature=0.0, repetition_penalty=2.0)[:, PROMPT:].cpu()


def check_saving(member: str, device: torch.device) -> dict[str, Any]:
    """A model that is saved on a device and loaded there again has the same weights and the same logits."""
    name = f"saving and loading {member}"
    tokens = torch.randint(VOCAB, (BATCH, PROMPT), generator=torch.Generator().manual_seed(4)).to(device)
    try:
        model = small_model(member).to(device).eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            again = load(folder, device).eval()
        pairs = zip(model.state_dict().values(), again.state_dict().values(), strict=True)
        same = all(bool((ours.cpu() == theirs.cpu()).all()) for ours, theirs in pairs)
        with torch.no_grad():
            largest = difference(again(tokens).logits, model(tokens).logits.cpu().double())
        finish(device)
    except Exception as error:  # any error of a kernel
        return finding("saving", name, "float32", wrong=brief(error))
    words = "the weights differ" if not same else None if largest <= LIMITS["float32"] else f"largest difference {largest:.1e} in logits"
    return finding("saving", name, "float32", largest, wrong=words)


def causal_members() -> list[str]:
    """The members that decode."""
    return [member for member in MEMBERS if small_model(member).is_causal]


def _numbers(losses: list[float]) -> str:
    return ", ".join(f"{loss:.5f}" for loss in losses)
