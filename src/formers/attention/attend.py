"""Attention over a pattern: checks shapes, and chooses an executor by types and configuration; `explain` says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from formers.attention.executors import blocked, dense, distances, flex, gather, sdpa
from formers.attention.executors.flex_kernel import KernelRefused
from formers.attention.request import Request
from formers.core import ExplicitPositions, FormersError, Positions, Range, nearest
from formers.core.devices import capabilities
from formers.patterns import Full, Pattern


class Executor(NamedTuple):
    """One implementation of attention."""

    unsupported: Callable[[Request, Tensor, Tensor, Tensor], str | None]
    """Why it cannot compute a request; None if it can."""
    run: Callable[[Tensor, Tensor, Tensor, Request], Tensor]
    about: str
    """A short description, for `explain`."""
    masks: Callable[[Request], str] | None = None
    """How it masks a request, for `explain`."""
    not_worthwhile: Callable[[Request, Tensor, Tensor, Tensor], str | None] | None = None
    """Why another executor is faster for a request, so that "auto" skips this one; None if it is worthwhile."""
    kernels: int | None = None
    """How many patterns `formers doctor` checks, if compiling a kernel for each takes seconds; None: all."""

    def declines(self, request: Request, q: Tensor, k: Tensor, v: Tensor) -> str | None:
        """Why "auto" skips it: unsupported, or not worthwhile; None if it does not."""
        why = self.unsupported(request, q, k, v)
        return self.not_worthwhile(request, q, k, v) if why is None and self.not_worthwhile is not None else why


# In the order in which "auto" tries them; dense is last and supports everything.
EXECUTORS: dict[str, Executor] = {
    "gather": Executor(gather.unsupported, gather.run, "the keys that one query reads, gathered", gather.masks, gather.not_worthwhile),
    "flex": Executor(
        flex.unsupported, flex.run, "a kernel that torch compiles for the pattern", not_worthwhile=flex.not_worthwhile, kernels=4
    ),
    "blocked": Executor(
        blocked.unsupported, blocked.run, "the pieces of the pattern's plan, merged", not_worthwhile=blocked.not_worthwhile
    ),
    "distances": Executor(
        distances.unsupported, distances.run, "tiles, with the term by distance computed in each", not_worthwhile=distances.not_worthwhile
    ),
    "sdpa": Executor(sdpa.unsupported, sdpa.run, "torch's fused kernel", sdpa.masks),
    "dense": Executor(dense.unsupported, dense.run, "the equation, with the full matrix of weights", Request.mask_words),
}


_CHOSEN: dict[tuple[object, ...], str] = {}
"""Cached choices: the executor by `signature`. Layers of one pass, and passes over equal shapes, share one choice."""
MOST_CHOSEN = 1024
"""The cache of choices is emptied when it has this many."""


class Choice(NamedTuple):
    """The executor that runs, and why those tried before it do not."""

    name: str
    passed_over: dict[str, str]


class Verdict(NamedTuple):
    """The status of an executor for a request."""

    name: str
    runs: bool
    about: str
    """A short description; for the one that runs, also how it masks."""
    why_not: str | None
    """Why "auto" does not run it; None for the one that runs, and for later ones that could."""


def choose(request: Request, q: Tensor, k: Tensor, v: Tensor, how: str = "auto") -> Choice:
    """The executor for a request: the first that is supported and worthwhile, or the one with the name `how`."""
    if how == "auto":
        passed: dict[str, str] = {}
        for name, executor in EXECUTORS.items():
            why = executor.declines(request, q, k, v)
            if why is None:
                return Choice(name, passed)
            passed[name] = why
    if how not in EXECUTORS:
        raise FormersError(f"how={how!r} is not an executor: {nearest(how, [*EXECUTORS, 'auto'])}")
    why = EXECUTORS[how].unsupported(request, q, k, v)
    if why is not None:
        raise FormersError(f"how={how!r} cannot do this because {why}: use how='auto'.")
    return Choice(how, {})


@contextmanager
def only(name: str) -> Iterator[None]:
    """A context in which "auto" is one executor, for example `dense` to count operations."""
    others = dict(EXECUTORS)
    EXECUTORS.clear()
    EXECUTORS[name] = others[name]
    try:
        yield
    finally:
        EXECUTORS.clear()
        EXECUTORS.update(others)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern = Full(),
    how: str = "auto",
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    queries: Positions | None = None,
    keys: Positions | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(q k^T * scale + bias) v over the keys that the pattern allows; 0 for a query without keys.

    q, k, v are (batch, heads, length, head_dim); v may have another width. mask (batch, keys) is True at real keys; scale is
    1/sqrt(head_dim) unless given. By default keys have positions 0, 1, ... and queries are the last of them (or also start at 0, if there
    are more queries than keys); `queries` and `keys` set other positions. `how` is auto, or an executor's name.

    Masked keys have no effect: their k, v and bias may be NaN or infinite, and get zero gradients. Keys that the pattern excludes must be
    finite, because 0 * NaN is NaN. The mask is for keys only; every query gets an output.
    """
    request = _request(q, k, v, pattern, mask, bias, queries, keys, scale, dropout)
    if mask is not None:
        # 0 * NaN is NaN in both passes. The bias needs no such treatment: executors replace its masked columns.
        masked = ~mask[:, None, :, None]
        k, v = k.masked_fill(masked, 0.0), v.masked_fill(masked, 0.0)
    return run(q, k, v, request, how)


