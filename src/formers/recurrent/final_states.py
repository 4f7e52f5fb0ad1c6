"""The final states of an encoder's recurrent layers, which a recurrent decoder starts from."""

from __future__ import annotations

from torch import Tensor


class FinalStates(list[tuple[Tensor, ...]]):
    """A side channel of the forward context: by layer (h,) or (h, c), each (batch, dim), after the last real token of each row."""
