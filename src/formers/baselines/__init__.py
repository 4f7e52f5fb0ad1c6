"""Simple baseline models."""

from formers.baselines.counts import CountModel

__all__ = ["CountModel"]