def run(q: Tensor, k: Tensor, v: Tensor, request: Request, how: str = "auto") -> Tensor:
    """What `attend` computes, for a request that already matches its tensors."""
    if torch.compiler.is_compiling():
        return EXECUTORS[choose(request, q, k, v, how).name].run(q, k, v, request)
    if how != "auto":
        try:
            return EXECUTORS[choose(request, q, k, v, how).name].run(q, k, v, request)
        except KernelRefused as refusal:
            raise FormersError(
                f"how={how!r} cannot do this because torch refused to compile its kernel ({refusal}): use how='auto'."
            ) from refusal
    asked = signature(request, q, k, v)
    name = _CHOSEN.get(asked)
    if name is None:
        if len(_CHOSEN) >= MOST_CHOSEN:
            _CHOSEN.clear()
        name = _CHOSEN[asked] = choose(request, q, k, v).name
    try:
        return EXECUTORS[name].run(q, k, v, request)
    except KernelRefused:  # the executor has recorded and logged it, and declines such requests from now on
        name = _CHOSEN[asked] = choose(request, q, k, v).name
        return EXECUTORS[name].run(q, k, v, request)


def signature(request: Request, q: Tensor, k: Tensor, v: Tensor) -> tuple[object, ...]:
    """All that the choice of an executor may depend on, as a hashable value.

    Positions are compared as integers; of explicit positions only the class and the length, so that no tensor is read. For one query they
    matter only if its pattern defines `Pattern.reads`; with other patterns all decoding steps share one choice.
    """
    queries, keys = request.queries, request.keys
    where: tuple[object, ...]
    if isinstance(queries, ExplicitPositions) or isinstance(keys, ExplicitPositions):
        where = type(queries), queries.length, type(keys), keys.length
    elif queries.length == 1 and request.pattern.reads(queries.stop - 1) is None:
        where = 1, type(keys), keys.length > 0
    else:
        where = queries, keys
    return (
        request.pattern, where, request.heads, q.shape, v.shape[3], q.dtype, q.device, capabilities(q.device), request.valid is None,
        type(request.bias), request.dropout > 0, request.first is None,
        torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad), *EXECUTORS,
    )  # fmt: skip


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern = Full(),
    how: str = "auto",
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    queries: Positions | None = None,
    keys: Positions | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> str:
    """One sentence: the executor that `attend` would run, and why not the ones before it."""
    return explain_request(q, k, v, _request(q, k, v, pattern, mask, bias, queries, keys, scale, dropout), how)


