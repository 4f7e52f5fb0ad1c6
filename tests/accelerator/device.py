"""The test device: an accelerator that exists in tests only, to find errors that no test on a CPU finds.

Its tensors report another device, `testgpu:0`, and hold CPU tensors. As on a GPU, an operation that mixes them with CPU tensors raises.
Every operation is counted as a kernel launch, every read of a value by the host as a wait, and every copy from the host as a copy, by
source line. A FlexAttention call is one launch forward and two backward. Variants: without float64, as on MPS, and with shapes only
(tensors without values, which need no memory; reading one raises). The latter have the index 1, since tables are cached by device.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from accelerator import flex_equation
from formers.attention.executors.flex_kernel import ScoreMod, use_kernel
from formers.core.devices import Capabilities, assume_capabilities

NAME = "testgpu"
WAITS = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::nonzero",
    "aten::masked_select",
    "aten::is_nonzero",
    "aten::equal",
    "aten::unique",
}
INDEXING = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_unsafe_index",
    "aten::_index_put_impl_",
    "aten::_unsafe_index_put",
}
COPIES = {"aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::_copy_from_and_resize"}
FREE = {
    "aten::detach", "aten::alias", "aten::lift", "aten::lift_fresh", "aten::empty", "aten::empty_like", "aten::new_empty",
    "aten::empty_strided", "aten::new_empty_strided", "aten::_unsafe_view", "aten::_reshape_alias", "aten::unbind", "aten::sym_size",
    "aten::split", "aten::split_with_sizes", "aten::chunk", "aten::view_as", "aten::resize_", "aten::set_", "prim::device",
}  # fmt: skip
"""Operations that launch nothing; views, which the schema shows, do not either."""


FUSED = {
    torch._C._nn.scaled_dot_product_attention, torch.lstm, torch.gru, torch.rnn_tanh, torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell,
}  # fmt: skip
"""Functions that a GPU computes by one kernel each, or two in the backward pass."""


class Counts:
    """Launches, waits and copies, by source line of the library."""

    def __init__(self) -> None:
        self.launched: Counter[str] = Counter()
        self.waited: Counter[str] = Counter()
        self.copied: Counter[str] = Counter()
        self.large: Counter[tuple[int, ...]] = Counter()
        self.largest = 0
        """The number of elements of the largest tensor that an operation made."""

    @property
    def launches(self) -> int:
        """The number of kernel launches."""
        return self.launched.total()

    @property
    def waits(self) -> int:
        """The number of host reads."""
        return self.waited.total()

    def reset(self) -> None:
        """Sets all counts to 0."""
        self.__init__()  # type: ignore[misc]

    def __str__(self) -> str:
        lines = [f"{self.launches} launches, {self.waits} waits, {self.copied.total()} copies"]
        lines += [f"  wait {n} x {where}" for where, n in self.waited.most_common(10)]
        lines += [f"  copy {n} x {where}" for where, n in self.copied.most_common(10)]
        lines += [f"  launch {n} x {where}" for where, n in self.launched.most_common(10)]
        return "\n".join(lines)


class _Device:
    """The settings of the device, and its counts."""

    on = False
    counts = Counts()
    float64 = True
    shapes_only = False
    large = sys.maxsize
    uncounted = 0


DEVICE = _Device()


class _Module(_DummyBackendModule):
    """The module torch.testgpu, with the functions that torch calls."""

    def is_available(self) -> bool:
        return DEVICE.on

    def device_count(self) -> int:
        return 2 * DEVICE.on

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def manual_seed(self, seed: int) -> None:
        """Nothing: random numbers are drawn by the CPU's generator."""

    def device(self, index: Any) -> Any:
        return nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def synchronize(self, device: Any = None) -> None:
        DEVICE.counts.waited[f"synchronize {_place()}"] += 1


