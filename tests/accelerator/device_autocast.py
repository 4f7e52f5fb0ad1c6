"""Autocast of the test device, with the lists of operations that CUDA has: products in half precision, sums and losses in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

KEY = "AutocastPrivateUse1"
HALF = (
    "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv", "addbmm", "conv1d", "conv2d", "convolution",
    "scaled_dot_product_attention", "prelu",
)  # fmt: skip
FULL = (
    "layer_norm", "native_layer_norm", "exp", "log", "log2", "log10", "log1p", "rsqrt", "reciprocal", "pow.Tensor_Scalar",
    "pow.Tensor_Tensor", "pow.Scalar", "softplus", "nll_loss", "nll_loss_nd", "cross_entropy_loss", "softmax.int", "log_softmax.int",
    "sum", "sum.dim_IntList", "cumsum", "linalg_vector_norm", "norm.ScalarOpt_dim", "norm.Scalar", "prod", "mse_loss", "smooth_l1_loss",
    "binary_cross_entropy_with_logits", "cosine_similarity",
)  # fmt: skip
WIDEST = ("cat", "stack", "addcmul", "addcdiv", "scatter_add", "index_put")


def register(device: str) -> list[Any]:
    """Registers the lists; the libraries, which must be kept."""
    anything = torch.library.Library("_", "IMPL")
    anything.fallback(torch.library.fallthrough_kernel, KEY)
    library = torch.library.Library("aten", "IMPL")
    for names, policy in ((HALF, "half"), (FULL, "full"), (WIDEST, "widest")):
        for name in names:
            library.impl(name, _cast(name, policy, device), KEY)
    return [anything, library]


def _cast(name: str, policy: str, device: str) -> Any:
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def run(*args: Any, **kwargs: Any) -> Any:
        floats = [
            x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        ]
        to = {"half": torch.get_autocast_dtype(device), "full": torch.float32}.get(policy)
        if policy == "widest" and any(x.dtype == torch.float32 for x in floats):
            to = torch.float32

        def converted(x: Any) -> Any:
            casts = to is not None and isinstance(x, Tensor) and x.is_floating_point() and x.dtype not in (torch.float64, to)
            return x.to(to) if casts else x

        with torch._C._ExcludeDispatchKeyGuard(keys):
            return function(*tree_map(converted, args), **tree_map(converted, kwargs))

    return run
