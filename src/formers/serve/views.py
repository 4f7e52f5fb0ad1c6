"""What the page asks for: runs and their curves, live; classes, translations, images, episodes; attention; patterns."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from formers import __version__
from formers.generation import classify, translate
from formers.serve import playground
from formers.serve.bodies import boolean, check_names, integer, number, read_json, string, texts
from formers.serve.errors import ApiError, as_api_error
from formers.serve.events import Events, event
from formers.serve.look import layer_of, look_at, part_of, row_of
from formers.serve.models import check_text, draw_images, episode, image_facts
from formers.serve.services import Services
from formers.serve.worker import Job

LIVE = 0.2
"""Seconds between two looks for what a page has not been told yet."""
QUIET = 15.0
"""Seconds after which a stream says that it is still there."""
AXES = ("step", "seconds", "tokens")
FIRST = ("loss", "valid_loss", "return")
"""The curve that is shown first, the first of these that a run has."""
TICKED = 100
"""Runs whose curves are shown first, at the most."""
TOGETHER = 40_000
"""Points of all curves of an answer, as long as each has a few hundred."""


async def runs(request: Request, services: Services) -> Response:
    """The runs, newest first, those whose name, member or data hold `query`; and how far their metrics have been read."""
    start = _whole(request, "start", 0, 0, services.limits.runs)
    return JSONResponse(_listed(services, request.query_params.get("query", "").lower(), start))


def _listed(services: Services, query: str = "", start: int = 0) -> dict[str, Any]:
    found = services.runs
    entries = sorted(found.entries.values(), key=lambda each: (-each.written, each.name))
    if query:
        entries = [each for each in entries if query in f"{each.name} {each.facts.get('member')} {each.facts.get('data')}".lower()]
    listed = [each.told() for each in entries[start : start + services.limits.listed]]
    facts = {"version": found.version, "progress": found.progress, "folder": str(found.root), "formers": __version__}
    return {**facts, "count": len(entries), "start": start, "runs": listed}


async def first(request: Request, services: Services) -> Response:
    """What the page draws first, in one answer: the list of runs, and the curves of those that have metrics, the newest ones."""
    listed = _listed(services)
    names = {name for each in listed["runs"] for name in each.get("names", ())}
    name = next((known for known in FIRST if known in names), min(names, default="loss"))
    some = [each["id"] for each in listed["runs"] if each["error"] is None and each.get("names")][:TICKED]
    header, parts = await _curves(services, some, name, "step")
    return framed({**header, "list": listed}, parts)


async def run(request: Request, services: Services) -> Response:
    """Everything that is shown of one run."""
    return JSONResponse(services.runs.get(_named(request)).details())


async def curves(request: Request, services: Services) -> Response:
    """Curves of runs as bytes: a JSON header behind its length, and for each curve its x and its y as float32."""
    names = request.query_params.getlist("run")
    wanted = request.query_params.get("name", "loss")
    axis = request.query_params.get("axis", "step")
    if axis not in AXES:
        raise ApiError(400, f"axis {axis[:40]!r} is unknown: use {', '.join(AXES)}.", param="axis")
    if len(names) > services.limits.curves:
        raise ApiError(400, f"{len(names)} runs are more than {services.limits.curves}: ask for fewer at once.", param="run")
    return framed(*await _curves(services, names, wanted, axis))


async def _curves(services: Services, names: list[str], wanted: str, axis: str) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the bytes of the curves of runs, those that are still there; of many runs fewer points each."""
    entries = [services.runs.entries[name] for name in names if name in services.runs.entries]
    points = max(services.limits.points // 4, min(services.limits.points, TOGETHER // max(1, len(entries))))
    found = await run_in_threadpool(lambda: [(entry, *services.runs.curve(entry, wanted, axis, points)) for entry in entries])
    header = [{"run": entry.name, "version": entry.version, "points": len(x)} for entry, x, _ in found]
    return {"name": wanted, "axis": axis, "curves": header}, [side.tobytes() for _, x, y in found for side in (x, y)]


def framed(header: dict[str, Any], parts: list[bytes]) -> Response:
    """Bytes behind a JSON header, whose length comes first; the header is filled up so that numbers behind it are aligned."""
    told = json.dumps(header, separators=(",", ":")).encode()
    told += b" " * (-len(told) % 4)
    return Response(b"".join([struct.pack("<I", len(told)), told, *parts]), media_type="application/octet-stream")


async def live(request: Request, services: Services) -> Response:
    """Events: `runs` when runs came, went or changed, with those that did; `progress` while metrics are read."""
    return Events(_changes(services), services.open_stream().release)


async def _changes(services: Services) -> AsyncIterator[bytes | None]:
    known: dict[str, int] = {}
    version, progress, told = -1, None, time.monotonic()
    while not services.closing.is_set():
        found = services.runs
        if found.progress != progress:
            progress = found.progress
            yield event(progress, "progress")
        if found.version != version:
            version = found.version
            now = {entry.name: entry.version for entry in found.entries.values()}
            changed = [found.entries[name].told() for name, at in now.items() if known and known.get(name) != at and name in found.entries]
            gone = [name for name in known if name not in now]
            yield event({"version": version, "changed": changed[: services.limits.listed], "gone": gone, "count": len(now)}, "runs")
            known, told = now, time.monotonic()
        if time.monotonic() - told > QUIET:
            told = time.monotonic()
            yield b": still here\n\n"
        yield None
        await asyncio.sleep(LIVE)


async def classes(request: Request, services: Services) -> Response:
    """The labels of texts with their probabilities."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "texts"))
    name, given = string(body, "model"), texts(body, "texts", services.limits.texts)
    if not given or not all(given):
        raise ApiError(400, "there is no text to classify: give at least one, of at least one character.", param="texts")

    def steps() -> Iterator[Any]:
        yield [found.probabilities for found in classify(services.models.get(name), list(given))]

    return JSONResponse({"model": name, "labels": await _only(services.worker.submit(steps()), request)})


async def translations(request: Request, services: Services) -> Response:
    """What an encoder-decoder writes for texts."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "texts", "max_tokens"))
    name, given = string(body, "model"), texts(body, "texts", services.limits.texts)
    most = integer(body, "max_tokens", 256, 1, services.limits.max_tokens)
    if not given or not all(given):
        raise ApiError(400, "there is no text to translate: give at least one, of at least one character.", param="texts")
    if len(given) * (most or 0) > services.limits.new_tokens:
        raise ApiError(400, f"{len(given)} texts of {most} tokens are too many: ask for fewer at once.", param="texts")

    def steps() -> Iterator[Any]:
        yield translate(services.models.get(name), list(given), most or 256)

    return JSONResponse({"model": name, "texts": await _only(services.worker.submit(steps()), request)})


async def image_model(request: Request, services: Services) -> Response:
    """What a model of images draws."""
    name = _named(request)

    def steps() -> Iterator[Any]:
        yield image_facts(services.models.get(name))

    return JSONResponse(await _only(services.worker.submit(steps()), request))


async def images(request: Request, services: Services) -> Response:
    """Images as events: how many positions are drawn, and at last the images as bytes."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "samples", "label", "image", "rows", "source", "temperature", "top_k", "top_p", "seed"))
    name, samples = string(body, "model"), integer(body, "samples", 4, 1, services.limits.images)
    label, rows = integer(body, "label", None, 0), integer(body, "rows", 0, 0)
    k, seed = integer(body, "top_k", None, 1), integer(body, "seed", None, -(2**63), 2**63 - 1)
    warm, p = number(body, "temperature", 1.0), number(body, "top_p", None)
    services.runs.model(name)
    box: list[Job] = []

    def steps() -> Iterator[Any]:
        model, told = services.models.get(name), [0.0]

        def tell(done: int, total: int) -> None:
            if box[0].cancelled.is_set():
                raise ApiError(499, "the client has left.")
            if time.monotonic() - told[0] > 0.1:
                told[0] = time.monotonic()
                box[0].put({"done": done, "total": total})

        drawn, nats = draw_images(
            model, samples or 1, label, body.get("image"), rows or 0, body.get("source"), warm or 0.0, k, p, seed, tell
        )
        n, height, width, _ = drawn.shape
        yield {"images": n, "height": height, "width": width, "nats": nats, "data": base64.b64encode(drawn.tobytes()).decode()}

    slot = services.open_stream()
    try:
        box.append(services.worker.submit(_later(steps, box)))
    except BaseException:
        slot.release()
        raise
    return Events(_told(box[0]), slot.release, box[0].cancel)


def _later(steps: Any, box: list[Job]) -> Iterator[Any]:
    """Steps that begin when their job is known to them."""
    while not box:
        yield None
    yield from steps()


async def _told(job: Job) -> AsyncIterator[bytes | None]:
    try:
        async for item in job.items():
            yield None if item is None else event(item)
    except Exception as error:
        yield event(as_api_error(error).body)


async def replay(request: Request, services: Services) -> Response:
    """An episode that an agent plays."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "seed", "episode", "sampled"))
    name = string(body, "model")
    entry, checkpoint = services.runs.model(name)
    seed, which, sampled = integer(body, "seed", 0, 0, 2**62), integer(body, "episode", 0, 0, 2**31), boolean(body, "sampled")

    def steps() -> Iterator[Any]:
        yield episode(services.runs.resolve(entry), checkpoint, seed or 0, which or 0, sampled)

    played = await _only(services.worker.submit(steps()), request)
    pictures = [{"height": p.shape[0], "width": p.shape[1], "data": base64.b64encode(p.tobytes()).decode()} for p in played["pictures"]]
    return JSONResponse({**played, "weights": base64.b64encode(played["weights"]).decode(), "pictures": pictures})


async def look(request: Request, services: Services) -> Response:
    """Begins to look at the attention of a model over a text: its tokens, layers and heads, and what else the member shows."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "text"))
    name, text = string(body, "model"), string(body, "text")
    services.runs.model(name)

    def steps() -> Iterator[Any]:
        model = services.models.get(name)
        check_text(model, name)
        yield None
        yield look_at(model, name, text, services.limits)

    found = await _only(services.worker.submit(steps()), request)
    return JSONResponse({"look": services.looks.add(found), **found.told()})


async def look_map(request: Request, services: Services) -> Response:
    """A part of the map of a layer and a head as a picture of bytes; the layer is computed when it is first asked for."""
    found, view, layer, head = await _maps(request, services)
    shown = found.views[view]
    rows, columns = (
        slice(_whole(request, f"{side}_from", 0, 0, count), _whole(request, f"{side}_to", count, 0, count))
        for side, count in (("query", len(shown.queries)), ("key", len(shown.keys)))
    )
    if rows.start >= rows.stop or columns.start >= columns.stop:
        raise ApiError(400, "the part of the map is empty: give from below to.", param="query_to")
    part, down, across = await run_in_threadpool(part_of, found, view, layer, head, rows, columns)
    header = {"height": part.shape[0], "width": part.shape[1], "down": down, "across": across, "query": rows.start, "key": columns.start}
    return framed(header, [part.tobytes()])


async def look_row(request: Request, services: Services) -> Response:
    """What one query looks at, or with side=key who looks at one key: a byte for each."""
    found, view, layer, head = await _maps(request, services)
    back = request.query_params.get("side") == "key"
    shown = found.views[view]
    place = _whole(request, "at", 0, 0, len(shown.keys if back else shown.queries) - 1)
    row: Any = row_of(found, view, layer, head, place, back)
    return Response(np.ascontiguousarray(row).tobytes(), media_type="application/octet-stream")


async def _maps(request: Request, services: Services) -> tuple[Any, int, int, int]:
    """A look, and the view, layer and head of it that are asked for, computed."""
    found = services.looks.get(request.path_params["look"])
    view = _whole(request, "view", 0, 0, len(found.views) - 1)
    shown = found.views[view]
    layer, head = _whole(request, "layer", 0, 0, shown.layers - 1), _whole(request, "head", 0, -1, shown.heads - 1)
    if layer not in shown.maps:

        def steps() -> Iterator[Any]:
            model = services.models.get(found.model)
            yield None
            layer_of(model, found, view, layer)
            services.looks.trim(found)
            yield True

        await _only(services.worker.submit(steps()), request)
    return found, view, layer, head


async def pattern_list(request: Request, services: Services) -> Response:
    """Every pattern with its parameters."""
    return JSONResponse({"patterns": playground.patterns()})


async def pattern(request: Request, services: Services) -> Response:
    """One pattern with options: its matrix, density, and image grid."""
    body = await read_json(request, services.limits)
    check_names(body, ("name", "options", "length", "heads", "layer", "height", "width"))
    options = body.get("options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "options is no object: give the parameters by name.", param="options")
    length, heads = integer(body, "length", 32, 1, 1024), integer(body, "heads", 1, 1, 8)
    layer, height, width = integer(body, "layer", 0, 0, 1000), integer(body, "height", None, 1, 64), integer(body, "width", None, 1, 64)
    size = None if height is None or width is None else (height, width)
    found = await run_in_threadpool(
        playground.draw, string(body, "name"), options, length or 32, heads or 1, layer or 0, size, services.limits
    )
    return JSONResponse(found)


async def _only(job: Job, request: Request) -> Any:
    """The last of what a job makes."""
    return (await job.all(request.is_disconnected))[-1]


def _named(request: Request) -> str:
    name = request.query_params.get("run")
    if name is None:
        raise ApiError(400, "no run is named: give run=NAME.", param="run")
    return name


def _whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A whole number of the address."""
    value = request.query_params.get(name)
    if value is None:
        return default
    found = integer(
        {name: int(value)}
        if value.removeprefix("-").isascii() and value.removeprefix("-").isdecimal() and len(value) < 16
        else {name: value},
        name,
        default,
        least,
        most,
    )
    assert found is not None
    return found
