"""A member with options, as on the command line: decoder, or decoder:layers=2,norm=post."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from formers.family.members import member as find_member


class Variant(NamedTuple):
    """A member with options, as in character-transformer:auxiliary=false."""

    name: str
    member: str
    options: dict[str, Any]

    @property
    def folder(self) -> str:
        """The folder name of its run."""
        return self.name.replace(":", "-").replace("=", "-").replace(",", "-").replace("/", "-")


def variant(text: str, parse: Callable[[list[str]], dict[str, Any]]) -> Variant:
    """The variant that a text names: MEMBER, or MEMBER:name=value,name=value; parse reads such options."""
    name, _, options = text.partition(":")
    find_member(name)
    return Variant(text, name, parse([option for option in options.split(",") if option]))
