"""What the family is measured against."""

from formers.baselines.counts import CountModel

__all__ = ["CountModel"]
