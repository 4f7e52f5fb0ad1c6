"""Curves and captions of the effective context length (measure/context_length.py)."""

from __future__ import annotations

from formers.inspect.draw.curves import Curve, Panel
from formers.inspect.measure.context_length import THRESHOLD, Contexts


def context_panels(found: Contexts, top: float) -> list[Panel]:
    """Loss against context, and the relative gain of one step more, over the share `top` of the hardest tokens."""
    across = [float(c) for c in found.contexts]
    losses = [Curve(name, across, row) for name, row in zip(found.names, found.losses().tolist(), strict=True)]
    gains = [Curve(name, across[:-1], row) for name, row in zip(found.names, found.gains(top).tolist(), strict=True)]
    return [
        Panel(losses, "tokens of context", found.unit),
        Panel(gains, "tokens of context", f"relative gain of {found.contexts[0]} more, {share_words(top)}", THRESHOLD),
    ]


def share_words(top: float) -> str:
    """The text for a label that says which share of the tokens is averaged: "all tokens", or "hardest 10%"."""
    return "all tokens" if top == 1 else f"hardest {top:.0%}"


def context_words(found: Contexts) -> str:
    """What the lengths mean, for people to read."""
    count = f"{found.nats.shape[2]:,} tokens, each with every context"
    if len(found.names) > 1:
        return f"Relative effective context length of this group of {len(found.names)} runs, over {count}; other groups have other lengths."
    return f"Plain effective context length of one run, over {count}; give several runs to compare them by the relative one."
