"""`formers report`: runs and comparisons as one HTML file that can be mailed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from formers.cli.common import Json, check_file, print_json, wrote
from formers.cli.complete import complete_run


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN|COMPARISON...", help="Folders of runs, or of comparisons.", autocompletion=complete_run)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, .html.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The title of the page; the names of the runs unless given.")] = "",
    maps: Annotated[bool, typer.Option("--maps/--no-maps", help="Look into the models: attention, spans, ponder times, images.")] = True,
    json: Json = False,
) -> None:
    """Write what RUNs were trained on, their curves, samples, scores and costs, and the verdict of a COMPARISON, into one HTML file."""
    check_file(out, (".html", ".htm"))
    from formers.cli.common import notice
    from formers.core import FormersError
    from formers.model.files import write
    from formers.report import read_reports, report_page
    from formers.training.log import progress_bar

    found, comparisons, problems = read_reports(runs)
    if not found:
        raise FormersError(problems[0] if problems else "there is no run to report: give the folder of one.")
    for problem in problems:
        notice(problem)
    with progress_bar("reporting") as tick:
        page = report_page(found, comparisons, problems, maps, title, tick)
    write(out, page.encode())
    wrote(out, json)
    if json:
        print_json(
            {"file": str(out), "bytes": len(page.encode()), "runs": len(found), "comparisons": len(comparisons), "problems": problems}
        )
