"""What many tests say: two tensors agree, a mistake is refused in one sentence, and what the gradients are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from formers import FormersError
from formers.inspect.cost import Live

EXACT = 1e-10
"""How far two float64 ways to compute one thing may be apart."""


def close(found: Tensor, wanted: Tensor, tolerance: float = EXACT) -> None:
    """Fails unless two tensors have one shape and type and agree to an absolute tolerance; NaN agrees with nothing."""
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0.0, equal_nan=False)


def one_sentence(text: str) -> None:
    """Fails unless a message is one line that ends as a sentence does."""
    assert "\n" not in text, f"not one line: {text!r}"
    assert text.endswith((".", "?")), f"not a sentence: {text!r}"


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """Fails unless its body is refused with one sentence that holds all the words."""
    with pytest.raises(FormersError) as caught:
        yield
    text = str(caught.value)
    one_sentence(text)
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


def gradients(y: Tensor, inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a fixed, uneven weighting of y by inputs; 0 where y does not depend on one."""
    weight = torch.linspace(-1.0, 1.0, y.numel(), dtype=y.dtype).sin().view(y.shape)
    return torch.autograd.grad((y * weight).sum(), list(inputs), allow_unused=True, materialize_grads=True)


class Largest(Live):
    """Counts as `Live` does, and keeps the size of the largest tensor that is made within it, in bytes."""

    largest = 0

    def _meet(self, given: object, made: bool) -> None:
        super()._meet(given, made)
        if made and isinstance(given, Tensor):
            self.largest = max(self.largest, given.untyped_storage().nbytes())
