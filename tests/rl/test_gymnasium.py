"""Environments of gymnasium: spaces, masks, restarts, replay, and the embedded ones registered there."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

import formers
import formers.rl
from formers.rl.checkup import check_environment
from formers.rl.environments import episode_seeds, make
from formers.rl.spaces import flatten, from_gymnasium, images, width
from helpers import refused

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402

SMALL = {"dim": 16, "length": 8, "environments": 3, "epochs": 1, "eval_episodes": 3, "quiet": True}


class Strange(gymnasium.Env):
    """A Dict of everything in, a mask of actions, and faults where they are asked for."""

    fault: ClassVar[str] = ""
    made: ClassVar[int] = 0

    def __init__(self, acts="discrete"):
        type(self).made += 1
        self.observation_space = spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (8, 9, 3), np.uint8),
                "pair": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 4])]),
                "numbers": spaces.Box(-1.0, 1.0, (2,), np.float32),
            }
        )
        kinds = {
            "discrete": spaces.Discrete(4, start=5),
            "multi": spaces.MultiDiscrete([2, 3]),
            "box": spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32)),
        }
        self.action_space = kinds[acts]

    def shown(self):
        seen = self.observation_space.sample()
        if Strange.fault == "nan":
            seen["numbers"][0] = np.nan
        if Strange.fault == "shape" and self.time == 2:
            seen["numbers"] = np.zeros(3, np.float32)
        if Strange.fault == "key" and self.time == 2:
            del seen["pair"]
        return seen

    def reset(self, *, seed=None, options=None):
        if Strange.fault == "reset":
            raise RuntimeError("no simulator")
        self.observation_space.seed(seed)
        self.time = 0
        return self.shown(), {"action_mask": np.array([0, 1, 1, 0])}

    def step(self, action):
        assert self.action_space.contains(action), action
        if isinstance(self.action_space, spaces.Discrete):
            assert action in (6, 7), "the mask allows these two"
        self.time += 1
        if Strange.fault == "raise" and self.time == 3:
            raise RuntimeError("a fault")
        return self.shown(), 0.5, False, self.time >= 5, {"action_mask": np.array([0, 1, 1, 0])}


gymnasium.register("Strange-v0", entry_point=Strange)


@pytest.fixture(autouse=True)
def sound():
    Strange.fault = ""
    yield
    Strange.fault = ""


def test_spaces_become_one_row_of_floats():
    env = Strange()
    space = from_gymnasium(env.observation_space, "it is")
    assert width(space) == 3 + 6 + 2 + 8 * 9 * 3
    assert images(space) == ((8, 9, 3),)
    env.reset(seed=3)
    seen, out = env.shown(), np.zeros(width(space), np.float32)
    flatten(space, seen, out)
    wanted = [seen["numbers"], np.eye(3)[seen["pair"][0] - 1], np.eye(2)[seen["pair"][1][0]], np.eye(4)[seen["pair"][1][1]]]
    np.testing.assert_allclose(out[:11], np.concatenate([wanted[0], *wanted[1:]]))
    np.testing.assert_allclose(out[11:], seen["picture"].reshape(-1) / 255.0, rtol=1e-6)
    with refused("Text"):
        from_gymnasium(spaces.Dict({"words": spaces.Text(4)}), "the observation space of it,")


@pytest.mark.parametrize("acts", ["discrete", "multi", "box"])
def test_agents_of_every_space_act_and_go_on(tmp_path, acts):
    name = f"Strange-v0:acts={acts}"
    whole = formers.rl.train("gtrxl", name, tmp_path / "whole", steps=96, save_every=24, **SMALL)
    formers.rl.train("gtrxl", name, tmp_path / "part", steps=48, save_every=24, **SMALL)
    done = formers.rl.resume(tmp_path / "part", steps=96, quiet=True)
    assert all(a.equal(b) for a, b in zip(done.model.state_dict().values(), whole.model.state_dict().values(), strict=True))
    assert whole.results["length"] == 5.0
    assert whole.results["mean_return"] == 2.5


def test_bounds_of_numbers_are_kept():
    head = formers.heads.PolicyValue(low=(-2.0, None), high=(4.0, None))
    got = head.bounded(torch.tensor([[0.0, 7.0], [9.0, -7.0], [-0.5, 0.0]]))
    assert got.tolist() == [[1.0, 7.0], [4.0, -7.0], [-0.5, 0.0]]


def test_a_copy_that_raises_is_made_anew_and_counted():
    Strange.fault = "raise"
    env = make("Strange-v0", 2)
    before = Strange.made
    env.reset(np.ones(2, bool), episode_seeds(0, np.arange(2), np.zeros(2, np.int64)))
    for _ in range(2):
        assert not env.step(np.array([1, 2])).restarted.any()
    assert env.step(np.array([1, 2])).restarted.tolist() == [True, True]
    assert Strange.made == before + 2
    assert env.failures == 2


def test_what_is_not_a_number_ends_the_run_with_its_last_checkpoint(tmp_path):
    formers.rl.train("gtrxl", "Strange-v0", tmp_path / "run", steps=24, **SMALL)
    Strange.fault = "nan"
    with refused("not a finite number", "copy 0"):
        formers.rl.train("gtrxl", "Strange-v0", steps=48, **SMALL)
    assert formers.load(tmp_path / "run") is not None


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("reset", ("copy 0 of Strange-v0", "RuntimeError at reset", "no simulator", "fix the environment")),
        ("shape", ("copy 0 of Strange-v0", "after 2 steps", "shape (3,)", "keep to its spaces")),
        ("key", ("copy 0 of Strange-v0", "after 2 steps", "pair", "keep to its spaces")),
    ],
)
def test_faults_that_end_a_run_name_the_copy_and_the_step(fault, words):
    Strange.fault = fault
    with refused(*words):
        formers.rl.train("gtrxl", "Strange-v0", steps=48, **SMALL)


def test_checks_before_training():
    assert all(check.wrong is None for check in check_environment("tmaze:4"))
    Strange.fault = "nan"
    assert any("NaN" in (check.wrong or "") for check in check_environment("Strange-v0", 20))
    Strange.fault = "raise"
    assert any("raised" in (check.wrong or "") for check in check_environment("Strange-v0", 20))


def test_names_of_environments():
    with refused("CartPole-v1"):
        make("CartPol-v1", 1)
    with refused("no_such_package"):
        make("no_such_package:Thing-v0", 1)
    with refused("actions=9"):
        make("Strange-v0:actions=9", 1)
    with refused("agent"):
        make("Strange-v0:agent=3", 1)
    with refused("sets nothing"):
        make("Strange-v0:agent=", 1)


def test_a_package_is_not_imported_by_a_run_of_somebody_else(tmp_path):
    formers.rl.train("gtrxl", "Strange-v0", tmp_path / "run", steps=24, **SMALL)
    facts = tmp_path / "run" / "run.json"
    facts.write_text(facts.read_text().replace('"env": "Strange-v0"', '"env": "evil_package:Strange-v0"'))
    with refused("evil_package", "--env"):
        formers.rl.evaluate_agent(tmp_path / "run", 2)
    assert formers.rl.evaluate_agent(tmp_path / "run", 2, env="Strange-v0")["episodes"] == 2


def test_embedded_environments_are_registered():
    import formers.rl.environments.registration  # noqa: F401

    env = gymnasium.make("formers/TMaze-v0", length=3)
    seen, _ = env.reset(seed=5)
    other = make("tmaze:3", 1)
    np.testing.assert_array_equal(seen, other.reset(np.ones(1, bool), np.array([5]))[0])
    for action in (0, 0, 0, 1):
        one, two = env.step(action), other.step(np.array([action]))
        np.testing.assert_array_equal(one[0], two.observation[0])
        assert (one[1], one[2], one[3]) == (two.reward[0], two.terminated[0], two.truncated[0])


def test_minigrid_shows_one_hot_cells():
    pytest.importorskip("minigrid")
    env = make("MiniGrid-MemoryS7-v0:agent_view_size=3,actions=3", 2)
    seen = env.reset(np.ones(2, bool), np.array([1, 2]))
    assert seen.shape == (2, 9 * 21 + 4)
    assert (seen.sum(axis=1) == 9 * 3 + 1).all()
    assert env.action.n == 3
