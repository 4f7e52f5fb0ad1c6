"""The training settings of a run, frozen and saved with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from formers.core import FormersError, Part

DEFAULT_STEPS = 1000


class Settings(Part):
    """Budget, batch, optimiser, schedule, evaluation and checkpoints of a run."""

    steps: PositiveInt | None = None
    """Stop after this many training steps; 1000 if neither steps nor minutes is given."""
    minutes: PositiveFloat | None = None
    """Stop after this many minutes, including evaluation and saving."""
    batch: PositiveInt = 16
    """Sequences per step, over all processes."""
    accumulate: PositiveInt = 1
    """Gradient accumulation: split the batch into this many micro-batches; the same gradient in less memory."""
    learning_rate: PositiveFloat = 1e-3
    """The peak learning rate, reached after the warm-up."""
    warmup: NonNegativeInt = 100
    """Steps in which the rate rises linearly from 0; at most a tenth of the budget in steps or time."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    optimizer: Literal["adamw", "momentum", "adagrad"] = "adamw"
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled weight decay of matrices, as in AdamW, for every optimiser."""
    beta2: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.98
    """AdamW's beta2; beta1 is 0.9."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """The momentum of optimizer=momentum."""
    clip: PositiveFloat = 1.0
    """Gradients are clipped to this global norm."""
    clip_each: PositiveFloat | None = None
    """Instead, the gradient of each parameter is clipped to this norm."""
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    """The autocast precision of training; weights and evaluation stay float32. fp16 scales the loss and needs a GPU."""
    tf32: bool = True
    """In training, float32 products in TF32 on devices that have it: faster, with 10 bits of mantissa; no effect on others."""
    checkpoint: bool = False
    """Activation checkpointing: save only each block's input and recompute the rest in the backward pass."""
    compile: bool = False
    """Compile the step with torch.compile."""
    eval_every: PositiveInt | None = None
    """Evaluate on held-out data every this many steps; default: ten times in the run."""
    eval_batches: PositiveInt = 20
    """Number of held-out batches of an evaluation during training, spread over the part and the same each time."""
    final_batches: PositiveInt = 256
    """Number of batches of the evaluation at the end, spread in the same way; `formers eval` takes all."""
    sample_tokens: NonNegativeInt = 100
    """Length of the text sample that a generative model shows at each evaluation during training; 0 for none."""
    save_every: PositiveInt | None = None
    """Save a checkpoint every this many steps; default: every five minutes. The best and the last are always saved."""
    keep: PositiveInt = 3
    """Number of newest checkpoints to keep, besides the best."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def warm_steps(self) -> int:
        """The steps of the warm-up, at most a tenth of a budget in steps; a budget in time can end it earlier."""
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
