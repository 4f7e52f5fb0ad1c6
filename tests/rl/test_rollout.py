"""A rollout with the KV cache and the training pass over its segment compute the same, with episode ends anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import formers
from formers.rl.config import AgentSettings
from formers.rl.environments import make
from formers.rl.environments.base import Embedded, Step
from formers.rl.loop import AgentLoop
from formers.rl.rollout import Collector
from formers.rl.spaces import Box, Discrete
from formers.rl.start import agent_spec
from helpers import close, refused, sweep

SIZES = {"dim": 16, "heads": 2, "layers": 2, "length": 12, "memory": 7}
POLICIES = {
    "gtrxl": ("gtrxl", SIZES),
    "longer": ("gtrxl", {**SIZES, "memory": 30}),
    "feed-forward": ("gtrxl", {**SIZES, "memory": 1}),
    "trxl": ("gtrxl", {**SIZES, "norm": "post"}),
    "trxl-i": ("gtrxl", {**SIZES, "gate": "sum"}),
    "transformer-xl": ("transformer-xl", {**SIZES, "same_length": True}),
    "lstm": ("rnn", {"dim": 16, "length": 12}),
}


class Chance(Embedded):
    """Random observations and rewards; an episode ends, or is cut off, at any step."""

    arrays = ("seeds", "time")
    observation = Box((3,), (-9.0,) * 3, (9.0,) * 3)
    action = Discrete(4)
    name = "chance"

    def __init__(self, copies, ends=0.2, cuts=0.2):
        self.copies, self.ends, self.cuts = copies, ends, cuts
        self.seeds, self.time = np.zeros(copies, np.int64), np.zeros(copies, np.int64)

    def drawn(self):
        rows = [np.random.default_rng((int(s), int(t))) for s, t in zip(self.seeds, self.time, strict=True)]
        return np.stack([r.normal(size=3) for r in rows]).astype(np.float32), np.array([r.random() for r in rows])

    def reset(self, which, seeds):
        self.seeds[which], self.time[which] = seeds[which], 0
        return self.drawn()[0]

    def step(self, actions):
        self.time += 1
        seen, chance = self.drawn()
        ended = chance < self.ends
        cut = ~ended & (chance < self.ends + self.cuts)
        return Step(seen, seen[:, 0].astype(np.float64) * 0.1 * actions, ended, cut, ended, np.zeros(self.copies, np.bool_))


def agent(name, env, dtype=torch.float64, **settings):
    """An agent's training whose weights are not what they start as."""
    member, sizes = POLICIES[name]
    torch.manual_seed(3)
    model = formers.build(agent_spec(member, env.observation, env.action, **sizes)).to(dtype).train()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return AgentLoop(model, env, AgentSettings(environments=env.copies, minibatches=2, epochs=1, **settings))


@sweep(("name", "dtype"), [(name, dtype) for name in POLICIES for dtype in (torch.float64, torch.float32)])
def test_probabilities_of_rollout_and_training_agree(name, dtype):
    loop = agent(name, Chance(6), dtype)
    for _ in range(4):  # the memory of the first segment is empty, that of the others was made with older weights
        assert loop.advance()["ratio_error"] <= (1e-10 if dtype == torch.float64 else 1e-4)
    assert loop.collector.ended > 40


@sweep("name", POLICIES)
def test_values_of_final_observations_know_their_episode(name):
    """Behind a time limit the value is that of the whole episode and its final observation, read alone."""
    loop = agent(name, Chance(4, ends=0.0, cuts=0.15))
    loop.advance()
    collector, env = loop.collector, loop.environments
    before = {name: value.copy() for name, value in collector.get_state().items()}
    segment = collector.collect(12, 5)
    again = Chance(4, ends=0.0, cuts=0.15)  # its own replay shows what the final observations were
    again.set_state({key.removeprefix("env."): value for key, value in before.items() if key.startswith("env.")})
    checked = 0
    for t in range(12):
        step = again.step(segment.actions[:, t].numpy())
        for row in np.flatnonzero(step.truncated):
            own = segment.episodes[row, : t + 1] == segment.episodes[row, t]
            if segment.episodes[row, 0] == segment.episodes[row, t]:
                continue  # its first steps are in the memory
            steps = torch.cat([segment.observations[row, : t + 1][own], torch.from_numpy(step.observation[row])[None].double()])
            with torch.no_grad():
                close(segment.next_values[row, t], loop.model(steps[None]).value[0, -1])
            checked += 1
        if step.truncated.any():
            after = segment.observations[:, t + 1] if t < 11 else None
            again.seeds[step.truncated], again.time[step.truncated] = env.seeds[step.truncated], 0
            if after is None:
                break
            # the seeds of later episodes follow from their numbers
            from formers.rl.environments import episode_seeds

            ids = segment.episodes[:, t + 1].numpy()
            again.seeds[step.truncated] = episode_seeds(0, np.arange(4), ids)[step.truncated]
            close(torch.from_numpy(again.drawn()[0]).double()[step.truncated], after[step.truncated])
    assert checked >= 2


