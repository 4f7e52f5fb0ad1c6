"""How to train: the settings of a run, frozen and saved with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from formers.core import FormersError, Part

DEFAULT_STEPS = 1000


class Settings(Part):
    """Budget, batch, optimiser and schedule of a run."""

    steps: PositiveInt | None = None
    """Stop after so many steps; with neither steps nor minutes, 1000."""
    minutes: PositiveFloat | None = None
    """Stop after so much time."""
    batch: PositiveInt = 16
    learning_rate: PositiveFloat = 1e-3
    """The peak, reached after the warm-up."""
    warmup: NonNegativeInt = 100
    """Steps in which the rate rises linearly from 0; a tenth of the budget where that is less."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    weight_decay: NonNegativeFloat = 0.1
    beta2: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.98
    clip: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    eval_every: PositiveInt | None = None
    """Judge on held-out data every so many steps, too, not only at the end."""
    eval_batches: PositiveInt = 50
    """How many batches of held-out data a judgement during training takes; the last one takes all."""
    seed: int = 0

    @property
    def warm_steps(self) -> int:
        """The steps of the warm-up within the budget."""
        return self.warmup if self.budget is None else min(self.warmup, self.budget // 10)

    @property
    def budget(self) -> int | None:
        """The number of steps, or None where time decides alone."""
        return DEFAULT_STEPS if self.steps is None and self.minutes is None else self.steps


def settings(steps: int | None, minutes: float | None, options: dict[str, object]) -> Settings:
    """The settings of a run from its budget and the options that are not the model's."""
    if steps is not None and minutes is not None:
        raise FormersError(f"steps={steps} and minutes={minutes} are two budgets: give one of them.")
    return Settings(steps=steps, minutes=minutes, **options)
