"""Shell completion: members, presets, patterns, data sets, runs, and the names of --set. It does not load torch.

typer keeps what begins with the word so far; where nothing does, bash and zsh offer files. `formers --install-completion` sets it up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import typer

from formers.cli import names
from formers.cli.options import ELSEWHERE

MARKS = ("run.json", "config.json")
"""What the folder of a run or of a saved model holds."""
DEEPEST, MOST = 3, 2000
"""Maximum depth and number of folders searched for runs: completion must be fast."""


def complete_member() -> list[str]:
    """The members."""
    return list(names.members())


def complete_preset(ctx: typer.Context) -> list[str]:
    """The presets of the member in the line, or of all."""
    known = names.members()
    chosen = [known[name] for name in (_given(ctx),) if name in known] or known.values()
    return list(dict.fromkeys(preset for member in chosen for preset in member.presets))


def complete_ablation() -> list[str]:
    """The parts that an ablation can remove."""
    return names.ablations()


def complete_pattern() -> list[str]:
    """The patterns that have a name, and the members, whose patterns can be drawn, too."""
    return list(dict.fromkeys([*names.patterns(), *names.members()]))


def complete_pattern_set(ctx: typer.Context) -> list[str]:
    """The options of the pattern or member in the line."""
    known = names.patterns().get(_given(ctx))
    return complete_member_set(ctx) if known is None else [f"{option}=" for option in known]


def complete_member_set(ctx: typer.Context) -> list[str]:
    """The options of the member in the line."""
    known = names.members().get(_given(ctx))
    return [f"{option}=" for option in (known.options if known else [])]


def complete_figure() -> list[str]:
    """The figures that have a name."""
    return list(names.figures())


def complete_figure_set(ctx: typer.Context) -> list[str]:
    """The options of the member that the figure in the line is drawn from."""
    known = names.members().get(names.figures().get(_given(ctx), ""))
    return [f"{option}=" for option in ("member", *known.options)] if known else []


def complete_set(ctx: typer.Context) -> list[str]:
    """The options of the member in the line, and the settings of training and reading."""
    settings = [f"{setting}=" for setting in names.settings() if setting not in ELSEWHERE]
    return list(dict.fromkeys([*complete_member_set(ctx), *settings]))


def complete_data(incomplete: str) -> list[str]:
    """The data sets that have a name, and the files and folders that begin alike."""
    before, start = os.path.split(incomplete)
    try:
        there = sorted(entry.name for entry in Path(before or ".").expanduser().iterdir())
    except OSError:
        there = []
    files = [os.path.join(before, name) for name in there if start and name.startswith(start)]
    return [*names.data_sets(), *files]


def complete_run(incomplete: str) -> list[str]:
    """The folders that hold a run or a saved model, below the folder that is being typed."""
    before = os.path.dirname(incomplete)
    return [os.path.join(before, path) for path in _runs(Path(before or ".").expanduser())]


def _given(ctx: typer.Context) -> str:
    """The member or pattern that stands in the line; the parser has not named it where the line ends in an option without its value."""
    found = ctx.params.get("member") or ctx.params.get("name") or next(iter(ctx.args), "")
    return str(found).lower().replace("_", "-")


def _runs(root: Path) -> Iterator[str]:
    """The runs below a folder, relative to it; what lies inside a run is not looked at."""
    for looked, (folder, inner, files) in enumerate(os.walk(root)):
        here = os.path.relpath(folder, root)
        if here != "." and any(mark in files for mark in MARKS):
            yield here
            inner.clear()
        deep = 0 if here == "." else here.count(os.sep) + 1
        inner[:] = sorted(name for name in inner if not name.startswith(".")) if deep < DEEPEST and looked < MOST else []
