"""An episode as it is drawn: the weights are those of the policy, and the files open."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import torch

import formers
from commands import command
from formers.inspect.draw.episode import draw_step, episode_page, save_episode
from formers.rl.environments import make
from formers.rl.play import play
from formers.rl.start import agent_spec
from helpers import refused

SIZES = {"dim": 16, "heads": 2, "layers": 2, "length": 8, "memory": 5}


def policy(member="gtrxl", **sizes):
    env = make("tmaze:3", 1)
    torch.manual_seed(0)
    return formers.build(agent_spec(member, env.observation, env.action, **sizes)).eval()


def test_weights_are_over_the_steps_of_the_episode():
    model = policy(**SIZES)
    played = play(model, make("tmaze:3", 1), seed=1)
    steps = len(played.rewards)
    whole = played.attention
    assert whole.shape == (steps, 2, 2, steps)
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, atol=1e-5)
    for t in range(steps):
        assert not whole[t, :, :, t + 1 :].any(), "the future"
        assert not whole[t, :, :, : max(0, t - 4)].any(), "further back than the memory"
    assert played.frames[0][1].startswith("@")


def test_files(tmp_path):
    played = play(policy(**SIZES), make("tmaze:3", 1), seed=1)
    from PIL import Image

    gif = save_episode(played, tmp_path / "a.gif")
    assert Image.open(io.BytesIO(gif.read_bytes())).n_frames == len(played.rewards)
    page = save_episode(played, tmp_path / "a.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["shape"] == list(played.attention.shape)
    assert "http" not in page.replace("http-equiv", "")
    played.frames[0][0] = "</script><script>alert(1)</script>"
    assert "<script>alert" not in episode_page(played)
    assert draw_step(played, 0).size[0] >= 640


def test_a_recurrent_policy_has_no_attention():
    played = play(policy("rnn", dim=16, length=8), make("tmaze:3", 1))
    assert played.attention.shape[1] == 0
    assert "no attention" in episode_page(played)


def test_one_copy():
    with refused("copies=1"):
        play(policy(**SIZES), make("tmaze:3", 2))


def test_the_verbs(tmp_path):
    run = tmp_path / "run"
    sets = [word for pair in ("dim=16", "heads=2", "length=8", "environments=4", "eval_episodes=8") for word in ("--set", pair)]
    done = command("train", "gtrxl", "--env", "tmaze:2", "--steps", "64", "--out", str(run), "--json", *sets)
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 64
    found = json.loads(command("eval", str(run), "--episodes", "7", "--json").stdout.splitlines()[-1])
    assert found["episodes"] == 7
    assert "mean_return" in found
    command("play", str(run), "--out", str(tmp_path / "e.html"))
    assert (tmp_path / "e.html").exists()
    assert json.loads(command("resume", str(run), "--steps", "128", "--json").stdout.splitlines()[-1])["steps"] == 128
    assert json.loads(command("doctor", "--env", "tmaze:2", "--json").stdout.splitlines()[-1])["env"] == "tmaze:2"
