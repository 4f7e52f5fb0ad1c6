"""Which implementation of LSH attention runs, by the rules, the length and what the device can do.

On the host: tiles, whose sizes depend on the bucket sizes. Off the host reading a size would be a wait, so all rows, heads and rounds are
computed at once: by FlexAttention, or by plain operations where it has no kernel.
"""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
from torch import Tensor

from formers.attention.attend import Choice, Verdict
from formers.attention.executors.flex_kernel import KernelRefused, RefusedKernels, dtype_unsupported
from formers.attention.lsh.reference import Rules
from formers.core.devices import capabilities, on_host

log = logging.getLogger(__name__)

SHORT = 384
"""Up to this length the fused kernel over all pairs is faster than sorting."""
PATHS = {
    "sdpa": "torch's fused kernel over all pairs, with those of different buckets masked",
    "hashed": "tokens sorted by bucket, in tiles of chunks",
    "flex": "tokens sorted by bucket, rounds as heads, one FlexAttention kernel",
    "chunked": "tokens sorted by bucket, in batched products of chunks",
    "dense": "the equation, with the full matrix of weights",
}
"""The implementations, in the order in which they are tried, and what they do."""
REFUSED = RefusedKernels()
"""The refused kernels, by `_kind`."""
COUNTED_ONCE = "chunks continue in other rounds and a key counts once, which needs all pairs"


def choose(q: Tensor, rules: Rules, rounds: int) -> Choice:
    """The implementation for queries q (batch, heads, n, head_dim), and why those tried before it do not run."""
    passed: dict[str, str] = {}
    for name in PATHS:
        why = _declines(name, q, rules, rounds)
        if why is None:
            break
        passed[name] = why
    return Choice(name, passed)


def verdicts(choice: Choice) -> tuple[Verdict, ...]:
    """The status of the implementations that were tried."""
    return *(Verdict(name, False, PATHS[name], why) for name, why in choice.passed_over.items()), Verdict(
        choice.name, True, PATHS[choice.name], None
    )


def explained(choice: Choice) -> str:
    """One sentence: the implementation that runs, and why not the ones before it."""
    others = "".join(f"; not {name}, because {why}" for name, why in choice.passed_over.items())
    return f"{choice.name} ({PATHS[choice.name]}){others}"


def warn_of_memory(q: Tensor) -> None:
    """Warns, once for a type of device, if long rows are computed over all pairs because the device has no FlexAttention."""
    if not on_host(q) and q.shape[2] > SHORT and not torch.compiler.is_compiling():
        _warn(q.device.type)


@lru_cache(maxsize=8)
def _warn(device: str) -> None:
    log.warning(
        "LSH attention over whole buckets needs memory quadratic in the length on %s, because FlexAttention has no kernel there: "
        "use reach='chunk' for long rows.",
        device,
    )


def _declines(name: str, q: Tensor, rules: Rules, rounds: int) -> str | None:
    """Why an implementation does not run; None if it does."""
    host, whole = on_host(q), rules.reach == "bucket"
    counted_once = rules.across_buckets and rules.wrap == "rounds" and not rules.duplicates
    if name == "sdpa":
        if not whole:
            return "with reach='chunk' the pairs depend on the order of the tokens"
        by_order = host or _no_flex(q, rules, rounds) is None
        return f"above {SHORT} tokens it is slower than sorting them by bucket" if q.shape[2] > SHORT and by_order else None
    if name != "dense" and counted_once:
        return COUNTED_ONCE
    if name == "hashed":
        return None if host else "its tiles depend on bucket sizes, and reading them would wait for the device"
    if name == "flex":
        return _no_flex(q, rules, rounds)
    return "a bucket has no largest size" if name == "chunked" and whole else None


def _no_flex(q: Tensor, rules: Rules, rounds: int) -> str | None:
    """Why FlexAttention cannot run; None if it can."""
    device = q.device.type
    if not capabilities(q.device).flex:
        return f"FlexAttention has no kernels on {device}"
    if (why := dtype_unsupported(q)) is not None:
        return why
    if rules.across_buckets and rules.wrap == "rounds" and 1 + rules.look_back + rules.look_ahead > rounds:
        return "a window of more chunks than rounds may contain a key several times in a short row"
    return None if torch.compiler.is_compiling() else REFUSED.why(_kind(q, rules, rounds))


def refuse(q: Tensor, rules: Rules, rounds: int, refusal: KernelRefused) -> None:
    """Records that torch cannot compile the kernel of FlexAttention for such queries."""
    REFUSED.add(_kind(q, rules, rounds), refusal)


def _kind(q: Tensor, rules: Rules, rounds: int) -> tuple[object, ...]:
    """All that a kernel depends on: not the batch, and not the length."""
    return rules, rounds, q.device, q.dtype, q.shape[1], q.shape[3], torch.is_grad_enabled() and q.requires_grad
