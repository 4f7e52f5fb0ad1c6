"""How to train: the settings of a run, frozen and saved with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from formers.core import FormersError, Part

DEFAULT_STEPS = 1000


class Settings(Part):
    """Budget, batch, optimiser, schedule, evaluation and checkpoints of a run."""

    steps: PositiveInt | None = None
    """Stop after so many training steps; with neither steps nor minutes, 1000."""
    minutes: PositiveFloat | None = None
    """Stop after so much time, evaluation and saving included."""
    batch: PositiveInt = 16
    """Sequences a step, over all processes."""
    accumulate: PositiveInt = 1
    """Read the batch in so many pieces, one after the other: the same gradient in less memory."""
    learning_rate: PositiveFloat = 1e-3
    """The peak, reached after the warm-up."""
    warmup: NonNegativeInt = 100
    """Steps in which the rate rises linearly from 0; a tenth of the budget, in steps or in time, where that is less."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    optimizer: Literal["adamw", "momentum", "adagrad"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1
    """The share, times the rate, that matrices lose at each step, whichever the optimiser."""
    beta2: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.98
    """AdamW's second; the first is 0.9."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """How much of the last move goes on, for optimizer=momentum."""
    clip: PositiveFloat = 1.0
    """Gradients are scaled down to this norm, all together."""
    clip_each: PositiveFloat | None = None
    """Instead of that, the gradient of each weight matrix or vector is scaled down to this norm by itself."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """What products are computed in while training; weights and evaluation stay float32. fp16 scales the loss, and needs a GPU."""
    checkpoint: bool = False
    """Keep only each block's input and compute the rest again in the backward pass: less memory, more time, the same gradient."""
    compile: bool = False
    """Let torch.compile make one program of the step."""
    eval_every: PositiveInt | None = None
    """Evaluate on held-out data every so many steps; unless given, ten times in the run."""
    eval_batches: PositiveInt = 20
    """How many batches of held-out data an evaluation during training takes, spread over all of it and the same each time."""
    final_batches: PositiveInt = 256
    """How many the evaluation at the end takes, spread in the same way; `formers eval` takes all."""
    sample_tokens: NonNegativeInt = 100
    """How long the text is that a writing model shows at each evaluation during training; 0 for none."""
    save_every: PositiveInt | None = None
    """Save a checkpoint every so many steps; unless given, every five minutes. The best and the last are always saved."""
    keep: PositiveInt = 3
    """How many of the newest checkpoints are kept, beside the best."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def warm_steps(self) -> int:
        """The steps of the warm-up, at most a tenth of a budget in steps; a budget in time can end it before."""
        return self.warmup if self.budget is None else min(self.warmup, self.budget // 10)

    @property
    def budget(self) -> int | None:
        """The number of training steps of the budget; None if the budget is in minutes."""
        return DEFAULT_STEPS if self.steps is None and self.minutes is None else self.steps

    def with_budget(self, training_steps: int | None, minutes: float | None) -> Settings:
        """The settings with another budget; unchanged with neither."""
        one_budget(training_steps, minutes)
        return self if training_steps is None and minutes is None else self.replace(steps=training_steps, minutes=minutes)


def settings(training_steps: int | None, minutes: float | None, options: dict[str, object]) -> Settings:
    """The settings of a run from its budget and the options that are not the model's."""
    one_budget(training_steps, minutes)
    return Settings(steps=training_steps, minutes=minutes, **options)


def one_budget(training_steps: int | None, minutes: float | None) -> None:
    """Raises FormersError for two budgets."""
    if training_steps is not None and minutes is not None:
        raise FormersError(f"steps={training_steps} and minutes={minutes} are two budgets: give one of them.")
