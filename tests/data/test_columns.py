"""Written addition in columns: whole sums, shares of columns that pass a carry on, and numbers of as many digits as were asked for."""

from __future__ import annotations

from formers.core import IGNORED
from formers.data.tasks import Columns
from helpers import sweep


@sweep("nines", [0.0, 0.5])
def test_columns_are_sums_of_as_many_digits(nines: float) -> None:
    rows = Columns(digits=6, test_digits=9, nines=nines, rows=300)
    for part, sizes in (("valid", range(1, 7)), ("test", [9])):
        held = rows.held(part)
        assert set(held.difficulty[:, 0].tolist()) == set(sizes)
        for x, y, mask in zip(held.tokens, held.targets, held.mask, strict=True):
            n = int(mask.sum()) - 1
            first, second = x[: n + 1, :10].argmax(dim=1).tolist(), x[: n + 1, 10:].argmax(dim=1).tolist()
            number = lambda digits: sum(digit * 10**place for place, digit in enumerate(digits))  # noqa: E731
            assert first[n] == second[n] == 0
            assert first[n - 1] > 0, "the first number has just so many digits"
            assert number(first) + number(second) == number(y[: n + 1].tolist())
            assert (y[n + 1 :] == IGNORED).all()
            assert (x[n + 1 :] == 0).all()


def test_so_many_columns_pass_on_what_is_carried() -> None:
    for nines, wanted in ((0.0, 0.1), (0.5, 0.55), (0.9, 0.91)):
        held = Columns(digits=20, test_digits=20, nines=nines, rows=500).held("test")
        both = held.tokens[:, :19, :10].argmax(dim=2) + held.tokens[:, :19, 10:].argmax(dim=2)
        assert abs((both == 9).double().mean().item() - wanted) < 0.02
