"""The embedded environments: what they show, what they reward, their seeds and their states as arrays."""

from __future__ import annotations

import numpy as np
import pytest

from formers.rl.environments import episode_seeds, make
from formers.rl.environments.tmaze import FORWARD, LEFT, RIGHT
from helpers import refused, sweep

NAMES = ("tmaze:3", "corridor:3", "recall:4,3")


def begun(name, copies=4, seed=0):
    """An environment whose copies have all begun their first episode, and what they show."""
    env = make(name, copies)
    rows = np.arange(copies)
    return env, env.reset(np.ones(copies, bool), episode_seeds(seed, rows, np.zeros(copies, np.int64)))


def test_the_t_maze_is_solved_by_remembering_the_cue():
    env, seen = begun("tmaze:3", 64)
    assert set(seen[:, :2].argmax(1)) == {0, 1}
    cue = seen[:, :2].argmax(1)
    total = np.zeros(64)
    for t in range(3):
        step = env.step(np.full(64, FORWARD))
        total += step.reward
        assert not step.observation[:, :2].any()
        assert (step.observation[:, 3] == (t == 2)).all()
        assert not (step.terminated | step.truncated).any()
    step = env.step(LEFT + cue)
    assert (total + step.reward == 1.0).all()
    assert step.terminated.all()
    assert step.success.all()


def test_rewards_and_the_time_limit_of_the_t_maze():
    env, seen = begun("tmaze:2", 1)
    assert env.step(np.array([LEFT])).reward[0] == -0.01
    for _ in range(2):
        assert env.step(np.array([FORWARD])).reward[0] == 0.0
    assert env.step(np.array([FORWARD])).reward[0] == -0.01  # no way on at the junction
    for _ in range(11):
        step = env.step(np.array([FORWARD]))
        assert not step.truncated[0]
    step = env.step(np.array([FORWARD]))  # step 16 = 3 * 2 + 10
    assert step.truncated[0]
    assert not step.terminated[0]
    env, seen = begun("tmaze:2", 1)
    for _ in range(2):
        env.step(np.array([FORWARD]))
    wrong = env.step(np.array([LEFT + 1 - seen[0, :2].argmax()]))
    assert (wrong.reward[0], wrong.terminated[0], wrong.success[0]) == (0.0, True, False)


def test_the_corridor_shows_its_cue_at_every_step():
    env, seen = begun("corridor:3", 8)
    cue = seen[:, :2].copy()
    for _ in range(3):
        assert (env.step(np.full(8, FORWARD)).observation[:, :2] == cue).all()
    assert RIGHT == LEFT + 1


def test_recall_asks_for_every_place_once():
    env, seen = begun("recall:4,3", 16)
    shown = [seen[:, :4].argmax(1)]
    for _ in range(2):
        shown.append(env.step(np.zeros(16)).observation[:, :4].argmax(1))
    seen, total, asked = env.step(np.zeros(16)).observation, np.zeros(16), []
    for _ in range(3):
        place = seen[:, 4:].argmax(1)
        asked.append(place)
        step = env.step(np.array([shown[p][i] for i, p in enumerate(place)]))
        seen, total = step.observation, total + step.reward
    np.testing.assert_allclose(total, 1.0)
    assert step.terminated.all()
    assert step.success.all()
    assert (np.sort(np.stack(asked), axis=0) == np.arange(3)[:, None]).all()


@sweep("name", NAMES)
def test_a_state_goes_on_as_the_environment_did(name):
    env, _ = begun(name)
    env.step(np.zeros(4, np.int64))
    state = env.get_state()
    other = make(name, 4)
    other.set_state(state)
    for action in ([0, 1, 2, 0], [0, 0, 1, 1]):
        one, two = env.step(np.array(action)), other.step(np.array(action))
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    with refused("it is of another"):
        make("tmaze:3", 5).set_state(begun("tmaze:3", 4)[0].get_state())


def test_seeds_are_a_function_of_seed_copy_and_episode():
    rows, zeros = np.arange(1000), np.zeros(1000, np.int64)
    first = episode_seeds(0, rows, zeros)
    assert np.array_equal(first, episode_seeds(0, rows, zeros))
    both = np.concatenate([first, episode_seeds(0, rows, zeros + 1), episode_seeds(1, rows, zeros)])
    assert len(set(both.tolist())) == 3000
    assert (both >= 0).all()
    assert (both < 2**31).all()
    assert np.array_equal(episode_seeds(0, rows[5:6], zeros[:1]), first[5:6])


@pytest.mark.parametrize("name", ["tmaze", "tmaze:0", "tmaze:x", "recall:4", "tmazes:3", "", "tmaze:1,2", "nothing"])
def test_a_wrong_name_is_refused(name):
    with refused():
        make(name, 2)
