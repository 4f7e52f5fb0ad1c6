"""The report: one HTML file with everything in it, which asks for nothing and runs nothing.

The content security policy allows pictures in data addresses and one style sheet, named by its checksum, and nothing else: no script, no
request. All text of users reaches the page escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import shlex
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from formers import __version__
from formers.compare.budget import Budget
from formers.report.charts import COLOURS, ChartLine, chart
from formers.report.costs import costs
from formers.report.look import looked
from formers.report.read import Recorded

SAMPLES = 6
"""Samples of a run that are shown, spread over it; of each the first LETTERS characters."""
LETTERS = 600
MAPPED = 8
"""Groups of runs that are looked into, at the most: one run each."""
SCORES = (
    "bits_per_byte", "bits_per_dimension", "nats_per_image", "perplexity", "word_perplexity", "accuracy", "exact", "bleu", "chrf",
    "mean_return", "success", "loss", "targets", "evaluated", "protocol", "steps", "seconds", "tokens_per_second", "images_per_second",
    "peak_memory_bytes", "peak_device_memory_bytes",
)  # fmt: skip


def report_page(
    runs: Sequence[Recorded], comparisons: Sequence[Mapping[str, Any]] = (), problems: Sequence[str] = (), maps: bool = True,
    title: str = "", tick: Callable[[int, int | None], None] | None = None,
) -> str:  # fmt: skip
    """The page of runs and comparisons. maps: whether the models are looked into, which takes their weights."""
    style = (resources.files("formers.report") / "report.css").read_text(encoding="utf-8")
    checksum = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{checksum}'; base-uri 'none'; form-action 'none'"
    priced, also = costs(runs)
    groups = list(dict.fromkeys(run.group for run in runs))
    name = title or ", ".join(groups[:4]) + (f" and {len(groups) - 4} more" if len(groups) > 4 else "")
    sections = [
        *(_comparison(each) for each in comparisons),
        _section("Problems", _list([*problems, *also])) if (*problems, *also) else "",
        _section("Curves", _curves(runs, groups)),
        _section("Scores", _scores(runs)),
        _section("Cost against length", priced) if priced else "",
    ]
    firsts = [next(run for run in runs if run.group == group) for group in groups]
    for number, run in enumerate(firsts):
        if tick is not None:
            tick(number, len(firsts))
        sections.append(_run(run, maps and number < MAPPED))
    heading = f"<h1>{_escaped(name) or 'Report'}</h1>"
    count = f'<p class="note">{len(runs)} run{"" if len(runs) == 1 else "s"}; formers {_escaped(__version__)}</p>'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{_escaped(name) or 'Report'}</title><style>{style}</style></head><body><header>{heading}{count}</header><main>"
        f"{''.join(sections)}</main></body></html>\n"
    )


def _escaped(value: object) -> str:
    """Text of anybody, safe in HTML: markup is text, and control characters and those that turn the direction of writing are marked."""
    text = str(value)
    return html.escape("".join(c if c in "\n\t" or (c.isprintable() and not 0x202A <= ord(c) <= 0x202E) else "\ufffd" for c in text))


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_escaped(title)}</h2>{body}</section>" if body else ""


def _list(words: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_escaped(word)}</li>' for word in words)}</ul>"


def _table(rows: Sequence[tuple[object, ...]], head: Sequence[str] = (), kind: str = "figures") -> str:
    """Rows of text as a table that scrolls on a narrow screen."""
    top = f"<tr>{''.join(f'<th>{_escaped(cell)}</th>' for cell in head)}</tr>" if head else ""
    body = "".join(f"<tr><th>{_escaped(row[0])}</th>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row[1:])}</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}">{top}{body}</table></div>'


def _comparison(found: Mapping[str, Any]) -> str:
    """The verdict of a comparison, its table and its command."""
    verdict = found.get("verdict") or {}
    sentences = [str(sentence) for sentence in verdict.get("sentences", [])]
    says = "".join(f'<p class="verdict">{_escaped(sentence)}</p>' for sentence in sentences)
    says += f'<p class="note">{_escaped(verdict.get("rule", ""))}</p>' if len(sentences) and verdict.get("differences") else ""
    if not found.get("whole", True):
        says = "<p>This comparison is not finished: runs are missing.</p>" + says
    if "env" in found:
        rows = [
            (r["variant"], f"{r['solved']}/{r['seeds']}", _number(r["mean_return"]), _number(r["lowest_return"])) for r in found["rows"]
        ]
        what = f"{found['env']}, {found['steps']:,} steps each"
        return _section(f"Comparison: {what}", says + _table(rows, ("", "solved", "mean return", "lowest")) + _command(found))
    figures = [
        name for name in SCORES if name not in ("protocol", "targets", "evaluated") and any(r.get(name) is not None for r in found["rows"])
    ]
    rows = [(row["variant"], f"{row['parameters']:,}", *(_with_spread(row, name) for name in figures)) for row in found["rows"]]
    words = Budget(found["equal"], found["budget"]).words
    body = says + _table(rows, ("", "parameters", *(name.replace("_", " ") for name in figures)))
    note = f'<p class="note">Means of {found["seeds"]} seeds ± their standard deviation. {_escaped(found["machine"])}.</p>'
    return _section(f"Comparison: {found['data']}, {words} each", body + (note if found["seeds"] > 1 else "") + _command(found))


def _command(found: Mapping[str, Any]) -> str:
    return f"<pre>$ {_escaped(found['command'])}</pre>" if found.get("command") else ""


def _with_spread(row: Mapping[str, Any], name: str) -> str:
    if row.get(name) is None:
        return "-"
    spread = row.get("spread", {}).get(name)
    return _number(row[name]) + (f" ± {_number(spread)}" if spread is not None else "")


def _number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _curves(runs: Sequence[Recorded], groups: Sequence[str]) -> str:
    """Curves against steps, tokens, time and FLOPs: held-out figures, and training losses beside them."""
    measure = next((run.measure for run in runs if run.measure), None)
    held = "held-out " + (measure or "").removeprefix("valid_").replace("_", " ")
    axes: list[tuple[str, Callable[[Recorded, Mapping[str, Any]], float | None]]] = [
        ("steps", lambda run, line: float(line["step"])),
        ("tokens", lambda run, line: None if run.tokens_per_step is None else line["step"] * run.tokens_per_step),
        ("seconds of training", lambda run, line: _seconds(run, line["step"])),
        ("training FLOPs", lambda run, line: None if run.flops_per_step is None else line["step"] * run.flops_per_step),
    ]
    drawn = []
    agents = any(run.is_agent for run in runs)
    for title, at in axes:
        if measure is not None:
            lines = [_line(run, groups, run.evaluations, measure, at) for run in runs]
            drawn.append(chart(lines, title, held))
        steps = [_line(run, groups, run.steps, "return" if run.is_agent else "loss", at) for run in runs]
        if agents or title == "steps" or measure is None:
            drawn.append(chart(steps, title, "return" if agents else "training loss"))
    legend = "".join(f'<li class="c{i % COLOURS}">{_escaped(group)}</li>' for i, group in enumerate(groups))
    return f'<ul class="legend">{legend}</ul><div class="charts">{"".join(drawn)}</div>' if any(drawn) else "<p>There are no curves.</p>"


def _line(
    run: Recorded, groups: Sequence[str], lines: Sequence[Mapping[str, Any]], figure: str,
    at: Callable[[Recorded, Mapping[str, Any]], float | None],
) -> ChartLine:  # fmt: skip
    points = [(x, _value(line.get(figure))) for line in lines if (x := at(run, line)) is not None]
    return ChartLine(run.name, points, groups.index(run.group))


def _value(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(float(value)) < 1e30 else None


def _seconds(run: Recorded, step: int) -> float | None:
    """When a step was: the time that its line says, or that of the newest line before it."""
    place = bisect_right(run.steps, step, key=lambda line: line["step"])
    line = run.steps[place - 1] if place else {}
    return _value(line.get("seconds", line.get("cpu_seconds")))


def _scores(runs: Sequence[Recorded]) -> str:
    """What each run reached, and how it was evaluated."""
    found = [(run, run.reached) for run in runs]
    names = [name for name in SCORES if any(scores.get(name) is not None for _, scores in found)]
    rows = [(run.name, *(_number(scores.get(name)) for name in names if name != "protocol")) for run, scores in found if scores]
    protocols: dict[str, list[str]] = {}
    for run, scores in found:
        if scores.get("protocol"):
            protocols.setdefault(str(scores["protocol"]), []).append(run.group)
    words = [f"{', '.join(dict.fromkeys(who)) if len(protocols) > 1 else 'All'}: {protocol}" for protocol, who in protocols.items()]
    if not rows:
        return "<p>No run has reached its end.</p>"
    return _table(rows, ("", *(name.replace("_", " ") for name in names if name != "protocol"))) + "<h3>Protocol</h3>" + _list(words)


def _run(run: Recorded, maps: bool) -> str:
    """What a run was trained on and how, what it wrote, what is inside it, and the command that repeats it."""
    facts = run.facts
    settings = {name: value for name, value in facts["settings"].items() if value is not None}
    about = [
        ("member", facts["member"] + (f" ({facts['preset']})" if facts.get("preset") else "")),
        ("parameters", f"{facts['parameters']:,}"),
        ("trained on", facts.get("about") or facts.get("env") or facts["data"]),
        ("sizes", ", ".join(f"{name}={value}" for name, value in facts["sizes"].items()) or "the member's defaults"),
        ("settings", ", ".join(f"{name}={value}" for name, value in settings.items())),
        ("begun", facts.get("began", "-")),
        ("device", facts["device"]),
        ("environment", ", ".join(f"{name} {value}" for name, value in facts.get("versions", {}).items())),
        ("fingerprint of the data", facts.get("fingerprint", "-")),
    ]
    command = shlex.join(["formers", *map(str, facts["command"][1:])]) if facts.get("command") else ""
    body = _list(run.problems) if run.problems else ""
    body += _table(about, kind="facts") + (f"<h3>To repeat it</h3><pre>$ {_escaped(command)}</pre>" if command else "")
    body += _samples(run)
    if maps:
        body += "".join(f"<h3>{_escaped(title)}</h3>{inside}" for title, inside in looked(run))
    return _section(run.group, body)


def _samples(run: Recorded) -> str:
    """Samples beside the step they were written at."""
    if not run.samples:
        return ""
    count = min(SAMPLES, len(run.samples))
    chosen = [run.samples[round(i * (len(run.samples) - 1) / max(1, count - 1))] for i in range(count)]
    rows = []
    for line in chosen:
        prompt = f"<b>{_escaped(line['prompt'])}</b> → " if line.get("prompt") else ""
        text = line["sample"][:LETTERS] + (" ..." if len(line["sample"]) > LETTERS else "")
        rows.append(f'<tr><th>step {line["step"]:,}</th><td><div class="sample">{prompt}{_escaped(text)}</div></td></tr>')
    return f'<h3>Samples</h3><div class="wide"><table>{"".join(rows)}</table></div>'
