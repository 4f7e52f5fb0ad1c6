"""A training step of `transformer-xl` with its memory full, beside two others: what relative positions cost, and what people would install.

- the same model with plain dot products over the same keys (score=NoScore, the same memory);
- TransfoXL of `transformers` before 5, of the same sizes, where it can be imported.

A step is a forward pass over a segment that reads a full memory and leaves the next one, the backward pass, and AdamW. Peak memory is that
of a first step in a separate process, gradients and the optimiser's averages among it. That both compute the same is checked by
tests/parity/test_transfo_xl.py.
"""

from __future__ import annotations

import gc
import logging
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from formers.bench.memory import extra_memory
from formers.bench.progress import working
from formers.bench.timing import alternate, ratio
from formers.core import State
from formers.core.allocator import release_memory
from formers.family import spec
from formers.model import build
from formers.score import NoScore

SIZES = dict(vocab=1000, dim=256, heads=4, layers=4, hidden=1024, length=512, memory=512)
BATCH = 2
LIMITS = {"ours_to_plain": (0.0, 1.8), "speedup": (1.5, float("inf")), "memory_ratio": (0.0, 1.0)}
"""At most so many times the step of plain scores; at least so many times faster than theirs, and with no more memory."""
ABSENT = (
    "TransfoXL, which transformers has up to 4.57, cannot be imported here: to time it, too, create a separate environment with "
    "`pip install formers 'transformers>=4.57,<4.58'`."
)
Step = Callable[[], object]


def bench_recurrence(rounds: int) -> dict[str, Any]:
    """The median seconds of a training step of each of the models above, their ratios, and the peak memory of ours and of TransfoXL."""
    names = ["ours", "plain", *(["theirs"] if importable() else [])]
    with working("timing", (rounds + 2) * len(names)) as advance:
        times = alternate({name: step_of(name) for name in names}, rounds, tick=partial(advance, 1))
    seconds = {name: statistics.median(each) for name, each in times.items()}
    made: dict[str, Any] = {f"{name}_seconds": value for name, value in seconds.items()}
    made |= {"ours_to_plain": ratio(times, "ours", "plain"), "speedup": None, "memory_ratio": None}
    if "theirs" not in names:
        return {**made, "peer": ABSENT}
    peaks = {name: extra_memory(fresh_step, name) for name in ("ours", "theirs")}
    made |= {f"{name}_peak_bytes": peak for name, peak in peaks.items()}
    made["speedup"] = ratio(times, "theirs", "ours")
    if peaks["ours"] is not None and peaks["theirs"]:
        made["memory_ratio"] = peaks["ours"] / peaks["theirs"]
    return {**made, "peer": f"transformers {version('transformers')}"}


def importable() -> bool:
    """Whether there is a TransfoXL."""
    try:
        from transformers.models.deprecated import transfo_xl  # noqa: F401
    except ImportError:
        return False
    return True


def step_of(name: str) -> Step:
    """A training step of ours, of plain scores, or of theirs, with the memory full."""
    torch.manual_seed(0)
    read, tokens, targets = (torch.randint(SIZES["vocab"], (BATCH, SIZES["length"])) for _ in range(3))
    model: nn.Module
    loss: Callable[[], Tensor]
    if name == "theirs":
        model = their_model()
        with lenient():
            mems: Any = model(read).mems
        loss = partial(_their_loss, model, mems, tokens, targets)
    else:
        made = spec("transformer-xl", preset=None, **SIZES, norm="post", activation="relu")
        model = build(made if name == "ours" else made.replace(score=NoScore())).train()
        state = model(read, state=model.initial_state(BATCH)).state
        loss = partial(_our_loss, model, state, tokens, targets)
    return partial(_step, torch.optim.AdamW(model.parameters(), fused=True), loss)


def fresh_step(name: str) -> Step:
    """The first step in a separate process, after releasing the memory used for its setup."""
    torch.set_num_threads(1)
    step = step_of(name)
    gc.collect()
    release_memory()
    return step


def their_model() -> Any:
    """The TransfoXLLMHeadModel of these sizes, with one softmax over all words and without dropout."""
    from transformers.models.deprecated.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel

    logging.getLogger("transformers").setLevel(logging.ERROR)  # it would warn that it cannot generate text, which is not needed
    width = SIZES["dim"] // SIZES["heads"]
    config = TransfoXLConfig(
        vocab_size=SIZES["vocab"], cutoffs=[], d_model=SIZES["dim"], d_embed=SIZES["dim"], n_head=SIZES["heads"], d_head=width,
        d_inner=SIZES["hidden"], div_val=1, n_layer=SIZES["layers"], mem_len=SIZES["memory"], clamp_len=-1, same_length=False,
        dropout=0.0, dropatt=0.0, untie_r=False, trainer_compatible=True,
    )  # fmt: skip
    return TransfoXLLMHeadModel(config).train()


@contextmanager
def lenient() -> Iterator[None]:
    """Within it `Tensor.type_as` takes a type, too: transformers 4.57's TransfoXL asks for that, which no torch gives."""
    before = torch.Tensor.type_as

    def type_as(self: Tensor, other: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        return self.to(dtype) if other is None else before(self, other)

    torch.Tensor.type_as = type_as  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.Tensor.type_as = before  # type: ignore[method-assign]


def _our_loss(model: nn.Module, state: State, tokens: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = model(tokens, targets, state).loss
    return loss


def _their_loss(model: nn.Module, mems: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """They shift the targets, so that the last of them has no prediction."""
    with lenient():
        loss: Tensor = model(tokens, mems=mems, labels=targets).loss
    return loss


def _step(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss())
    optimizer.step()
