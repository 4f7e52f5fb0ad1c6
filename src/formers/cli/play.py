"""`formers play`: an episode of an agent, drawn with its attention over the past."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from formers.cli.common import Json, Run, check_file, report, wrote


def play(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: .gif, or .html to step through.")] = Path("episode.html"),
    episode: Annotated[int, typer.Option(help="Which of the fresh episodes of the seed.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Draws the episodes, as for `eval`.", min=0)] = 0,
    env: Annotated[str | None, typer.Option(help="The environment; the run's own unless given.")] = None,
    sampled: Annotated[bool, typer.Option("--sampled", help="Draw actions, instead of the most probable ones.")] = False,
    checkpoint: Annotated[Literal["last", "best"], typer.Option(help="Which of the run's weights.")] = "last",
    json: Json = False,
) -> None:
    """Let the agent of RUN play an episode, and draw it with the attention over the remembered past, by layer and head."""
    check_file(out, (".gif", ".html"))
    from formers.inspect.draw.episode import save_episode
    from formers.rl import open_agent
    from formers.rl.play import play as run_episode

    model, environments = open_agent(run, 1, env, checkpoint, drawn=True)
    try:
        played = run_episode(model, environments, seed=seed, episode=episode, sample=sampled)
    finally:
        environments.close()
    wrote(save_episode(played, out), json)
    steps = len(played.rewards)
    report({"env": played.env, "steps": steps, "return": sum(played.rewards), "success": played.success, "file": str(out)}, json)
