"""One finding of the self-test, ready for JSON."""

from __future__ import annotations

from typing import Any

from formers.inspect.measure.doctor.compare import as_number


def finding(
    kind: str,
    what: str,
    precision: str,
    largest: float | None = None,
    first: float | None = None,
    later: float | None = None,
    wrong: str | None = None,
) -> dict[str, Any]:
    """A check of a kind: its largest difference, seconds of the first and of later runs, and what is wrong, None if nothing is."""
    return {
        "kind": kind,
        "what": what,
        "precision": precision,
        "status": "ok" if wrong is None else "wrong",
        "largest_difference": None if largest is None else as_number(largest),
        "first_seconds": first,
        "seconds": later,
        "wrong": wrong,
    }
