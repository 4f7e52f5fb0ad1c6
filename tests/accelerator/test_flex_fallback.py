"""Where torch refuses to compile a kernel, another executor computes the attention, with one notice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import formers
from accelerator.forced import Counting, cpu_gradients, forced, inputs
from formers.attention.executors import flex, flex_kernel
from formers.attention.executors.flex_kernel import CompiledKernel
from formers.attention.lsh import paths
from formers.patterns import Local, Strided
from helpers import close, gradients, refused

N = 64


@pytest.fixture(autouse=True)
def nothing_refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No refusals from other tests, and none left for them."""
    monkeypatch.setattr(flex, "REFUSED", flex_kernel.RefusedKernels())
    with cpu_gradients():
        yield


class Refusing:
    """A backend that compiles nothing."""

    tried = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.tried += 1
        raise RuntimeError("No valid triton configs. OutOfMemoryError: out of resource")


def test_another_executor_computes_it_with_one_notice(caplog: pytest.LogCaptureFixture) -> None:
    backend, pattern = Refusing(), Strided(stride=7)
    with forced(CompiledKernel(backend)), caplog.at_level(logging.WARNING, "formers"):
        for n in (N, N, N + 9, N + 20):
            qkv = inputs(2, n)
            found, wanted = formers.attend(*qkv, pattern), formers.attend(*qkv, pattern, "dense")
            close(found, wanted)
            for one, other in zip(gradients(found, qkv), gradients(wanted, qkv), strict=True):
                close(one, other)
        assert "torch refused to compile its kernel" in formers.explain(*qkv, pattern)
    assert backend.tried == 1, "a refused kernel is tried again"
    notices = [record for record in caplog.records if "FlexAttention" in record.getMessage()]
    assert len(notices) == 1
    assert "No valid triton configs" in notices[0].getMessage()


def test_a_refused_kernel_raises_if_it_is_requested_by_name() -> None:
    qkv = inputs(2, N)
    with forced(CompiledKernel(Refusing())), refused("how='flex'", "torch refused to compile its kernel"):
        formers.attend(*qkv, Strided(stride=7), "flex")


def test_the_limit_of_kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(flex_kernel, "MOST_KERNELS", 2)
    backend, qkv = Counting(), inputs(2, N)
    with forced(CompiledKernel(backend)), caplog.at_level(logging.WARNING, "formers"):
        for window in (3, 5, 7, 9):
            close(formers.attend(*qkv, Local(window=window)), formers.attend(*qkv, Local(window=window), "dense"))
    assert len(backend.graphs) == 2
    assert len([record for record in caplog.records if "FlexAttention" in record.getMessage()]) == 1


def test_other_errors_are_not_hidden() -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("a wrong shape")

    with forced(broken), pytest.raises(ValueError, match="a wrong shape"):
        formers.attend(*inputs(2, N), Strided(stride=5))
    assert not flex_kernel.is_refusal(torch.OutOfMemoryError("the batch is too large"))


def test_lsh_attention_takes_another_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "REFUSED", flex_kernel.RefusedKernels())
    backend = Refusing()
    layer = formers.layers.LSHAttention(32, 2, chunk=16, buckets=8).eval()
    x = torch.randn(2, 400, 32)
    wanted = layer(x)
    with forced(CompiledKernel(backend)), torch.no_grad():
        for _ in range(2):
            close(layer(x), wanted.detach(), 1e-5)
    assert backend.tried == 1, "a refused kernel is tried again"
