"""Fonts for labels of any script: matplotlib's own font where it has the characters, others of this machine where it has not."""

from __future__ import annotations

from collections.abc import Iterable

from formers.inspect.measure.token_labels import plain_label

OWN = "DejaVu Sans"
"""The font that comes with matplotlib."""
BOXES = "Last Resort"
"""What fonts are called that have a box for every character of a script."""


def fonts_for(labels: Iterable[str]) -> tuple[list[str], set[str]]:
    """The families that together have the labels' characters, in the order to try them, and the characters that none has."""
    from matplotlib import font_manager

    missing = {character for label in labels for character in label} - _characters(font_manager.findfont(OWN))
    families = [OWN]
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: (font.name, font.fname)):
        if not missing:
            break
        if font.name not in families and font.style == "normal" and not font.name.startswith(BOXES):
            here = missing & _characters(font.fname)
            if here:
                families.append(font.name)
                missing -= here
    return families, missing


def drawable(label: str, missing: set[str]) -> str:
    """The label with the characters that no font has written by their numbers."""
    return "".join(plain_label(character) if character in missing else character for character in label)


def _characters(path: str) -> set[str]:
    from matplotlib.font_manager import get_font

    try:
        return {chr(point) for point in get_font(path).get_charmap()}
    except (OSError, RuntimeError):  # a font that cannot be read has nothing for us
        return set()
