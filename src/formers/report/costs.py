"""What the members of a report cost against length, and where their curves cross."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from formers.core import FormersError
from formers.inspect import explain_facts
from formers.inspect.measure.explain import Subject
from formers.inspect.measure.units import in_bytes, in_flops
from formers.model import Spec
from formers.report.charts import ChartLine, chart
from formers.report.read import Recorded

MEMBERS = 8
"""Members whose costs are counted, at the most."""


def costs(runs: Sequence[Recorded]) -> tuple[str, list[str]]:
    """Charts and a table of FLOPs and memory against length, one curve for each spec, and sentences for what cannot be counted."""
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for run in runs:
        if run.is_agent or run.group in found or len(found) >= MEMBERS:
            continue
        try:
            found[run.group] = explain_facts(Subject(run.group, Spec(**run.facts["spec"])))
        except (FormersError, ValueError, TypeError) as error:
            problems.append(f"The costs of {run.group} cannot be counted: {str(error).splitlines()[0]}")
    if not found:
        return "", problems
    flops = [_line(name, i, fact, "flops") for i, (name, fact) in enumerate(found.items())]
    memory = [_line(name, i, fact, "memory") for i, (name, fact) in enumerate(found.items())]
    drawn = chart(flops, "length of a row", "training FLOPs a token", log_x=True, log_y=True)
    drawn += chart(memory, "length of a row", "bytes of a training step, one row", log_x=True, log_y=True)
    crossing = [sentence for a, b in combinations(flops, 2) if (sentence := cross_over(a, b)) is not None]
    words = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in crossing) or "<li>No two of these curves cross.</li>"
    return f'<div class="charts">{drawn}</div>{_table(found)}<ul>{words}</ul>', problems


def _line(name: str, colour: int, fact: Mapping[str, Any], what: str) -> ChartLine:
    points: list[tuple[float, float | None]] = []
    for row in fact["lengths"]:
        value = row["flops_per_token"].get("training") if what == "flops" else row["bytes"].get("training")
        if value is not None:
            points.append((float(row["length"]), float(value)))
    return ChartLine(name, points, colour)


def cross_over(one: ChartLine, other: ChartLine) -> str | None:
    """The length at which two curves cross, on straight lines between points where both axes are logarithmic; None if they do not."""
    first, second = dict(one.points), dict(other.points)
    lengths = sorted(set(first) & set(second))
    gaps = [math.log(first[n] or 1.0) - math.log(second[n] or 1.0) for n in lengths]
    for i in range(1, len(lengths)):
        if gaps[i - 1] * gaps[i] < 0:
            share = gaps[i - 1] / (gaps[i - 1] - gaps[i])
            at = math.exp(math.log(lengths[i - 1]) * (1 - share) + math.log(lengths[i]) * share)
            cheap, dear = (other.name, one.name) if gaps[i] > 0 else (one.name, other.name)
            return f"Above about {float(f'{at:.2g}'):,.0f} tokens a row, {cheap} takes fewer FLOPs a token than {dear}."
    return None


def _table(found: Mapping[str, Mapping[str, Any]]) -> str:
    lengths = sorted({row["length"] for fact in found.values() for row in fact["lengths"]})
    head = "".join(f"<th>{n:,}</th>" for n in lengths)
    rows = []
    for name, fact in found.items():
        by = {row["length"]: row for row in fact["lengths"]}
        cells = "".join(f"<td>{_cell(by.get(n))}</td>" for n in lengths)
        rows.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    return f'<div class="wide"><table><tr><th>length</th>{head}</tr>{"".join(rows)}</table></div>'


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None or "training" not in row["flops_per_token"]:
        return "-"
    return f"{in_flops(row['flops_per_token']['training'])}<br>{in_bytes(row['bytes']['training'])}"
