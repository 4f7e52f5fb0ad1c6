"""Requests as checked values: the body within its caps, JSON within its depth, fields of the right type."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from formers.core import nearest
from formers.serve.errors import ApiError
from formers.serve.limits import Limits

BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
"""The strings and brackets of JSON."""


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object of a request's body."""
    try:
        content = await asyncio.wait_for(_read(request, limits), limits.body_seconds)
    except asyncio.TimeoutError:
        raise ApiError(408, f"the body did not arrive within {limits.body_seconds:g} seconds: send it faster.") from None
    if _depth(content) > limits.depth:
        raise ApiError(400, f"the JSON is nested more than {limits.depth} deep: send a flat object.")
    try:
        found = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON ({str(error).splitlines()[0][:200]}): send one JSON object.") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"the body is a JSON {type(found).__name__}: send one JSON object.")
    return found


async def _read(request: Request, limits: Limits) -> bytes:
    """The body; a longer one than allowed is dropped as it comes, and refused."""
    told = request.headers.get("content-length", "")
    parts: list[bytes] = []
    size, long = 0, told.isdecimal() and int(told) > limits.body
    if not (long and int(told) > limits.drained):
        try:
            async for part in request.stream():
                size += len(part)
                long = long or size > limits.body
                if long:
                    parts.clear()
                    if size > limits.drained:
                        break
                else:
                    parts.append(part)
        except ClientDisconnect:
            raise ApiError(400, "the client left before its body had arrived: send it again.") from None
    if long:
        raise ApiError(
            413,
            f"the body has {told or 'more'} bytes, more than {limits.body:,}: send fewer or shorter prompts.",
            headers={"connection": "close"},
        )
    return b"".join(parts)


def _depth(content: bytes) -> int:
    """How many lists and objects stand within one another, at the most."""
    depth = most = 0
    for found in BRACKETS.finditer(content):
        mark = found[0]
        if mark in (b"[", b"{"):
            depth += 1
            most = max(most, depth)
        elif mark in (b"]", b"}"):
            depth -= 1
    return most


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def check_names(body: dict[str, Any], known: Iterable[str]) -> None:
    """Refuses fields that mean nothing here."""
    names = list(known)
    wrong = next((name for name in body if name not in names), None)
    if wrong is not None:
        raise ApiError(400, f"{wrong[:80]!r} is no field of this request: {nearest(wrong[:80], names)}", param=wrong[:80])


def string(body: dict[str, Any], name: str, default: str | None = None) -> str:
    """A field that is a text."""
    value = body.get(name, default)
    if not isinstance(value, str):
        raise ApiError(400, f"{name} is {_shown(value)}: give a text.", param=name)
    return value


def integer(body: dict[str, Any], name: str, default: int | None, least: int, most: int | None = None) -> int | None:
    """A field that is a whole number within bounds; null is the default."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(400, f"{name} is {_shown(value)}: give a whole number.", param=name)
    if value < least or (most is not None and value > most):
        bounds = f"{least:,} or more" if most is None else f"{least:,} ... {most:,}"
        raise ApiError(400, f"{name}={_shown(value)} is out of range: give {bounds}.", param=name)
    return value


def number(body: dict[str, Any], name: str, default: float | None) -> float | None:
    """A field that is a finite number; null is the default."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ApiError(400, f"{name} is {_shown(value)}: give a number.", param=name)
    try:
        return float(value)
    except OverflowError:
        raise ApiError(400, f"{name} is too large: give a number.", param=name) from None


def boolean(body: dict[str, Any], name: str) -> bool:
    """A field that is true or false; absent or null is false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{name} is {_shown(value)}: give true or false.", param=name)
    return bool(value)


def texts(body: dict[str, Any], name: str, most: int) -> tuple[str, ...]:
    """A field that is a text or a list of texts; null is none."""
    value = body.get(name)
    found = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ApiError(400, f"{name} is {_shown(value)}: give a text or a list of texts.", param=name)
    if len(found) > most:
        raise ApiError(400, f"{name} has {len(found):,} texts: give at most {most:,}.", param=name)
    return tuple(found)


def _shown(value: object) -> str:
    """A value in a message, in a few characters."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = "null" if value is None else repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a very large number"
    return text if len(text) <= 60 else f"{text[:57]}..."
