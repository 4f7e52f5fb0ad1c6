"""Starts the server: binds its port before anything else, tells its address, and drains when it is told to end."""

from __future__ import annotations

import ipaddress
import os
import secrets
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from formers.core import FormersError
from formers.serve.app import make_app, make_services
from formers.serve.limits import LIMITS, Limits
from formers.serve.safety import LOCAL
from formers.serve.services import Services

TOKEN = "FORMERS_TOKEN"
"""The variable that may hold the token, so that it stays the same."""
SHORTEST = 22
"""Characters of a token that can hold 128 bits."""
DRAIN = 20
"""Seconds that answers on their way have when the server is told to end."""
WAITING = 128
"""Connections that wait to be accepted."""
CONNECTIONS = 512
"""Connections at once; others are refused."""


class _Server(uvicorn.Server):
    """Lets the streams of pages know that the server ends: they would keep it waiting."""

    services: Services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.services.closing.set()
        super().handle_exit(sig, frame)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; refused in a sentence where it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends at once only where the protocol is named
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(WAITING)
    except OverflowError:
        raise FormersError(f"port {port} does not exist: give 0 ... 65535, 0 for any that is free.") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise FormersError(f"cannot listen on {host}:{port} ({why}): give another --port, or 0 for any that is free.") from None
    found.set_inheritable(True)
    return found


def token_for(host: str) -> str | None:
    """The token that the API asks for: none on this machine alone, 128 random bits elsewhere, or what FORMERS_TOKEN says."""
    given = os.environ.get(TOKEN)
    if given is not None and len(given) < SHORTEST:
        raise FormersError(f"{TOKEN} has {len(given)} characters: give at least {SHORTEST}, such as `openssl rand -hex 16` prints.")
    return given if given is not None or is_local(host) else secrets.token_hex(16)


def is_local(host: str) -> bool:
    """Whether nobody but this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int = 8321,
    allow: tuple[str, ...] = (),
    device: str = "cpu",
    limits: Limits = LIMITS,
    say: Callable[[str, str | None], None] | None = None,
) -> None:
    """Serves the runs of a folder until it is told to end; `say` is given the address and the token when it listens."""
    token = token_for(host)
    listening = bound(host, port)
    try:
        services = make_services(folder, limits, device)
        hosts = (*LOCAL, *([host] if host not in ("0.0.0.0", "::") else [socket.gethostname()]), *allow)
        app = make_app(services, hosts, host in ("0.0.0.0", "::"), token)
        config = uvicorn.Config(
            app, http="h11", ws="none", lifespan="on", log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=DRAIN, timeout_keep_alive=30, limit_concurrency=CONNECTIONS,
        )  # fmt: skip
        server = _Server(config)
        server.services = services
        if say is not None:
            shown = f"[{host}]" if ":" in host else host
            say(f"http://{shown}:{listening.getsockname()[1]}/", token)
        server.run(sockets=[listening])
    finally:
        listening.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
