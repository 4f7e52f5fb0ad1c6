"""How an agent is trained: the settings of its run, frozen and saved with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from formers.core import Part
from formers.training.config import Settings, one_budget

DEFAULT_STEPS = 100_000
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class AgentSettings(Part):
    """Budget, environments, algorithm, optimiser, evaluation and saving of a run. A segment is `length` steps, as the member has it."""

    steps: PositiveInt | None = None
    """Stop after so many steps of the environment, over all copies; with neither steps nor minutes, 100,000."""
    minutes: PositiveFloat | None = None
    """Stop after so much time."""
    algorithm: Literal["ppo", "vmpo"] = "ppo"
    environments: PositiveInt = 32
    """Copies of the environment, side by side."""
    epochs: PositiveInt = 3
    """How often the steps of a rollout are trained on."""
    minibatches: PositiveInt = 4
    """Into how many an epoch is split, each of whole segments of some environments; at most one for each environment."""
    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["constant", "linear"] = "constant"
    """Whether the learning rate stays, or falls to 0 at the end."""
    weight_decay: NonNegativeFloat = 0.0
    beta2: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.98
    """AdamW's second; the first is 0.9. With 0.999 its first step after a long calm is four times as large."""
    epsilon: PositiveFloat | None = None
    """What AdamW adds to the root of the second moment; unless given, 1e-4 for PPO and 1e-5 for V-MPO. With 1e-5 the small gradients of
    a task that PPO has solved make steps of full size."""
    clip: PositiveFloat = 0.5
    """Gradients are scaled down to this norm, all together."""
    gamma: Share = 0.99
    """How much the next step's reward is worth."""
    gae_lambda: Share = 0.95
    clip_ratio: PositiveFloat = 0.2
    """PPO's epsilon: how far the probability of an action may move."""
    entropy: NonNegativeFloat = 0.01
    """The weight of the policy's entropy."""
    value_weight: NonNegativeFloat = 0.5
    normalise: bool = True
    """Whether advantages have mean 0 and deviation 1 over a rollout; of PPO."""
    advantage_floor: PositiveFloat = 0.3
    """Advantages are divided by no less than this, in units of reward: where a task is solved they are errors of the value; of PPO."""
    target_kl: PositiveFloat | None = 0.03
    """End the epochs of a rollout once the policy has moved so far; of PPO. Where gradients have long been small, Adam's first step after a
    surprise is a large one: without this bound it led a solved policy away for good."""
    epsilon_eta: PositiveFloat = 0.02
    """V-MPO's bound on how far the best half of the steps may be weighed."""
    epsilon_alpha: PositiveFloat = 0.01
    """V-MPO's bound on the KL divergence of a rollout."""
    multiplier_rate: PositiveFloat = 0.01
    """The learning rate of V-MPO's temperature and multiplier."""
    popart: Share = 0.01
    """The rate of PopArt's scale of values; of V-MPO."""
    eval_episodes: PositiveInt = 100
    """Episodes of the evaluation at the end; `formers eval` takes as many as it is asked for."""
    save_every: PositiveInt | None = None
    """Save a checkpoint every so many steps of the environment; unless given, every five minutes."""
    threads: PositiveInt = 1
    """Threads that torch computes with."""
    keep: PositiveInt = 3
    """How many of the newest checkpoints are kept, beside the best."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def budget(self) -> int | None:
        """The number of steps, or None where time decides alone."""
        return DEFAULT_STEPS if self.steps is None and self.minutes is None else self.steps

    @property
    def adam_epsilon(self) -> float:
        """What AdamW adds to the root of the second moment."""
        return self.epsilon if self.epsilon is not None else {"ppo": 1e-4, "vmpo": 1e-5}[self.algorithm]

    @property
    def optimiser(self) -> Settings:
        """The settings of the optimiser, as all trainings have them."""
        return Settings(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            beta2=self.beta2,
            clip=self.clip,
            schedule="constant",
            warmup=0,
        )

    def rate(self, progress: float) -> float:
        """The learning rate, `progress` of the budget spent."""
        return self.learning_rate * (1.0 if self.schedule == "constant" else max(1.0 - progress, 0.0))

    def with_budget(self, steps: int | None, minutes: float | None) -> AgentSettings:
        """The settings with another budget; with neither, as they are."""
        one_budget(steps, minutes)
        return self if steps is None and minutes is None else self.replace(steps=steps, minutes=minutes)
