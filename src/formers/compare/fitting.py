"""Members of as many parameters: the width of the feed-forward network, or else the width itself, is fitted."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import torch

from formers.core import FormersError
from formers.data import kind_of
from formers.data.reading import Reading
from formers.family import spec as member_spec
from formers.family.members import member as find_member
from formers.model import build
from formers.training import prepare
from formers.training.images import IMAGE_OPTIONS

MULTIPLE = 8
"""The feed-forward width that is fitted is a multiple of this: products of such matrices are faster."""
EVEN = 2
"""Of members without one the width itself is fitted, by so many: a cell that reads from both ends has two halves."""
MOST = 1 << 13
"""No width that is fitted has more multiples."""
TOLERANCE = {"hidden": 0.02, "dim": 0.05}
"""How far from equal the numbers of parameters may be; a step of the width itself is a larger one."""
BYTES = 256


def fitted(member: str, options: dict[str, Any], parameters: int | None, data: str = "", first: str = "") -> tuple[dict[str, Any], int]:
    """The options with the `hidden`, or else the `dim`, that gives a member so many parameters, the nearest there is, and how many it has.

    Parameters that only training needs are not counted. data: what they are trained on; first: the member whose number it is.
    """
    if parameters is None:
        return options, count_parameters(member, options, data)
    knob = knob_of(member)
    multiple = MULTIPLE if knob == "hidden" else EVEN
    above = bisect_left(range(1, MOST), parameters, key=lambda n: count_parameters(member, {**options, knob: n * multiple}, data)) + 1
    tried = [{**options, knob: n * multiple} for n in (above - 1, above) if 1 <= n < MOST]
    made, count = min(((each, count_parameters(member, each, data)) for each in tried), key=lambda found: abs(found[1] - parameters))
    if abs(count - parameters) > TOLERANCE[knob] * parameters:
        raise FormersError(
            f"{member} cannot have {parameters:,} parameters{f', as {first} has' if first else ''}: with {knob}={made[knob]} it has "
            f"{count:,}; choose other sizes, another first member, or other --parameters."
        )
    return made, count


def knob_of(member: str) -> str:
    """The size by which a member is given more parameters or fewer."""
    return "hidden" if "hidden" in find_member(member).options else "dim"


def count_parameters(member: str, options: dict[str, Any], data: str) -> int:
    """The parameters that a member of these options needs to read and write."""
    known = find_member(member).options
    sizes = {name: value for name, value in options.items() if name in known or name in IMAGE_OPTIONS}
    spec = prepare(member, data, None, sizes, Reading()).spec if own_tokens(data) else member_spec(member, **{"vocab": BYTES, **sizes})
    with torch.device("meta"):
        return build(spec).parameter_count(training=False)


def own_tokens(data: str) -> bool:
    """Whether data have tokens of their own, whoever reads them."""
    return kind_of(data) in ("task", "vectors", "stories", "images")
