"""Server-sent events: an endless answer that ends when its client leaves, when the server closes, or when nothing is left to tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


def event(data: Any, name: str | None = None) -> bytes:
    """One event; data other than text becomes JSON."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode() if name else f"data: {text}\n\n".encode()


class Events(Response):
    """A response of events; the body gives None now and then, so that it can be ended while nothing is told.

    ended: what is called when it has ended, however it did.
    """

    media_type = "text/event-stream"

    def __init__(self, body: AsyncIterator[bytes | None], *ended: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.events, self.ended = body, ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        left = asyncio.ensure_future(_left(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in self.events:
                if left.done():
                    return
                if part is not None:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            left.cancel()
            for act in self.ended:
                act()
            await self.events.aclose()  # type: ignore[attr-defined]


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
