"""The application: its routes, and the page's files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from formers.serve import completions, views
from formers.serve.errors import ApiError, answer
from formers.serve.limits import LIMITS, Limits
from formers.serve.look import Looks
from formers.serve.models import Models
from formers.serve.runs import Runs
from formers.serve.safety import LOCAL, Guard
from formers.serve.services import Services
from formers.serve.worker import Worker

log = logging.getLogger(__name__)
Handler = Callable[[Request, Services], Awaitable[Response]]
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
GET: dict[str, Handler] = {
    "/health": completions.health,
    "/v1/models": completions.models,
    "/v1/models/{model:path}": completions.model,
    "/tokenizer_info": completions.tokenizer_info,
    "/api/first": views.first,
    "/api/runs": views.runs,
    "/api/run": views.run,
    "/api/curves": views.curves,
    "/api/live": views.live,
    "/api/image": views.image_model,
    "/api/look/{look}/map": views.look_map,
    "/api/look/{look}/row": views.look_row,
    "/api/patterns": views.pattern_list,
}
POST: dict[str, Handler] = {
    "/v1/completions": completions.completions,
    "/v1/chat/completions": completions.chat,
    "/tokenize": completions.tokenize,
    "/detokenize": completions.detokenize,
    "/api/classify": views.classes,
    "/api/translate": views.translations,
    "/api/images": views.images,
    "/api/episode": views.replay,
    "/api/look": views.look,
    "/api/pattern": views.pattern,
}


def make_services(folder: str | Path, limits: Limits = LIMITS, device: str = "cpu") -> Services:
    """The runs below a folder, and what answers questions about them."""
    found = Runs(Path(folder), limits)
    return Services(limits, found, Worker(limits), Models(found, limits, device), Looks(limits))


def make_app(services: Services, hosts: tuple[str, ...] = LOCAL, any_address: bool = False, token: str | None = None) -> ASGIApp:
    """The page and the API over services, behind the guard; services end with it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        services.runs.start()
        yield
        services.closing.set()
        services.worker.close()
        services.runs.stop()

    files = {f"/{name}": content for name, content in _page().items()}
    routes = [Route(path, _bound(handler, services), methods=["GET"]) for path, handler in GET.items()]
    routes += [Route(path, _bound(handler, services), methods=["POST"]) for path, handler in POST.items()]
    routes += [Route(path, _file(content, path), methods=["GET"]) for path, content in files.items()]
    routes.append(Route("/", _file(files["/index.html"], "/index.html"), methods=["GET"]))
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route, Exception: _failed})
    return Guard(app, hosts, any_address, token)


def _bound(handler: Handler, services: Services) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request, services)
        except Exception as error:
            if not isinstance(error, ApiError | ValueError):
                log.exception("%s failed", request.url.path)
            return answer(error)

    return handle


def _page() -> dict[str, bytes]:
    """The files of the page, by name."""
    folder = resources.files("formers.serve") / "page"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def _file(content: bytes, path: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        kind = TYPES.get(Path(path).suffix, "application/octet-stream")
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return handle


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return answer(ApiError(405, f"{request.method} is not for {request.url.path[:100]}: the documents say what is."))
    return answer(ApiError(error.status_code, f"there is nothing at {request.url.path[:100]!r}: open / for the page."))


async def _failed(request: Request, error: Exception) -> Response:
    return answer(error)