def test_a_time_limit_has_the_value_of_a_closed_form():
    """A reward of 1 at every step, and episodes of 5 steps that a time limit cuts off: returns are 1 / (1 - gamma) where values say so."""

    class Ones(Chance):
        def step(self, actions):
            self.time += 1
            no = np.zeros(self.copies, np.bool_)
            return Step(np.ones((self.copies, 3), np.float32), np.ones(self.copies), no, self.time == 5, no, no)

    loop = agent("gtrxl", Ones(3), gamma=0.9)
    with torch.no_grad():
        loop.model.head.worth.weight.zero_()
        loop.model.head.worth.bias.fill_(10.0)
    segment = loop.collector.collect(12, 0)
    from formers.rl.returns import advantages

    gains = advantages(segment.rewards, segment.values, segment.next_values, segment.terminated, segment.done, 0.9, 0.95)
    close(gains, torch.zeros_like(gains))
    assert segment.done.sum() == 6


@sweep("name", POLICIES)
def test_an_earlier_episode_changes_nothing(name):
    """Bit for bit: only the observations of the first episodes differ."""
    found = []
    for shift in (0.0, 3.0):
        loop = agent(name, Chance(4, ends=0.3, cuts=0.0))
        segment = loop.collector.collect(12, 0)
        first = segment.episodes == segment.episodes[:, :1]
        seen = torch.where(first[..., None], segment.observations + shift, segment.observations)
        with torch.no_grad():
            out = loop.model(seen, state=segment.state, episodes=segment.episodes)
        found.append((out.logits[~first], out.value[~first]))
    assert len(found[0][1]) > 10
    assert all(a.equal(b) for a, b in zip(*found, strict=True))


def test_the_policy_is_a_plain_module():
    env = make("tmaze:3", 2)
    model = formers.build(agent_spec("gtrxl", env.observation, env.action, **SIZES))
    state = model.initial_state(2)
    out = model(torch.zeros(2, 1, 4), state=state, episodes=torch.zeros(2, 1, dtype=torch.long))
    assert out.logits.shape == (2, 1, 3)
    assert out.value.shape == (2, 1)
    model(torch.zeros(2, 1, 4), state=out.state.reset(torch.tensor([True, False])))


def test_a_segment_longer_than_an_episode_and_one_environment():
    loop = agent("gtrxl", make("tmaze:1", 1))
    assert loop.advance()["ratio_error"] < 1e-10


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_what_is_not_finite_is_refused(what):
    class Bad(Chance):
        def step(self, actions):
            step = super().step(actions)
            if what == "reward":
                step.reward[1] = np.inf
            else:
                step.observation[1, 0] = np.nan
            return step

    with refused(f"{what} that is not a finite number", "copy 1", "step 1", "episode 0"):
        Collector(agent("gtrxl", Chance(3)).model, Bad(3), 0).collect(4, 0)


def test_a_copy_that_raises_begins_anew_alone():
    class Raises(Chance):
        def step(self, actions):
            step = super().step(actions)
            step.restarted[2] = self.time[2] == 2
            return step

    loop = agent("gtrxl", Raises(4, ends=0.0, cuts=0.0))
    segment = loop.collector.collect(12, 0)
    assert loop.collector.restarts == 6
    assert segment.done.sum(dim=1).tolist() == [0, 0, 6, 0]
    assert loop.collector.ended == 0


@sweep(("member", "sizes", "word"), [
    ("decoder", {}, "Sinusoidal"),
    ("transformer-xl", {"memory": 4}, "same_length"),
    ("gtrxl", {"memory": 0}, "memory=0"),
    ("encoder", {}, "not causal"),
])  # fmt: skip
def test_members_that_cannot_act_are_refused(member, sizes, word):
    env = make("tmaze:3", 1)
    with refused(word):
        agent_spec(member, env.observation, env.action, **sizes)
