"""Pictures in files: one figure, written as .png or .svg by the suffix of its name.

Matplotlib is loaded only here and only when a picture is asked for; figures are made without pyplot, so that nothing global changes.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from formers.core import FormersError

SUFFIXES = (".png", ".svg")
INK, FAINT, LINE, TEXT = "#23508e", "#eef1f5", "#ffffff", "#333333"


def new_figure(path: str | Path, width: float, height: float) -> Any:
    """An empty figure of a size in inches, to be written to `path`; refuses a name that no picture can have."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise FormersError(f"{path.name!r} is no name for a picture: end it in {' or '.join(SUFFIXES)}.")
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise FormersError(f"a picture like {path.name!r} needs matplotlib: pip install matplotlib.") from None
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))


def write_caption(figure: Any, caption: str) -> None:
    """Sets a caption below the figure, in as many lines as its width asks for."""
    characters = int(13 * figure.get_size_inches()[0])
    figure.supxlabel("\n".join(textwrap.wrap(caption, characters)), fontsize=9, color=TEXT)


def save_figure(figure: Any, path: str | Path, title: str = "") -> Path:
    """Writes a figure and returns its path; the same figure gives the same bytes. The title is what a reader hears who does not see."""
    import matplotlib

    path = Path(path)
    suffix = path.suffix.lower().lstrip(".")
    metadata: dict[str, str | None] = {"Date": None} if suffix == "svg" else {"Software": None}
    if title:
        metadata["Title"] = title
    with matplotlib.rc_context({"svg.hashsalt": "formers"}):
        try:
            figure.savefig(path, format=suffix, dpi=160, facecolor="white", metadata=metadata)
        except OSError as error:
            raise FormersError(f"cannot write {str(path)!r} ({error.strerror}): choose a folder that exists and is yours.") from None
    return path


def tidy(axes: Any) -> None:
    """Gives axes the house look: no frame, small faint ticks."""
    axes.tick_params(length=2, color=TEXT, labelcolor=TEXT, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)