class DeviceTensor(torch.Tensor):
    """A tensor of the test device; `held` is the CPU or meta tensor that it holds."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=f"{NAME}:{int(DEVICE.shapes_only)}",
        )
        made.held = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.held})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FUSED and not DEVICE.uncounted:
            return _fused(func, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        _waited("tolist")
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:  # type: ignore[override]
        raise TypeError(f"a tensor of {NAME} cannot become a numpy array: copy it to the CPU first.")

    def __deepcopy__(self, memo: Any) -> DeviceTensor:
        copy = DeviceTensor(self.held.clone())
        return (
            torch.nn.Parameter(copy, self.requires_grad)
            if isinstance(self, torch.nn.Parameter)
            else copy.requires_grad_(self.requires_grad)
        )  # type: ignore[return-value]


class _Mode(TorchDispatchMode):
    """Sees operations that make tensors from numbers, which have no tensor of the device among their arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled():  # there operations such as `to` arrive whole, and are counted by what they consist of
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation on the tensors inside, and counts it."""
    name = func._schema.name
    flat, _ = tree_flatten((args, kwargs))
    ours = [x for x in flat if isinstance(x, DeviceTensor)]
    others = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, DeviceTensor)]
    to = kwargs.get("device")
    to = None if to is None else torch.device(to).type
    if not ours and to != NAME:
        return func(*args, **kwargs)
    if ours and name not in COPIES and any(x.dim() > 0 for x in others):
        if name not in INDEXING or any(x.dim() > 0 and x.is_floating_point() for x in others):
            shapes = [tuple(x.shape) for x in others]
            raise RuntimeError(f"{name} got tensors of {NAME} and of the CPU, of shapes {shapes}, at {_place()}")
        _count(DEVICE.counts.copied, "index from the host")
    if ours and name.startswith("formers::"):
        raise RuntimeError(f"{name} got tensors of {NAME}, at {_place()}: a custom operation hides its launches.")
    if name == "aten::_to_copy" and to not in (None, NAME):
        _waited(f"copy to {to}")
    elif ours:
        _count_waits(name, args)
    out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    here = to in (None, NAME)
    if name == "aten::_to_copy" and not ours:
        _count(DEVICE.counts.copied, "copy from the host")
        return tree_map(_wrap, out)
    if name == "aten::copy_":
        if not isinstance(args[0], DeviceTensor):
            _waited("copy to the host")
        elif not isinstance(args[1], DeviceTensor):
            _count(DEVICE.counts.copied, "copy from the host")
    if here and name not in FREE and not _is_view(func):
        _count(DEVICE.counts.launched, name)
    if func._schema.is_mutable:
        written = _written(func, args, kwargs)
        if func._schema.returns and all(r.alias_info is not None for r in func._schema.returns):
            return written[0] if len(func._schema.returns) == 1 else tuple(written[: len(func._schema.returns)])
    if not here:
        return out
    # A view of a tensor from outside of inference mode is no inference tensor either.
    normal = _is_view(func) and torch.is_inference_mode_enabled() and not any(x.is_inference() for x in ours)
    with torch.inference_mode(False) if normal else nullcontext():
        return tree_map(_wrap, out)


def _inner(x: Any) -> Any:
    if isinstance(x, DeviceTensor):
        return x.held
    if isinstance(x, torch.device) and x.type == NAME:
        return torch.device("meta" if DEVICE.shapes_only else "cpu")
    if DEVICE.shapes_only and isinstance(x, Tensor) and x.dim() > 0:
        return x.to("meta")  # an index from the host
    return x


def _wrap(x: Any) -> Any:
    if not isinstance(x, Tensor) or isinstance(x, DeviceTensor):
        return x
    if not DEVICE.float64 and x.dtype == torch.float64:
        raise TypeError(f"{NAME} has no float64, at {_place()}")
    if not DEVICE.uncounted:
        DEVICE.counts.largest = max(DEVICE.counts.largest, x.untyped_storage().nbytes() // x.element_size() if x.numel() else 0)
        if x.numel() >= DEVICE.large and x._base is None:
            DEVICE.counts.large[tuple(x.shape)] += 1
    if DEVICE.shapes_only and x.device.type != "meta":
        x = x.to("meta")
    return DeviceTensor(x)


def _count_waits(name: str, args: Any) -> None:
    if name in WAITS:
        _waited(name)
    elif name in INDEXING and isinstance(args[1], (list, tuple)):
        if any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
            _waited(f"{name} by a mask")
    elif name in ("aten::repeat_interleave", "aten::bincount", "aten::_unique2"):
        _waited(name)


def _waited(what: str) -> None:
    if DEVICE.shapes_only:
        raise RuntimeError(f"{what} reads a value on the host, at {_place()}")
    _count(DEVICE.counts.waited, what)


def _count(counter: Counter[str], what: str) -> None:
    if not DEVICE.uncounted:
        counter[f"{what} {_place()}"] += 1


def _place() -> str:
    """The innermost line of the library that is running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/formers/" in file and "/tests/" not in file:
            return f"{file.rpartition('/formers/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside of the library"


