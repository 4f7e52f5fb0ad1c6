"""Reinforcement learning with memory: environments, rollouts, PPO and V-MPO.

import formers.rl
done = formers.rl.train("gtrxl", "tmaze:20", "runs/maze", steps=150_000)
done.model(observations, state=done.model.initial_state(8), episodes=ids)    # logits and value; state goes in and comes out
"""

from formers.rl.config import AgentSettings
from formers.rl.environments import make
from formers.rl.evaluation import evaluate
from formers.rl.rollout import Collector, Segment
from formers.rl.start import TrainedAgent, agent_spec, evaluate_agent, open_agent, resume, train

__all__ = [
    "AgentSettings", "Collector", "Segment", "TrainedAgent", "agent_spec", "evaluate", "evaluate_agent", "make", "open_agent", "resume",
    "train",
]  # fmt: skip
