"""Beginning the training of an agent, going on with one, and evaluating one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from formers.core import FormersError, nearest
from formers.core.paths import given_path
from formers.family.members import member as find_member
from formers.family.members import spec as member_spec
from formers.heads import PolicyValue
from formers.inputs import Features, Observations
from formers.memory import Recurrence
from formers.model import Model, Spec, build
from formers.model.episodes import obstacle
from formers.model.files import newest
from formers.model.save import load
from formers.patterns import Local
from formers.rl.config import AgentSettings
from formers.rl.environments import Environments, make
from formers.rl.evaluation import Report, evaluate
from formers.rl.loop import AgentLoop
from formers.rl.spaces import Box, Discrete, MultiDiscrete, Space, images, width
from formers.training import checkpoint as checkpoints
from formers.training.checkpoint import put_aside, sweep
from formers.training.config import one_budget
from formers.training.divergence import Diverged
from formers.training.folder import FORMAT, beginning, begun, claimed, command, describe, read_facts, versions
from formers.training.interrupts import Interrupts, terminable
from formers.training.log import Log
from formers.training.trainer import SAVE_SECONDS
from formers.training.validation import peak_memory

log = logging.getLogger(__name__)

SHOWN = ("return", "success", "length", "entropy", "kl")
"""Figures beside the bar."""
DEFAULTS: dict[str, dict[str, Any]] = {"rnn": {"dim": 128, "layers": 1, "length": 64}}
"""Sizes of members whose own defaults are for text."""


@dataclass(frozen=True)
class TrainedAgent:
    """A trained policy, the figures of its evaluation on fresh episodes, and the name of its environment."""

    model: Model
    results: dict[str, Any]
    env: str


def agent_spec(member: str, observation: Space, action: Space, preset: str | None = None, **options: Any) -> Spec:
    """The spec of a member as a policy: observations in, scores of actions and a value out."""
    usual = {} if preset is not None else DEFAULTS.get(member, {})
    known = find_member(member).options
    if "vocab" not in known:
        raise FormersError(f"{member} does not read a stream step by step: use gtrxl, or rnn.")
    spec = member_spec(member, preset=preset, vocab=1, **{**usual, **options})
    pictures = images(observation)
    into = Observations(images=pictures) if pictures else Features()
    spec = spec.replace(vocab=None, features=width(observation), input=into, head=_head(action))
    why = obstacle(spec)
    if why is not None:
        raise FormersError(f"{member} cannot be an agent's memory, because {why}: use gtrxl, or rnn.")
    sees = spec.pattern.at(0)
    if isinstance(spec.memory, Recurrence) and not (isinstance(sees, Local) and sees.window <= spec.memory.length):
        raise FormersError(
            "same_length=False shows a step more of its segment in training than in a rollout: leave it out, so that every step sees "
            "exactly the last `memory` steps in both."
        )
    return spec


def _head(action: Space) -> PolicyValue:
    if isinstance(action, Discrete):
        return PolicyValue(choices=(action.n,))
    if isinstance(action, MultiDiscrete):
        return PolicyValue(choices=action.counts)
    if isinstance(action, Box):
        low, high = (tuple(x if math.isfinite(x) else None for x in side) for side in (action.low, action.high))
        return PolicyValue(low=low, high=high)
    raise FormersError("the action space is a Dict or Tuple, which is not supported: use Discrete, MultiDiscrete or Box.")


def arranged(
    member: str, options: Mapping[str, Any], steps: int | None, minutes: float | None, seed: int
) -> tuple[dict[str, Any], AgentSettings]:
    """A member's sizes and the settings of an agent's training, from options that name either; an unknown one is refused."""
    one_budget(steps, minutes)
    known = [name for name in find_member(member).options if name != "vocab"]
    mine = [name for name in AgentSettings.model_fields if name not in ("steps", "minutes", "seed")]
    never = find_member(member).never
    for name in options:
        if name in never:
            raise FormersError(never[name])
        if name not in (*known, *mine):
            raise FormersError(f"{member} has no option {name!r}, nor has an agent's training: {nearest(name, [*known, *mine])}")
    sizes = {name: value for name, value in options.items() if name in known}
    chosen = {name: value for name, value in options.items() if name not in known}
    return sizes, AgentSettings(steps=steps, minutes=minutes, seed=seed, **chosen)


def train(
    member: str,
    env: str,
    out: str | Path | None = None,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    preset: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
    track: str = "auto",
    **options: Any,
) -> TrainedAgent:
    """Trains a member as the policy of an environment, saves it in the run folder `out` as it goes, and evaluates it on fresh episodes.

    env: tmaze:20, corridor:20, recall:4,3, an id of gymnasium such as MiniGrid-MemoryS7-v0:agent_view_size=3,actions=3, or package:Name-v0.
    steps: of the environment, over all copies. Options are the member's sizes (memory=128) and settings of AgentSettings (entropy=0.02).
    """
    if out is not None:
        given_path("out", out, "the folder to save the run in")
    sizes, chosen = arranged(member, options, steps, minutes, seed)
    start = time.monotonic()
    environments = make(env, chosen.environments)
    spec = agent_spec(member, environments.observation, environments.action, preset, **sizes)
    with ExitStack() as stack:
        stack.callback(environments.close)
        stack.enter_context(terminable())
        stack.enter_context(threads(chosen.threads))
        folder = None if out is None else Path(out)
        if folder is not None:
            stack.enter_context(claimed(folder))
            stack.enter_context(beginning(folder, overwrite))
        torch.manual_seed(seed)
        loop = AgentLoop(build(spec).train(), environments, chosen)
        facts = {
            "format": FORMAT, "member": member, "preset": preset, "env": env, "data": env, "fingerprint": "", "reading": {}, "from": None,
            "about": env, "sizes": sizes, "settings": dict(chosen), "spec": spec.model_dump(mode="json"), "protocol": {},
            "parameters": loop.model.parameter_count(), "device": "cpu", "processes": 1, "versions": versions(), "command": command(),
            "track": track, "finished": False, "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        return _go(loop, folder, facts, quiet, None, start)


def resume(run: str | Path, *, steps: int | None = None, minutes: float | None = None, quiet: bool = False) -> TrainedAgent:
    """Goes on with an agent's run from its newest sound checkpoint, bit for bit as if it had never stopped; perhaps to another budget."""
    start, folder = time.monotonic(), given_path("run", run, "the folder of a run")
    facts = agent_facts(folder)
    chosen = AgentSettings(**facts["settings"]).with_budget(steps, minutes)
    if facts["finished"] and steps is None and minutes is None:
        raise FormersError(f"{folder} has spent its budget: give more with --steps or --minutes, counted from its beginning.")
    with ExitStack() as stack:
        stack.enter_context(terminable())
        stack.enter_context(threads(chosen.threads))
        stack.enter_context(claimed(folder, True))
        with Log(None, quiet=quiet) as console:
            sweep(folder)
            found = newest(folder, console.say)
        if found is None:
            raise FormersError(f"{folder} has no checkpoint to go on from: train again.")
        environments = make(facts["env"], chosen.environments)
        stack.callback(environments.close)
        torch.manual_seed(chosen.seed)
        loop = AgentLoop(build(Spec(**facts["spec"])).train(), environments, chosen)
        keep = loop.restore(found)
        if steps is not None and loop.step > steps:
            raise FormersError(f"{folder} is at step {loop.step:,} already: a budget counts from the beginning of the run; give more.")
        facts = {**facts, "settings": dict(chosen), "finished": False, "versions": versions()}
        put_aside(folder, loop.step)
        describe(folder, facts)
        return _go(loop, folder, facts, quiet, keep, start)