def explain_request(q: Tensor, k: Tensor, v: Tensor, request: Request, how: str = "auto") -> str:
    """`explain` for a request that already matches its tensors."""
    choice = choose(request, q, k, v, how)
    others = "".join(f"; not {name}, because {why}" for name, why in choice.passed_over.items())
    return f"{choice.name} ({EXECUTORS[choice.name].about}){others}"


def survey(q: Tensor, k: Tensor, v: Tensor, request: Request) -> tuple[Verdict, ...]:
    """The status of every executor for a request, in the order in which "auto" tries them."""
    chosen = choose(request, q, k, v).name
    return tuple(
        Verdict(name, True, executor.about + ("" if executor.masks is None else f", {executor.masks(request)}"), None)
        if name == chosen
        else Verdict(name, False, executor.about, executor.declines(request, q, k, v))
        for name, executor in EXECUTORS.items()
    )


def _request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern,
    mask: Tensor | None,
    bias: Tensor | None,
    queries: Positions | None,
    keys: Positions | None,
    scale: float | None,
    dropout: float,
) -> Request:
    if not isinstance(pattern, Pattern):
        raise FormersError(f"pattern={pattern!r} is not a pattern: give a value such as Causal() or Local(window=128).")
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, Tensor):
            raise FormersError(f"{name} is a {type(value).__name__}: give a tensor of shape (batch, heads, length, head_dim).")
    if not 0 <= dropout < 1:
        raise FormersError(f"dropout={dropout} is not a dropout rate: give a number in [0, 1).")
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise FormersError(f"attend got {_shapes(q, k, v)}: each must be (batch, heads, length, head_dim).")
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise FormersError(
            f"attend got {_shapes(q, k, v)}: q and k must agree in batch, heads, head_dim, and k and v in batch, heads, length."
        )
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
        raise FormersError(f"attend got q {q.dtype}, k {k.dtype}, v {v.dtype}: give all three the same floating-point dtype.")
    n, m = q.shape[2], k.shape[2]
    if mask is not None and (mask.shape != (q.shape[0], m) or mask.dtype != torch.bool):
        raise FormersError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}: it must be bool of shape ({q.shape[0]}, {m}), True = a real key."
        )
    where = Range(max(0, m - n), n) if queries is None else queries
    there = Range(0, m) if keys is None else keys
    _check_positions("queries", where, q.shape[0], n)
    _check_positions("keys", there, q.shape[0], m)
    scores = (*q.shape[:2], n, m)
    if bias is not None and (bias.dim() > 4 or any(b not in (1, s) for b, s in zip(bias.shape[::-1], scores[::-1], strict=False))):
        raise FormersError(f"bias has shape {tuple(bias.shape)}: it must broadcast to (batch, heads, queries, keys) = {scores}.")
    if pattern.heads not in (None, q.shape[1]):
        raise FormersError(f"{type(pattern).__name__} is for {pattern.heads} heads, but q has {q.shape[1]}: give one pattern per head.")
    bound = pattern.of(there.stop)  # called even if unused: raises FormersError for a row that is too long
    return Request(
        # Some patterns depend on the end of the row; padded rows end where their mask ends.
        pattern=bound if mask is None else pattern,
        queries=where,
        keys=there,
        heads=q.shape[1],
        scale=q.shape[3] ** -0.5 if scale is None else scale,
        valid=mask,
        bias=None if bias is None else bias.view((1,) * (4 - bias.dim()) + bias.shape),
        dropout=dropout,
    )


def _shapes(q: Tensor, k: Tensor, v: Tensor) -> str:
    return f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"


def _check_positions(name: str, positions: Positions, batch: int, length: int) -> None:
    """Raises FormersError for positions of another number of tokens, which torch might broadcast."""
    shape = tuple(positions.index.shape) if isinstance(positions, ExplicitPositions) else (positions.length,)
    if shape not in ((length,), (1, length), (batch, length)):
        raise FormersError(f"the positions of {name} have shape {shape}: give one per token, ({length},) or ({batch}, {length}).")
