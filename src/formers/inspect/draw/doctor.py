"""The doctor's facts for people: a table a subject, readable without colours and in ASCII."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.draw.terminal import sayable

CAPABILITIES = {"flex": "FlexAttention", "float64": "float64", "tf32": "TF32", "pinned": "asynchronous copies"}
GOOD, BAD, FAINT = "green", "bold red", "dim"


def describe(facts: dict[str, Any], encoding: str = "utf-8") -> Group:
    """All facts, for rich to print."""
    tables = [_versions(facts), _devices(facts), _executors(facts), _choices(facts), _around(facts), _data(facts), _more(facts)]
    for table in tables:
        _sayable(table, encoding)
    parts: list[RenderableType] = [part for table in tables for part in (table, Text())]
    return Group(*parts, _end(facts))


def _versions(facts: dict[str, Any]) -> Table:
    table = new_table("versions", "")
    for name, value in facts["versions"].items():
        add_row(table, name, _marked(value, value == "missing"))
    return table


def _devices(facts: dict[str, Any]) -> Table:
    table = new_table("devices", "")
    for device in facts["devices"]:
        add_row(table, device["device"], device["name"])
        if "cores" in device:
            add_row(table, "", f"{device['cores']} cores, torch uses {device['threads']} threads")
        if device["memory_bytes"] is not None:
            add_row(table, "", f"{_size(device['memory_bytes'])} of memory")
        for precision, words in device["precisions"].items():
            add_row(table, "", Text(f"{precision} ").append(words, GOOD if words == "works" else ""))
        if not device["capabilities"]["host"]:
            words = [f"{name} {'yes' if device['capabilities'][key] else 'no'}" for key, name in CAPABILITIES.items()]
            add_row(table, "", ", ".join(words))
            add_row(table, "", f"the whole self-test: formers doctor --device {device['device']}")
    if len(facts["devices"]) == 1:
        add_row(table, "GPU", "none that torch can use", style=FAINT)
    return table


def _executors(facts: dict[str, Any]) -> Table:
    """A line an executor and device, and below it what it refuses and where it is wrong."""
    table = new_table("executors", "device", "against dense: values and gradients, also of queries without keys")
    for verdict in facts["executors"]:
        how, device, status = verdict["executor"], verdict["device"], verdict["status"]
        differences = ", ".join(f"{_small(value)} in {precision}" for precision, value in verdict["largest_difference"].items())
        if status == "works":
            also = f" in {verdict['checked']} cases: largest difference {differences}"
            add_row(table, how, device, Text("works", GOOD).append(also, "default"))
        elif status == "wrong":
            add_row(table, how, device, Text(f"WRONG: {verdict['wrong'][0]}", BAD))
            more = len(verdict["wrong"]) - 1
            if more:
                add_row(table, "", "", f"and {more} more; largest difference {differences or 'unknown'}")
        for why, cases in verdict["refuses"].items():
            add_row(table, how if status == "refuses" else "", device if status == "refuses" else "", f"refuses: {why} ({_few(cases)})")
    return table


def _choices(facts: dict[str, Any]) -> Table:
    """A row for each request: the executor that runs on each device."""
    devices = facts["devices"]
    table = new_table("which executor runs", *(device["device"] for device in devices))
    for request in devices[0]["runs"]:
        add_row(table, request, *(device["runs"][request] for device in devices))
    return table


def _around(facts: dict[str, Any]) -> Table:
    table = new_table("torch can", "")
    missing = "no C++ compiler: install g++ or clang++ for formers train --compile"
    add_row(table, "compile", f"with {facts['compiler']}" if facts["compiler"] else missing)
    add_row(table, "FlexAttention", facts["flex"])
    add_row(table, "distribute", f"over {', '.join(facts['distributed'])}" if facts["distributed"] else "not: torch was built without it")
    return table


def _data(facts: dict[str, Any]) -> Table:
    table, data, cache = new_table("data", ""), facts["data"], facts["cache"]
    states = {
        "unset": "not set: a folder with a folder for each data set spares downloads",
        "missing": f"{data['folder']} is not a folder: set it to one, or unset it",
        "folder": str(data["folder"]),
    }
    add_row(table, "FORMERS_DATA", _marked(states[data["state"]], data["state"] == "missing"))
    for name, place in data["sets"].items():
        add_row(table, f"  {name}", Text(place, "" if place.startswith(("in ", "made")) else FAINT))
    add_row(table, "cache", f"{cache['folder']}: {_size(cache['bytes'])} in {cache['files']:,} files")
    if not cache["writable"]:
        add_row(table, "", _marked("cannot be written: set FORMERS_CACHE to a folder that can", True))
    return table


def _more(facts: dict[str, Any]) -> Table:
    table, shell = new_table("for more", "", ""), facts["completion"]
    for extra in facts["extras"]:
        there = extra["version"] is not None
        add_row(table, extra["package"], f"{extra['version']}" if there else Text(extra["install"], "bold"), extra["gives"])
    where = f"names on TAB, in {shell['shell'] or 'your shell'}"
    add_row(table, "completion", "installed" if shell["installed"] else Text(shell["install"], "bold"), where)
    return table


def _end(facts: dict[str, Any]) -> Text:
    if facts["ok"]:
        return Text("All executors agree with dense.", GOOD)
    return Text("An executor disagrees with dense: do not use it.", BAD)


def _marked(words: str, bad: bool) -> Text:
    return Text(words, BAD if bad else "")


def _sayable(table: Table, encoding: str) -> None:
    """Replaces what the terminal cannot show."""
    for column in table.columns:
        for cell in column.cells:
            if isinstance(cell, Text):
                cell.plain = sayable(cell.plain, encoding)


def _few(cases: list[str]) -> str:
    return cases[0] if len(cases) == 1 else f"{cases[0]} and {len(cases) - 1} more"


def _small(value: float | str) -> str:
    return value if isinstance(value, str) else "0" if value == 0 else f"{value:.0e}"


def _size(count: int) -> str:
    """Bytes in words: 24.6 GB."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min((len(str(max(count, 1))) - 1) // 3, len(units) - 1)
    return f"{count:,} bytes" if power == 0 else f"{count / 1000**power:.1f} {units[power]}"
