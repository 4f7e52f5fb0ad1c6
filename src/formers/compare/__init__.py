"""Members side by side: equal budgets, equal parameters, several seeds, and a verdict that respects their spread."""

from formers.compare.budget import Budget, budget_of
from formers.compare.compare import compare
from formers.compare.verdict import verdict

__all__ = ["Budget", "budget_of", "compare", "verdict"]