def _is_view(func: Any) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operation writes to."""
    found = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(kwargs[argument.name] if argument.name in kwargs else args[i])
    return found


@contextmanager
def uncounted() -> Iterator[None]:
    """A context in which nothing is counted: the inside of a kernel."""
    DEVICE.uncounted += 1
    try:
        yield
    finally:
        DEVICE.uncounted -= 1


class _Kernel(torch.autograd.Function):
    """A function of tensors as one launch forward and two backward; the backward pass computes it again."""

    @staticmethod
    def forward(ctx: Any, name: str, compute: Callable[..., Any], inside: bool, count: int, *tensors: Tensor) -> Any:
        """compute(tensors[:count]), of the CPU tensors inside if `inside`; the other tensors are captured by `compute` itself."""
        ctx.name, ctx.compute, ctx.inside, ctx.count, ctx.tensors = name, compute, inside, count, tensors
        ctx.draws = torch.get_rng_state()
        _count(DEVICE.counts.launched, name)
        with uncounted():
            out = compute(*(_inner(x) if inside else x for x in tensors[:count]))
            return tree_map(lambda x: _wrap(x) if inside else x.detach(), out)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        for _ in range(2):
            _count(DEVICE.counts.launched, f"{ctx.name} backward")
        now = torch.get_rng_state()
        captured, change = ctx.tensors[ctx.count :], _inner if ctx.inside else _same
        # Autocast does not apply inside a kernel; it is on if a reversible stack recomputes forward passes here.
        with uncounted(), torch.enable_grad(), torch.autocast(NAME, enabled=False):
            torch.set_rng_state(ctx.draws)
            own = [change(x).detach().requires_grad_(x.is_floating_point()) for x in ctx.tensors[: ctx.count]]
            found, _ = tree_flatten(ctx.compute(*own))
            wanted = [x for x in (*own, *captured) if x.requires_grad]
            pairs = [(x, change(slope)) for x, slope in zip(found, slopes, strict=True) if x.requires_grad]
            made = iter(torch.autograd.grad([x for x, _ in pairs], wanted, [slope for _, slope in pairs], allow_unused=True))
            torch.set_rng_state(now)
            return None, None, None, None, *(_wrap(next(made)) if x.requires_grad else None for x in (*own, *captured))


def _same(x: Tensor) -> Tensor:
    return x


def _fused(func: Any, args: Any, kwargs: Any) -> Any:
    """A fused function of torch, as one launch."""
    if torch.is_autocast_enabled(NAME):
        half = torch.get_autocast_dtype(NAME)
        args = tree_map(lambda x: x.to(half) if isinstance(x, Tensor) and x.dtype == torch.float32 else x, args)
    flat, form = tree_flatten((args, kwargs))
    places = [i for i, x in enumerate(flat) if isinstance(x, DeviceTensor)]

    def compute(*tensors: Tensor) -> Any:
        inputs = list(flat)
        for i, x in zip(places, tensors, strict=True):
            inputs[i] = x
        all_args, all_kwargs = tree_unflatten(inputs, form)
        return func(*tree_map(_inner, all_args), **tree_map(_inner, all_kwargs))

    return _Kernel.apply(func.__name__, compute, True, len(places), *(flat[i] for i in places))  # type: ignore[no-untyped-call]


def _flex(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: ScoreMod | None) -> tuple[Tensor, Tensor]:
    """FlexAttention by its equation; gradients also flow to the tensors that the score function captures."""
    cells = () if score_mod is None else getattr(score_mod, "__closure__", None) or ()
    captured = [c.cell_contents for c in cells if isinstance(c.cell_contents, Tensor) and c.cell_contents.requires_grad]

    def compute(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return flex_equation.equation(q, k, v, block_mask, scale, score_mod)

    found: tuple[Tensor, Tensor] = _Kernel.apply("flex_attention", compute, False, 3, q, k, v, *captured)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def use_test_device(float64: bool = True, flex: bool = True, shapes_only: bool = False, large: int = sys.maxsize) -> Iterator[Counts]:
    """A context in which the device `testgpu` exists; yields its counts, which begin at 0.

    float64, flex: its capabilities. shapes_only: tensors have no values. large: tensors of so many elements are recorded by shape.
    """
    _register()
    DEVICE.on, DEVICE.float64, DEVICE.shapes_only, DEVICE.large, DEVICE.counts = True, float64, shapes_only, large, Counts()
    try:
        known = assume_capabilities(NAME, Capabilities(flex=flex, float64=float64))
        # One thread: autograd starts its threads at the first backward pass of the process, perhaps before the device was registered.
        with known, use_kernel(NAME, _flex), torch.autograd.set_multithreading_enabled(False), _Mode():
            yield DEVICE.counts
    finally:
        DEVICE.on = False


_LIBRARIES: list[Any] = []


def _register() -> None:
    """Registers the device with torch, once."""
    if _LIBRARIES:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("_copy_from", _copy_from, "PrivateUse1")
    _LIBRARIES.append(library)
    from accelerator import device_autocast

    _LIBRARIES.extend(device_autocast.register(NAME))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Tensor:
    made: Tensor = _wrap(torch.empty_strided(size, stride, dtype=dtype, device="meta" if DEVICE.shapes_only else "cpu"))
    return made


def _empty(
    size: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None, memory_format: Any = None
) -> Tensor:
    made: Tensor = _wrap(torch.empty(size, dtype=dtype, device="meta" if DEVICE.shapes_only else "cpu"))
    return made


def _copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    _inner(to).copy_(_inner(source))
    if isinstance(to, DeviceTensor) and not isinstance(source, DeviceTensor):
        _count(DEVICE.counts.copied, "copy from the host")
    if isinstance(source, DeviceTensor) and not isinstance(to, DeviceTensor):
        _waited("copy to the host")
    return to
