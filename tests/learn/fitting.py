"""A training loop of ten lines, and greedy decoding by state: what the learning tests share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from formers import Model, State

Batch = dict[str, Tensor]


def fit(model: Model, batches: Callable[[], Batch], steps: int, rate: float = 3e-3) -> None:
    """Trains a model on batches of keyword arguments with Adam, a warm-up and a decay to 0, and leaves it in evaluation mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.15)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batches()).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def held_out(rows: Tensor) -> Tensor:
    """Which rows (n, length) no training batch may hold: those whose sum is a multiple of five."""
    return rows.sum(dim=1) % 5 == 0


@torch.no_grad()
def greedy(model: Model, logits: Tensor, state: State, steps: int) -> Tensor:
    """The likeliest tokens (batch, steps) after a prompt whose last logits and state are given, one by one from the state."""
    written = []
    for _ in range(steps):
        token = logits[:, -1:].argmax(dim=-1)
        written.append(token)
        out = model(None, token, state=state) if model.spec.encoder is not None else model(token, state=state)
        logits, state = out.logits, out.state
    return torch.cat(written, dim=1)
