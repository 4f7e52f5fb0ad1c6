"""Building the model of a spec."""

from __future__ import annotations

import math
import re

from formers.core import FormersError
from formers.model.check import check
from formers.model.model import Model, StackModel
from formers.model.seq2seq import Seq2Seq
from formers.model.spec import Spec


def build(spec: Spec) -> Model:
    """The model of a spec, freshly initialised; raises FormersError for an invalid spec before any weight is allocated."""
    if not isinstance(spec, Spec):
        raise FormersError(f"{spec!r} is not a spec: give the result of formers.spec, or use formers.create for a member's name.")
    check(spec)
    try:
        return StackModel(spec) if spec.encoder is None else Seq2Seq(spec)
    except (RuntimeError, MemoryError) as error:
        needed = _wanted_bytes(str(error))
        if needed is None:
            raise
        raise FormersError(_too_large(spec, needed)) from None


def _wanted_bytes(text: str) -> int | None:
    """The bytes that torch could not allocate, from its error message; None for other messages."""
    if found := re.search(r"tried to allocate (\d+) bytes", text):
        return int(found[1])
    if found := re.search(r"overflowed with sizes=\[([\d, ]+)\]", text):
        return 4 * math.prod(int(size) for size in found[1].split(","))
    return None


def _too_large(spec: Spec, needed: int) -> str:
    """The error for a spec with a tensor of `needed` bytes, with the largest sizes of the spec or its encoder."""
    sizes: dict[str, int] = {}
    for stack in (spec, spec.encoder):
        named = {} if stack is None else {"dim": stack.dim, "vocab": stack.vocab, "length": stack.length}
        hidden = getattr(stack, "feedforward", None)
        for name, size in {**named, "hidden": getattr(hidden, "hidden", None)}.items():
            sizes[name] = max(sizes.get(name, 0), size or 0)
    large = {name: size for name, size in sizes.items() if 100 * size >= max(sizes.values())}
    sizes_text = " and ".join(f"{name}={size}" for name, size in large.items())
    return (
        f"{spec.name or 'this model'} with {sizes_text} has a tensor of {needed / 1e9:,.0f} GB, which does not fit into memory: "
        f"use a smaller {' or '.join(large)}."
    )
