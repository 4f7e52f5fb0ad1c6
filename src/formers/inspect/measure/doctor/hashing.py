"""LSH attention on a device against dense on the CPU in float64: output and gradients, in short and long rows.

The buckets are those that the device computes, since rounding may change a hash; the reference attends to the same ones. How many tokens
get another bucket than on the CPU is checked separately.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.attention import LSH
from formers.attention.lsh.hashing import in_order
from formers.attention.lsh.layer import LSHAttention
from formers.core import Context, Range, Sizes, Watch
from formers.inspect.measure.doctor.cases import LONG, WIDTH, uneven
from formers.inspect.measure.doctor.clock import timed
from formers.inspect.measure.doctor.compare import LIMITS, TYPES, brief, difference
from formers.inspect.measure.doctor.report import finding
from formers.patterns import Causal

BATCH, HEADS, DIM = 2, 2, 32
SAME = {"float64": 0.999, "float32": 0.99, "bf16": 0.9, "fp16": 0.95}
"""The share of tokens that must get the bucket that the CPU gives them in float64, of inputs rounded alike."""


class Hashing(NamedTuple):
    """A case: the part, the number of tokens, and the number of real ones in the second row."""

    name: str
    part: LSH
    length: int
    real: int | None = None


CASES = (
    Hashing("whole buckets, rows of 96", LSH(chunk=16), 96),
    Hashing(f"whole buckets, rows of {LONG}", LSH(chunk=32), LONG),
    Hashing(f"chunks, rows of {LONG}", LSH(chunk=32, reach="chunk"), LONG),
    Hashing(f"chunks, rows of {LONG} with padding", LSH(chunk=32, reach="chunk"), LONG, LONG - 90),
)


def check_hashing(case: Hashing, precision: str, device: torch.device) -> dict[str, Any]:
    """LSH attention of one case in one precision, as a finding."""
    torch.manual_seed(0)
    sizes = Sizes(DIM, HEADS, WIDTH, WIDTH, case.length, 1, 0.0, 0.0)
    layer = LSHAttention(sizes, Causal(), case.part).eval()
    x = torch.randn(BATCH, case.length, DIM)
    valid = None if case.real is None else torch.arange(case.length)[None] < torch.tensor([[case.length], [case.real]])
    there = copy.deepcopy(layer).to(TYPES[precision]).to(device)
    given = x.to(TYPES[precision]).to(device).requires_grad_()
    watch = Watch(only="buckets")
    real = None if valid is None else valid.to(device)
    name = f"LSH attention, {case.name}"
    try:
        there(given, Context(Range(0, case.length), real, watch=watch), None, 0)
        buckets = watch.notes["buckets"][0].cpu()
        found = _outcome(there, given, Context(Range(0, case.length), real), None)
        times = timed(lambda: _outcome(there, given, Context(Range(0, case.length), real), None), device, 3)
    except Exception as error:  # any error of a kernel
        return finding("attention", name, precision, wrong=brief(error))
    exact = there.cpu().double()
    wanted = _outcome(exact, given.detach().cpu().double().requires_grad_(), Context(Range(0, case.length), valid), buckets)
    if valid is not None:  # what is computed at padding is undefined
        found[0], wanted[0] = (y * valid[..., None] for y in (found[0].cpu(), wanted[0]))
    largest = max(difference(ours, right) for ours, right in zip(found, wanted, strict=True))
    same = (buckets == _buckets(exact, given.detach().cpu().double(), valid)).double().mean().item()
    words = None
    if not largest <= LIMITS[precision]:
        words = f"largest difference {largest:.1e}"
    elif same < SAME[precision]:
        words = f"{1 - same:.1%} of the tokens get another bucket than on the CPU"
    return finding("attention", name, precision, largest, times.first, times.later, words)


def _outcome(layer: LSHAttention, x: Tensor, context: Context, buckets: Tensor | None) -> list[Tensor]:
    """The output and the gradients of x and of the projection; with buckets, by the equation."""
    if buckets is None:
        y, _ = layer(x, context, None, 0)
    else:
        q, v = layer.split_all(layer.qv(x), 2)
        y = layer.merge(layer.dense_attention(q, v, in_order(buckets), context, 0))
    slopes = uneven(y)
    if context.valid is not None:
        slopes = slopes * context.valid[..., None]
    return [y.detach(), *torch.autograd.grad((y * slopes).sum(), [x, layer.qv.weight])]


@torch.no_grad()
def _buckets(layer: LSHAttention, x: Tensor, valid: Tensor | None) -> Tensor:
    """The buckets of tokens, as a layer computes them in its own precision."""
    watch = Watch(only="buckets")
    layer(x, Context(Range(0, x.shape[1]), valid, watch=watch), None, 0)
    found: Tensor = watch.notes["buckets"][0]
    return found
