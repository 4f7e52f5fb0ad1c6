"""A comparison as a table, on a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from formers.compare.budget import Budget

FIGURES = {
    "bits per byte": "bits_per_byte", "bits per dimension": "bits_per_dimension", "nats per image": "nats_per_image", "loss": "loss",
    "accuracy": "accuracy", "exact": "exact",
}  # fmt: skip
"""What is compared, by its title."""


def titles(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The figures that a table of rows shows: bits per byte where all have them, else the loss, and what is exact."""
    found = [title for title, name in FIGURES.items() if all(name in row for row in rows if row["diverged"] < row["seeds"])]
    return [title for title in found if title != "loss" or not {"bits per byte", "bits per dimension"} & {*found}]


def speed(rows: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """How fast members train: the title and the name of the figure; images of a position a pixel have fewer tokens than others."""
    images = all(row.get("images_per_second") for row in rows)
    return ("images/s", "images_per_second") if images else ("tokens/s", "tokens_per_second")


def speed_of(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """How fast the member of a row trains, as text."""
    value = row[speed(rows)[1]]
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def shown(row: dict[str, Any], title: str) -> str:
    """A figure of a row, as text; with its standard deviation over the seeds where there are several."""
    value, spread = row.get(FIGURES[title]), row["spread"].get(FIGURES[title])
    if value is None:
        return "diverged"
    form = ".1%" if title in ("accuracy", "exact") else ".3f"
    return format(value, form) + (f" ± {format(spread, form)}" if spread is not None else "")


def steps_of(row: dict[str, Any]) -> str:
    """The steps of a row, as text."""
    return "" if row["steps"] is None else f"{row['steps']:,}"


def memory_of(row: dict[str, Any]) -> int | None:
    """The peak memory of a row: that of the device, or of the process where it computes on the CPU."""
    return row.get("peak_device_memory_bytes") or row.get("peak_memory_bytes")


def markdown(results: dict[str, Any], command: str) -> str:
    """The comparison as a page: the command, what it ran on, and a table."""
    budget = Budget(results["equal"], results["budget"]).words
    lines = [
        f"# {results['data']}, {budget} each", "", "```console", f"$ {command}", "```", "",
        f"Run on {results['machine']}. Each was trained alone. Parameters are those that reading and writing need.", "",
        "| | " + " | ".join(["parameters", *titles(results["rows"]), speed(results["rows"])[0], "steps", "peak memory"]) + " |",
        "|---|" + "---:|" * (4 + len(titles(results["rows"]))),
    ]  # fmt: skip
    for row in results["rows"]:
        most = memory_of(row)
        memory = f"{most / 1e6:,.0f} MB" if most else ""
        figures = [shown(row, title) for title in titles(results["rows"])]
        cells = (f"`{row['variant']}`", f"{row['parameters']:,}", *figures, speed_of(row, results["rows"]), steps_of(row), memory)
        lines.append(f"| {' | '.join(cells)} |")
    if results["seeds"] > 1:
        lines += ["", f"Means of {results['seeds']} seeds, ± their standard deviation."]
    lines += ["", *results["verdict"]["sentences"], "", "How each was judged:", ""]
    lines += [f"- `{row['variant']}`: {row['protocol']}." for row in results["rows"] if "protocol" in row]
    return "\n".join(lines) + "\n"
