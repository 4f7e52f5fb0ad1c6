"""`rnn` (LSTM) beside torch.nn.LSTM between an embedding and an output layer, written plainly: a training step and a forward pass.

Both compute the same from the same weights, which is checked first. They alternate in one process, on one thread, in CPU time; the median
of the ratios counts. Ours should be at least as fast; five per cent are left for the noise of such a measurement.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formers.bench.progress import working
from formers.bench.timing import alternate, ratio
from formers.family import spec
from formers.model import Model, build

SIZES: dict[str, Any] = dict(vocab=1000, dim=256, layers=2, length=128)
BATCH = 16
NOISE = 1.05
LIMITS = {"training_ours_to_torch": (0.0, NOISE), "forward_ours_to_torch": (0.0, NOISE), "difference": (0.0, 1e-4)}
"""At most so many times torch's time; and how far apart the logits of the two may be."""


class PlainRecurrent(nn.Module):
    """Embedding, torch's LSTM, output layer: what one would write."""

    def __init__(self, vocab: int, dim: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.cells = nn.LSTM(dim, dim, num_layers=layers, batch_first=True)
        self.out = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """The mean cross-entropy of targets; logits without them."""
        logits: Tensor = self.out(self.cells(self.tokens(tokens))[0])
        return logits if targets is None else F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def bench_recurrent(rounds: int) -> dict[str, Any]:
    """Seconds of a training step and of a forward pass of each, their ratios, and how far apart their logits are."""
    ours, plain = models()
    tokens, targets = (torch.randint(SIZES["vocab"], (BATCH, SIZES["length"])) for _ in range(2))
    made: dict[str, Any] = {"difference": difference(ours, plain, tokens)}
    ways: dict[str, dict[str, Callable[[], object]]] = {
        "training": {
            "ours": partial(_step, _optimizer(ours), lambda: ours(tokens, targets).loss),
            "torch": partial(_step, _optimizer(plain), lambda: plain(tokens, targets)),
        },
        "forward": {"ours": partial(_forward, ours, tokens), "torch": partial(_forward, plain, tokens)},
    }
    with working("timing", 2 * 2 * (rounds + 2)) as advance:
        for name, sides in ways.items():
            times = alternate(sides, rounds, tick=partial(advance, 1))
            made |= {f"{name}_{side}_seconds": statistics.median(each) for side, each in times.items()}
            made[f"{name}_ours_to_torch"] = ratio(times, "ours", "torch")
    return made


def models() -> tuple[Model, PlainRecurrent]:
    """Ours and the plain one, with the same weights."""
    torch.manual_seed(0)
    ours = build(spec("rnn", **SIZES, tied=False).replace(embedding_scale="none"))
    plain = PlainRecurrent(SIZES["vocab"], SIZES["dim"], SIZES["layers"])
    weights = ours.state_dict()
    cells = {
        f"cells.{name.replace('_l0', f'_l{i}')}": weights[f"stack.depth.blocks.{i}.attention.recurrence.{name}"]
        for i in range(SIZES["layers"])
        for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    }
    plain.load_state_dict({"tokens.weight": weights["embedding.weight"], "out.weight": weights["head.weight"], **cells})
    return ours, plain


@torch.no_grad()
def difference(ours: nn.Module, plain: nn.Module, tokens: Tensor) -> float:
    """The largest difference between the logits of the two."""
    found: Tensor = ours(tokens).logits - plain(tokens)
    return found.abs().max().item()


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), fused=True)


def _step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss())
    optimizer.step()


@torch.no_grad()
def _forward(model: nn.Module, tokens: Tensor) -> None:
    model(tokens)
