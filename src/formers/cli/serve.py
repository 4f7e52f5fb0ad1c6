"""`formers serve`: a local page to watch runs and to try models, and an API like OpenAI's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from formers.cli.common import Json, print_json


def serve(
    runs: Annotated[Path, typer.Argument(help="A folder that holds runs or saved models, or one of them.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.", min=0, max=65535)] = 8321,
    host: Annotated[str, typer.Option(help="The address to listen on; any but this machine's own asks for a token.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name under which the server is reached; may be repeated.")
    ] = None,
    queue: Annotated[int, typer.Option(help="How many requests may wait for a model.", min=1, max=1000)] = 8,
    device: Annotated[str, typer.Option(help="The device: cpu, cuda, cuda:1, mps; auto takes the best available.")] = "auto",
    json: Json = False,
) -> None:
    """Serve the runs in RUNS: a page in the browser, and an API for programs. Nothing is started, changed or deleted.

    With --json the line of JSON says the address and the token, and comes first.
    """
    from dataclasses import replace
    from importlib.util import find_spec

    from formers.core import FormersError

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise FormersError("the server needs starlette and uvicorn: pip install 'formers[serve]'.")
    from formers.serve.limits import LIMITS
    from formers.serve.server import serve as run
    from formers.training.device import pick_device

    def say(address: str, token: str | None) -> None:
        if json:
            print_json({"runs": str(runs), "address": address, "token": token})
        else:
            print(f"{runs} at {address}{f'#token={token}' if token else ''}")
            print("The API is below /v1 there. Ctrl-C ends the server.")
        sys.stdout.flush()

    run(runs, host, port, tuple(allow_host or ()), str(pick_device(device)), replace(LIMITS, queue=queue), say)
