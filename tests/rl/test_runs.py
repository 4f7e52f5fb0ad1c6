"""An agent's run: its folder, evaluation, and going on bit for bit after it was stopped or killed anywhere."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

import formers
import formers.rl
from formers.model.files import newest
from formers.rl.loop import AgentLoop
from helpers import refused

SMALL = {"dim": 16, "heads": 2, "length": 8, "environments": 4, "minibatches": 2, "epochs": 2, "eval_episodes": 8, "quiet": True}


def figures(folder):
    """What a run's metrics say of its updates, but for times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]


def same_weights(one, two):
    return all(a.equal(b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("member", "more"),
    [("gtrxl", {"memory": 6}), ("rnn", {"heads": None}), ("gtrxl", {"memory": 6, "algorithm": "vmpo", "dropout": 0.1})],
)
def test_a_run_goes_on_bit_for_bit(tmp_path, member, more):
    sizes = {name: value for name, value in {**SMALL, **more}.items() if value is not None}
    whole = formers.rl.train(member, "tmaze:3", tmp_path / "whole", steps=640, save_every=32, **sizes)
    for stop in (96, 352):
        part = tmp_path / f"part-{stop}"
        formers.rl.train(member, "tmaze:3", part, steps=stop, save_every=32, **sizes)
        done = formers.rl.resume(part, steps=640, quiet=True)
        assert same_weights(done.model, whole.model)
        mine = [line for line in figures(part) if "loss" in line]
        assert mine == [line for line in figures(tmp_path / "whole") if "loss" in line]


def test_a_run_is_a_function_of_its_seed(tmp_path):
    one, two, other = (formers.rl.train("gtrxl", "recall:3,2", steps=256, seed=seed, **SMALL) for seed in (0, 0, 1))
    assert same_weights(one.model, two.model)
    assert not same_weights(one.model, other.model)
    assert one.results["mean_return"] == two.results["mean_return"]


def test_evaluation_of_a_run(tmp_path):
    formers.rl.train("gtrxl", "tmaze:3", tmp_path / "run", steps=64, **SMALL)
    found = formers.rl.evaluate_agent(tmp_path / "run", 10)
    assert found["episodes"] == 10
    assert {"mean_return", "iqm_return", "iqm_low", "iqm_high", "success", "length"} < set(found)
    assert found == formers.rl.evaluate_agent(tmp_path / "run", 10)
    model = formers.load(tmp_path / "run")
    assert model.spec.head.choices == (3,)
    with refused("was not trained on"):
        formers.rl.evaluate_agent(tmp_path / "run", 4, env="recall:3,2")
    with refused("run of an agent"):
        formers.resume(tmp_path / "run", steps=128)
    with refused("contains a run"):
        formers.rl.train("gtrxl", "tmaze:3", tmp_path / "run", steps=64, **SMALL)
    with refused("has spent its budget"):
        formers.rl.resume(tmp_path / "run")


def test_wrong_options():
    for options, word in (({"entropies": 1}, "entropy"), ({"vocab": 3}, "vocab"), ({"epochs": 0}, "epochs"), ({"algorithm": "dqn"}, "ppo")):
        with refused(word):
            formers.rl.train("gtrxl", "tmaze:3", steps=64, **options)
    with refused("two budgets"):
        formers.rl.train("gtrxl", "tmaze:3", steps=64, minutes=1.0)
    with refused("tmaze:20"):
        formers.rl.train("gtrxl", "tmace:3", steps=64)


def test_a_loss_that_is_no_number_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    formers.rl.train("gtrxl", "tmaze:3", tmp_path / "run", steps=64, save_every=32, **SMALL)
    before = newest(tmp_path / "run", print)
    advance = AgentLoop.advance

    def ruined(self):
        with torch.no_grad():
            self.model.head.out.bias.fill_(float("nan"))
        return advance(self)

    monkeypatch.setattr(AgentLoop, "advance", ruined)
    with pytest.raises(formers.FormersError):
        formers.rl.resume(tmp_path / "run", steps=128, quiet=True)
    assert newest(tmp_path / "run", print) == before


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    """Twenty kills; the weights and figures are those of the run that nobody disturbed."""
    options = [
        "--steps",
        "16384",
        "--save-every",
        "256",
        "--set",
        "dim=16",
        "--set",
        "heads=2",
        "--set",
        "length=16",
        "--set",
        "environments=8",
    ]
    start = [sys.executable, "-m", "formers", "train", "gtrxl", "--env", "tmaze:4", "--track", "none", "-q", *options]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    subprocess.run([*start, "--out", str(tmp_path / "whole")], check=True, **quiet)
    chance, run, kills = random.Random(1), tmp_path / "killed", 0
    command = [*start, "--out", str(run)]
    while kills < 20:
        process = subprocess.Popen(command, **quiet)
        while not (run / "run.json").exists():
            time.sleep(0.05)
        time.sleep(1.5 + chance.random())
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        command = [sys.executable, "-m", "formers", "resume", str(run), "-q"]
        if json.loads((run / "run.json").read_text())["finished"]:
            break
    if not json.loads((run / "run.json").read_text())["finished"]:
        subprocess.run(command, check=True, **quiet)
    assert kills >= 5
    assert same_weights(formers.load(run), formers.load(tmp_path / "whole"))
    mine, theirs = ([line for line in figures(f) if "loss" in line] for f in (run, tmp_path / "whole"))
    assert mine == theirs
