"""Steps of the environment a CPU second, rollout and update: ours beside RLlib's GTrXL and sb3-contrib's recurrent PPO, in turn.

In an environment of its own, in the root of this repository:

    python -m venv /tmp/agents && /tmp/agents/bin/pip install --constraint constraints.txt . 'ray[rllib]' sb3-contrib
    OMP_NUM_THREADS=1 taskset -c 0 /tmp/agents/bin/python tools/agents_throughput.py

All have 32 copies of tmaze:20, segments of 64 steps and three epochs of four minibatches, which nothing ends early. GTrXL has 2 layers,
width 64, 4 heads of 16, 128 hidden units and a memory of 64 steps in both libraries. `rnn` is one LSTM of 128 units; sb3-contrib is
measured with the same, shared by actor and critic, and with its default, an LSTM of 256 units for each of them. RLlib's GTrXL is that of
its old API stack, the only one that has it, in this process. The others step a T-maze in plain Python, which is faster for them than the
embedded one, whose copies run together in NumPy. CPU time is this process's. The first updates of each are not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

COPIES, LENGTH, EPOCHS, MINIBATCHES, RATE = 32, 64, 3, 4, 1e-3
STEPS = COPIES * LENGTH
CORRIDOR = 20
Advance = Callable[[], int]
"""One rollout and one update; the steps of the environment that it took."""


class Maze(gymnasium.Env[Any, Any]):
    """tmaze:20 of this package, in plain Python."""

    def __init__(self, _: Any = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.place = self.cue = self.time = 0

    def seen(self) -> Any:
        """Cue left, cue right, corridor, junction."""
        row = [0.0, 0.0, 0.0, 0.0]
        row[2 + (self.place == CORRIDOR)] = 1.0
        if self.time == 0:
            row[self.cue] = 1.0
        return np.array(row, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        self.place, self.time, self.cue = 0, 0, int(self.np_random.integers(2))
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action."""
        action, ended, reward = int(action), False, -0.01
        if self.place == CORRIDOR:
            if action != 0:
                ended, reward = True, float(action == 1 + self.cue)
        elif action == 0:
            self.place, reward = self.place + 1, 0.0
        self.time += 1
        return self.seen(), reward, ended, not ended and self.time >= 3 * CORRIDOR + 10, {}


def ours(member: str, **sizes: Any) -> Advance:
    """A member of this package."""
    from formers.model import build
    from formers.rl.environments import make
    from formers.rl.loop import AgentLoop
    from formers.rl.start import agent_spec, arranged

    options = {"length": LENGTH, "environments": COPIES, "epochs": EPOCHS, "minibatches": MINIBATCHES, "learning_rate": RATE}
    given, settings = arranged(member, {**options, "target_kl": None, **sizes}, 10**9, None, 0)
    environments = make(f"tmaze:{CORRIDOR}", COPIES)
    loop = AgentLoop(build(agent_spec(member, environments.observation, environments.action, **given)).train(), environments, settings)

    def advance() -> int:
        before = loop.step
        loop.advance()
        return loop.step - before

    return advance


def rllib() -> Advance:
    """RLlib's GTrXL with PPO."""
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.tune.registry import register_env

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    register_env("maze", Maze)
    model = {
        "use_attention": True, "max_seq_len": LENGTH, "attention_num_transformer_units": 2, "attention_dim": 64, "attention_num_heads": 4,
        "attention_head_dim": 16, "attention_memory_inference": 64, "attention_memory_training": 64,
        "attention_position_wise_mlp_dim": 128, "fcnet_hiddens": [64], "vf_share_layers": True,
    }  # fmt: skip
    config = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment("maze")
        .framework("torch")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=COPIES, rollout_fragment_length=LENGTH)
        .training(model=model, train_batch_size=STEPS, minibatch_size=STEPS // MINIBATCHES, num_epochs=EPOCHS, lr=RATE, grad_clip=0.5)
    )
    algorithm = config.build_algo()
    policy, seen = algorithm.get_policy(), 0
    sizes = sum(p.numel() for p in policy.model.parameters())
    sys.stderr.write(f"RLlib's model has {sizes:,} parameters\n")

    def advance() -> int:
        nonlocal seen
        total = int(algorithm.train()["num_env_steps_sampled_lifetime"])
        new, seen = total - seen, total
        return new

    return advance


def sb3(**sizes: Any) -> Advance:
    """sb3-contrib's recurrent PPO, whose actor and critic have an LSTM of 256 units each unless sizes say otherwise."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    agent = RecurrentPPO(
        "MlpLstmPolicy", DummyVecEnv([Maze] * COPIES), n_steps=LENGTH, batch_size=STEPS // MINIBATCHES, n_epochs=EPOCHS, learning_rate=RATE,
        policy_kwargs=sizes, device="cpu", seed=0,
    )  # fmt: skip
    total, callback = agent._setup_learn(10**9)

    def advance() -> int:
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, n_rollout_steps=LENGTH)
        agent.train()
        return STEPS

    del total
    return advance


KINDS: dict[str, Callable[[], Advance]] = {
    "`gtrxl`": lambda: ours("gtrxl", dim=64, heads=4, layers=2, hidden=128, memory=64),
    "`rnn`": lambda: ours("rnn", dim=128, layers=1),
    "RLlib, GTrXL": rllib,
    "sb3-contrib, one LSTM of 128": lambda: sb3(lstm_hidden_size=128, shared_lstm=True, enable_critic_lstm=False),
    "sb3-contrib, its default": sb3,
}


def main() -> None:
    """Measures all in turn, and prints a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--updates", type=int, default=4, help="of each in a round")
    given = asked.parse_args()
    torch.set_num_threads(1)
    advances = {name: begin() for name, begin in KINDS.items()}
    torch.set_num_threads(1)  # RLlib may have changed it
    for advance in advances.values():
        for _ in range(2):
            advance()
    speeds: dict[str, list[float]] = {name: [] for name in advances}
    for _ in range(given.rounds):
        for name, advance in advances.items():
            start = time.process_time()
            steps = sum(advance() for _ in range(given.updates))
            speeds[name].append(steps / (time.process_time() - start))
    first = median(speeds["`gtrxl`"])
    lines = ["|  | steps a CPU second | lowest and highest round | `gtrxl` is faster by |", "|---|---:|---:|---:|"]
    for name, each in speeds.items():
        lines.append(f"| {name} | {median(each):,.0f} | {min(each):,.0f} - {max(each):,.0f} | {first / median(each):.2f} |")
    with_ = ", ".join(f"{name} {version(name)}" for name in ("torch", "ray", "sb3-contrib", "gymnasium"))
    rounds = f"{given.rounds} rounds of {given.updates} updates each, {STEPS:,} steps an update"
    lines.append(f"\n{rounds}. {os.cpu_count()} cores, {platform.machine()}, one thread; {with_}, Python {platform.python_version()}.")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
