"""Under autocast, on the CPU and on the test device: halting, norms, softmax statistics and losses are computed in float32.

The lists of operations that autocast lowers differ between devices, so what must stay float32 says so itself.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from accelerator.device import NAME, use_test_device
from contracts.specimens import SPECIMENS, Specimen, subject
from formers.heads import NoHead, PolicyValue
from formers.model import reversible
from helpers import sweep

STATISTICS = {
    "exp", "log", "log1p", "cumsum", "logsumexp", "_softmax", "_log_softmax", "var", "var_mean", "mean", "native_layer_norm", "rsqrt",
    "nll_loss_forward", "linalg_vector_norm", "prod", "logaddexp",
}  # fmt: skip
GATES = ("recurrent/cells.py", "recurrent/layer.py", "residual/gated.py", "feedforward/dense.py")
"""Where a sigmoid is an activation and no halting probability."""
TRAINED = [s for s in SPECIMENS if not isinstance(s.spec.head, NoHead | PolicyValue) and s.member != "reformer"]


class Watched(TorchDispatchMode):
    """Records statistics in half precision by operation and source line."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name in STATISTICS or name == "sigmoid":
            made = [x for x in tree_flatten(out)[0] if isinstance(x, Tensor)]
            if any(x.dtype in (torch.bfloat16, torch.float16) for x in made):
                place = _place()
                if name != "sigmoid" or not place.startswith(GATES):
                    self.found.add(f"{name} at {place}")
        return out


def _place() -> str:
    frame: Any = sys._getframe(2)
    while frame is not None and "/src/formers/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename.rpartition('/formers/')[2]}:{frame.f_lineno}"


@pytest.mark.parametrize("device", ["cpu", pytest.param(NAME, marks=pytest.mark.slow)])
@sweep("specimen", TRAINED)
def test_statistics_are_float32_under_autocast(device: str, specimen: Specimen) -> None:
    chosen = subject(specimen.spec, 2, torch.float32)
    length = chosen.model.spec.length if chosen.model.spec.image is not None else min(chosen.model.spec.length or 12, 12)
    x, targets = chosen.input(length), chosen.targets(length)
    with nullcontext() if device == "cpu" else use_test_device():
        chosen.model.train().to(device)
        moved = {name: None if (t := getattr(chosen, name)) is None else t.to(device) for name in ("source", "label")}
        there = replace(chosen, **moved)
        with Watched() as watched, torch.autocast(device, dtype=torch.bfloat16):
            out = there(x.to(device), targets=targets.to(device))
        assert watched.found == set()
        assert {loss.dtype for loss in out.losses.values()} == {torch.float32}


def test_a_reversible_stack_recomputes_the_same_bits_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, int], Tensor]] = []
    added = reversible.HalfStep.added

    def recorded(self: reversible.HalfStep, *args: Any) -> Any:
        y, state = added(self, *args)
        seen.append(((self.step, self.which), y.detach().clone()))
        return y, state

    import formers

    model = formers.create("decoder", vocab=50, dim=32, heads=4, layers=4, length=32, norm="reversible", dropout=0.1).train()
    tokens = torch.randint(50, (2, 33))
    slopes = []
    monkeypatch.setattr(reversible.HalfStep, "added", recorded)
    for apply in (reversible.ReversibleFunction.apply, None):
        if apply is None:  # plain autograd, which saves everything
            monkeypatch.setattr(reversible.torch.compiler, "is_compiling", lambda: True)
        seen.clear()
        torch.manual_seed(5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], targets=tokens[:, 1:]).loss
        forward = dict(seen)
        seen.clear()
        model.zero_grad()
        loss.backward()
        if apply is not None:
            again = dict(seen)
            assert forward.keys() == again.keys()
            assert {y.dtype for y in forward.values()} == {torch.bfloat16}
            assert all(y.equal(again[half]) for half, y in forward.items())
        else:
            assert not seen  # nothing is computed again
        slopes.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*slopes, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()
