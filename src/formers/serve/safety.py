"""What stands before every request: who may ask, from where, and what a browser may do with the answer.

A page of another site can make a browser send requests to this machine. So the Host must be one of ours (a foreign name that was pointed
at this machine is refused, 421), requests that a browser marks as another site's are refused (403), POST takes JSON alone, which no form
can send (415), and no answer carries permission for another site to read it. With --host the API asks for a token (401).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from formers.serve.errors import ApiError, answer

POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOCAL = ("127.0.0.1", "localhost", "::1")
GUARDED = ("/api/", "/v1/", "/tokenize", "/tokenizer_info", "/detokenize")
"""What the paths of data begin with; the page itself holds none."""


class Guard:
    """Refuses what must not reach the app, and adds the headers of safety to what leaves it.

    hosts: the names that requests may be addressed to. any_address: whether every IP address is one, as where the server listens on all;
    a foreign site can lend its name to an address, but cannot make a browser send the bare address of another site's page.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = LOCAL, any_address: bool = False, token: str | None = None) -> None:
        self.app, self.hosts, self.any_address, self.token = app, {host.lower() for host in hosts}, any_address, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._mark(message, scope["path"])
            await send(message)

        try:
            self._check(scope)
        except ApiError as error:
            await answer(error)(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise ApiError(
                421, f"the host {host[:100]!r} is not this server's: open it by the address it printed, or start it with --allow-host.",
                code="unknown_host",
            )  # fmt: skip
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
            raise ApiError(403, "the request comes from the page of another site: open this server's own page.", code="foreign_origin")
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope.get('scheme', 'http')}://{host}":
            raise ApiError(403, f"the request comes from {origin[:100]!r}: only this server's own page may send it.", code="foreign_origin")
        if scope["method"] == "POST" and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "POST takes JSON alone: set Content-Type to application/json.", code="not_json")
        if self.token is not None and scope["path"].startswith(GUARDED):
            given = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                raise ApiError(
                    401, "the token is missing or wrong: send the one that `formers serve` printed, as Authorization: Bearer TOKEN.",
                    "authentication_error", code="invalid_api_key", headers={"www-authenticate": "Bearer"},
                )  # fmt: skip

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in self.hosts:
            return True
        try:
            return self.any_address and bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    @staticmethod
    def _mark(message: Message, path: str) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in HEADERS.items():
            headers[name] = value
        headers.setdefault("cache-control", "no-store")