def evaluate_agent(
    run: str | Path,
    episodes: int = 200,
    *,
    env: str | None = None,
    seed: int = 0,
    sample: bool = False,
    checkpoint: Literal["last", "best"] = "last",
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """The figures of an agent's run over so many fresh episodes of its own environment, or of another one that fits.

    The package of an environment that is not embedded is imported only where `env` names it: a run's folder may be another's.
    """
    model, environments = open_agent(run, min(episodes, 20), env, checkpoint)
    try:
        report = evaluate(model, environments, episodes, seed=seed, sample=sample, progress=progress)
    finally:
        environments.close()
    return {**report.figures(), "actions": "sampled" if sample else "most probable", "env": environments.name}


def open_agent(
    run: str | Path, copies: int, env: str | None = None, checkpoint: Literal["last", "best"] = "last", drawn: bool = False
) -> tuple[Model, Environments]:
    """The policy of a run, and copies of its environment."""
    folder = given_path("run", run, "the folder of a run")
    facts = agent_facts(folder)
    name = str(facts["env"]) if env is None else env
    if env is None and _foreign(name):
        raise FormersError(f"{folder} was trained on {name}, whose package is only imported if you ask for it: give --env {name}.")
    environments = make(name, copies, drawn)
    model = load(folder, "cpu", checkpoint)
    head, wanted = model.spec.head, _head(environments.action)
    if model.spec.features != width(environments.observation) or not isinstance(head, PolicyValue) or head.choices != wanted.choices:
        raise FormersError(
            f"{name} shows {width(environments.observation)} numbers and takes {environments.action}, which {folder} was not trained on: "
            f"give the environment of the run, {facts['env']}."
        )
    return model, environments


def _foreign(name: str) -> bool:
    """Whether an environment's name asks for a package of its own to be imported: package:Name-v0."""
    pieces = name.split(":")
    return len(pieces) > 1 and "-v" in pieces[1]


def agent_facts(folder: Path) -> dict[str, Any]:
    """What an agent's run says of itself."""
    facts = read_facts(folder)
    if "env" not in facts:
        raise FormersError(f"{folder} is not an agent's run: it was trained on {facts['data']}.")
    return facts


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it torch computes with so many threads: tensors this small are slower with more."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _go(loop: AgentLoop, folder: Path | None, facts: dict[str, Any], quiet: bool, keep: int | None, start: float) -> TrainedAgent:
    """Trains until the budget is spent or a signal comes, then evaluates."""
    with Interrupts() as interrupts, Log(folder, quiet=quiet, sinks=facts["track"], keep=keep, facts=facts) as log:
        shape = f"{loop.settings.environments} copies x {loop.length} steps"
        log.say(f"{facts['member']}: {facts['parameters']:,} parameters; environment: {facts['env']}, {shape}; {loop.settings.algorithm}")
        if keep is not None:
            log.say(f"going on from step {loop.step:,}")
        if folder is not None and keep is None:
            _save(folder, loop, log)
            describe(folder, facts)
            begun(folder)
        waited = round(time.monotonic() - start, 2)
        _run(loop, log, folder, interrupts)
        results = {**_finish(loop, log, str(facts["env"])), "start_seconds": waited}
        if folder is not None:
            describe(folder, {**facts, "finished": True, "steps": loop.step, "results": results})
    return TrainedAgent(loop.model.eval(), results, str(facts["env"]))


def _run(loop: AgentLoop, log: Log, folder: Path | None, interrupts: Interrupts) -> None:
    """Rollouts and updates, with all that is shown, recorded and saved between them."""
    saved, restarts = time.monotonic(), loop.collector.restarts
    while loop.progress < 1.0:
        if interrupts.caught:
            if folder is not None:
                _save(folder, loop, log)
                log.say(f"stopped at step {loop.step:,}: go on with `formers resume {folder}`")
            interrupts.leave()
        before = loop.step
        figures = loop.advance()
        start = time.perf_counter()
        told = {name: figures[name] for name in SHOWN if name in figures}
        log.step(loop.step, loop.progress, {**told, "steps/s": loop.step / max(loop.busy, 1e-9)})
        log.record(often=True, step=loop.step, **figures, seconds=round(loop.seconds, 3))
        if loop.collector.restarts > restarts:
            restarts = loop.collector.restarts
            log.say(f"step {loop.step:,}: {restarts} restarts of copies that raised an error so far")
        every = loop.settings.save_every
        due = time.monotonic() - saved >= SAVE_SECONDS if every is None else before // every < loop.step // every
        best = loop.note_best() and loop.progress > 0.1 and time.monotonic() - saved >= 1.0
        if folder is not None and (due or best or loop.progress >= 1.0):
            _save(folder, loop, log)
            saved = time.monotonic()
        loop.seconds += time.perf_counter() - start


def _save(folder: Path, loop: AgentLoop, log: Log) -> None:
    """Saves a checkpoint, unless the weights are not finite: then the run ends, and what was saved stays the last."""
    if not all(bool(value.isfinite().all()) for value in loop.model.state_dict().values()):
        raise Diverged(
            f"the weights are not finite after step {loop.step:,}: train with less than learning_rate={loop.settings.learning_rate:g}."
        )
    checkpoints.save(folder, loop, log.size())


def _finish(loop: AgentLoop, log: Log, env: str) -> dict[str, Any]:
    """The figures of fresh episodes, and how the training went."""
    fresh = make(env, min(loop.settings.eval_episodes, 20))
    try:
        with log.part("evaluating") as tick:
            report: Report = evaluate(loop.model, fresh, loop.settings.eval_episodes, seed=loop.settings.seed + 1, progress=tick)
    finally:
        fresh.close()
    held = report.figures()
    told: dict[str, Any] = {f"eval_{name}": value for name, value in held.items()}
    log.record(step=loop.step, **told)
    results = {**held, **{f"training_{name}": value for name, value in loop.window().items()}}
    results |= {"steps": loop.step, "episodes_seen": loop.collector.ended, "restarts": loop.collector.restarts}
    results |= {"steps_per_second": loop.step / max(loop.busy, 1e-9), "seconds": round(loop.seconds, 2)}
    peak = peak_memory()
    return results if peak is None else {**results, "peak_memory_bytes": peak}
