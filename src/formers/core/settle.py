"""What a module may do once the weights have moved: bring those back that left where they are allowed to be."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Settles(Protocol):
    """A module with weights that have bounds. Training calls `settle` after every step that is taken."""

    def settle(self) -> None:
        """Brings weights that left their bounds back to them, in place."""
        ...
