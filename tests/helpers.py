"""What many tests say: two tensors agree, a mistake is refused in one sentence, the gradients are these, a rule holds for many values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

from formers import FormersError
from formers.core.live import Live

SEED = 1234
"""The state of torch's random numbers at the start of every test, and of every combination of a sweep."""
SHOWN = 3
"""Of so many values that fail in a sweep the whole message is shown."""
EXACT = 1e-10
"""How far two float64 ways to compute one thing may be apart."""


def close(found: Tensor, wanted: Tensor, tolerance: float = EXACT) -> None:
    """Fails unless two tensors have one shape and type and agree to an absolute tolerance; NaN agrees with nothing."""
    alike = (found.shape, found.dtype, found.device, found.layout) == (wanted.shape, wanted.dtype, wanted.device, wanted.layout)
    if alike and torch.allclose(found, wanted, rtol=0.0, atol=tolerance):
        return  # torch.testing says the same, and takes longer
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0.0, equal_nan=False)


def sweep(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test for each of the values, as `pytest.mark.parametrize` does, but as one case: pytest spends time on every case.

    Each value starts from the same random numbers. All of them are run, and the failure names those that failed. It is skipped where
    all of them are.
    """
    named, given = (names,) if isinstance(names, str) else names, list(values)
    assert given, f"there is no value of {names} to test"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def every(**fixtures: Any) -> None:
            failed: list[tuple[str, BaseException]] = []
            skipped: list[BaseException] = []
            for value in given:
                arguments = dict(zip(named, (value,) if isinstance(names, str) else value, strict=True))
                torch.manual_seed(SEED)
                try:
                    test(**fixtures, **arguments)
                except pytest.skip.Exception as why:
                    skipped.append(why)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((", ".join(f"{name}={one!r}" for name, one in arguments.items()), error))
            if failed:
                first = "\n".join(f"{case}: {type(error).__name__}: {error}" for case, error in failed[:SHOWN])
                rest = "".join(f"\nalso {case}" for case, _ in failed[SHOWN:])
                raise AssertionError(f"{len(failed)} of {len(given)} values fail.\n{first}{rest}") from failed[0][1]
            if len(skipped) == len(given):
                raise skipped[0]

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in named]
        every.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # what pytest has to give
        return every

    return decorate


def first_quick(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """The values for `pytest.mark.parametrize`, of which `make test` takes the first and `make test-all` all."""
    return [value if i < quick else pytest.param(value, marks=pytest.mark.slow) for i, value in enumerate(values)]


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
