"""How a row of the table in cli/benches.py becomes a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from formers.cli.benches import Option
from formers.cli.common import Check, Json


def add_command(
    group: typer.Typer, name: str, about: str, options: Mapping[str, Option], act: Callable[[dict[str, Any]], None], check: Any = Check
) -> None:
    """Adds a command with the options of a row, --check and --json, whose values `act` is called with."""

    def verb(**values: Any) -> None:
        act(values)

    every = {**options, "check": Option(check, False), "json": Option(Json, False)}
    kind = inspect.Parameter.KEYWORD_ONLY
    verb.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads the options here
        [inspect.Parameter(each, kind, default=option.default, annotation=option.kind) for each, option in every.items()]
    )
    verb.__annotations__ = {each: option.kind for each, option in every.items()}
    verb.__doc__ = about
    group.command(name)(verb)


def handed_on(options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the parameters that take them; None and an empty list are left out."""
    given = {name: value for name, value in values.items() if value is not None and value != []}
    return {options[name].parameter or name: options[name].convert(value) for name, value in given.items()}
