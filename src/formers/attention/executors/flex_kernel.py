"""The call of FlexAttention: one kernel, compiled by torch, for scores and masks that are functions of indices.

`flex_attention` is the only call of it in the library. A device may register a kernel of its own: the test device registers one
that counts launches, and tests on the CPU one that computes the equation.

Off the host a kernel is compiled once for all batch sizes and lengths: these dimensions are marked as dynamic, in q, k, v, the lists of
blocks and, by `dynamic`, in tensors that mask functions capture. Integers of patterns stay constants of their kernels. On the CPU torch
compiles a kernel for each length, because its C++ code for dynamic lengths does not compile.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from formers.core.devices import on_host

log = logging.getLogger(__name__)

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) -> whether the query may see the key. Indices are int32 scalars; tensors may be captured."""
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query, key) -> the score with a term added; captured tensors may require gradients."""

MOST_KERNELS = 256
"""The largest number of kernels that torch may compile: at most 4 per pattern in training and 4 in evaluation."""
LISTS = (
    "kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices",
    "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices",
)  # fmt: skip
"""The lists of blocks of a block mask, (batch or 1, heads or 1, blocks) and (batch or 1, heads or 1, blocks, blocks)."""


class Kernel(Protocol):
    """Attention (batch, heads, queries, value_dim), and the natural log-sums (batch, heads, queries), minus infinity without keys."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None
    ) -> tuple[Tensor, Tensor]: ...


KERNELS: dict[str, Kernel] = {}
"""Kernels by the type of device; others use torch's compiled FlexAttention."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of torch's kernels."""
NARROWEST = 16
"""The smallest width of a head for which torch has kernels on accelerators."""


def dtype_unsupported(x: Tensor) -> str | None:
    """Why there is no kernel for the dtype of a tensor; None if there is. A registered kernel takes every dtype."""
    if x.dtype in DTYPES or x.device.type in KERNELS:
        return None
    return f"FlexAttention has no kernel for {str(x.dtype).removeprefix('torch.')}"


class KernelRefused(Exception):
    """torch cannot compile a kernel, or the device has no resources for it; another executor computes the request."""


class RefusedKernels:
    """The kernels that torch refused to compile, by all that they depend on, so that none is tried again."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[object, ...], str] = {}

    def add(self, kind: tuple[object, ...], refusal: KernelRefused) -> None:
        """Records a refusal; logs each reason once."""
        why = f"torch refused to compile its kernel ({refusal})"
        if why not in self.reasons.values():
            log.warning("FlexAttention cannot compile a kernel, and another executor computes such attention: %s", refusal)
        self.reasons[kind] = why

    def why(self, kind: tuple[object, ...]) -> str | None:
        """Why torch refused a kernel; None if it did not."""
        return self.reasons.get(kind)


def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None = None
) -> tuple[Tensor, Tensor]:
    """Attention (batch, heads, queries, value_dim) and its natural log-sums (batch, heads, queries); a row without keys has 0 and -inf."""
    return KERNELS.get(q.device.type, compiled)(q, k, v, block_mask, scale, score_mod)


def flex_output(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float) -> Tensor:
    """Attention (batch, heads, queries, value_dim) without its log-sums, which torch's kernels for a CPU do not compute."""
    if q.device.type in KERNELS or not on_host(q):
        return flex_attention(q, k, v, block_mask, scale)[0]
    return compiled.output(q, k, v, block_mask, scale)


@contextmanager
def use_kernel(device_type: str, kernel: Kernel) -> Iterator[None]:
    """A context in which a type of device uses another kernel."""
    before = KERNELS.get(device_type)
    KERNELS[device_type] = kernel
    try:
        yield
    finally:
        if before is None:
            del KERNELS[device_type]
        else:
            KERNELS[device_type] = before


def dynamic(x: Tensor, *dims: int) -> Tensor:
    """x itself, with dimensions marked as dynamic for kernels that are compiled off the host."""
    if not torch.compiler.is_compiling() and not on_host(x):
        torch._dynamo.maybe_mark_dynamic(x, list(dims))
    return x


class CompiledKernel:
    """torch's FlexAttention, compiled by a backend of torch.compile; inside a compiled model it is a part of its graph."""

    def __init__(self, backend: str | Callable[..., Any] = "inductor") -> None:
        self.backend = backend

    @cached_property
    def compiled(self) -> Any:
        """The compiled FlexAttention: without compilation it would compute the full matrix of scores."""
        make: Any = torch.compile  # torch's annotations lack two of its arguments
        return make(_from_lists, fullgraph=True, backend=self.backend, recompile_limit=MOST_KERNELS, isolate_recompiles=True)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            return _attention(q, k, v, block_mask, scale, score_mod, True)
        found: tuple[Tensor, Tensor] = self._run(q, k, v, block_mask, scale, score_mod, True)
        return found

    def output(self, q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float) -> Tensor:
        """Attention without its log-sums."""
        found: Tensor = self._run(q, k, v, block_mask, scale, None, False)
        return found

    def _run(self, q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None, sums: bool) -> Any:
        lists = tuple(getattr(block_mask, name) for name in LISTS)
        for x in (q, k, v):
            dynamic(x, 0, 2)
        for x in lists:
            if x is not None:
                dynamic(x, 0, *range(2, x.dim()))
        with _compiling():
            try:
                return self.compiled(q, k, v, lists, block_mask.BLOCK_SIZE, block_mask.mask_mod, scale, score_mod, sums)
            except Exception as error:
                if not is_refusal(error):
                    raise
                raise KernelRefused(_first_line(error)) from error


compiled = CompiledKernel()


def is_refusal(error: Exception) -> bool:
    """Whether an error says that a kernel cannot be compiled or started, and not that its arguments or results are wrong."""
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

    # Triton's error has no class that can be imported without Triton.
    return isinstance(error, TorchDynamoException | FailOnRecompileLimitHit) or type(error).__name__ in ("OutOfResources", "PTXASError")


def _first_line(error: Exception) -> str:
    """The class of an error, or of the error inside it, and the first line of its text."""
    inner = getattr(error, "inner_exception", error)
    lines = str(inner).strip().splitlines()
    return f"{type(inner).__name__}: {lines[0] if lines else ''}".rstrip(": .")


@contextmanager
def _compiling() -> Iterator[None]:
    """A context in which integers are constants, and both passes are compiled in the first, where a refusal can be handled."""
    static: AbstractContextManager[Any] = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    early: AbstractContextManager[Any] = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
    with static, early, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _from_lists(
    q: Tensor, k: Tensor, v: Tensor, lists: tuple[Tensor | None, ...], size: tuple[int, int], mask_mod: MaskMod, scale: float,
    score_mod: ScoreMod | None, sums: bool,
) -> Any:  # fmt: skip
    from torch.nn.attention.flex_attention import BlockMask

    # The block mask is made here, so that its lengths are the dynamic lengths of q and k, and not integers that would be constants.
    make: Any = BlockMask
    mask = make((q.shape[2], k.shape[2]), *lists, size, mask_mod)
    return _attention(q, k, v, mask, scale, score_mod, sums)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None, sums: bool
) -> Any:  # fmt: skip
    """Attention, and its log-sums if `sums`."""
    from torch.nn.attention.flex_attention import AuxRequest
    from torch.nn.attention.flex_attention import flex_attention as attention

    if not sums:
        return attention(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scale)
    found: Any = attention(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scale, return_aux=AuxRequest(lse=True))
    return found[0], found[1].lse
