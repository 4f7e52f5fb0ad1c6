"""`formers doctor --device`: the self-test passes on a device that computes rightly, and names what does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from accelerator.device import NAME, use_test_device
from accelerator.flex_equation import equation
from formers.attention import EXECUTORS
from formers.attention.attend import only
from formers.attention.executors import sdpa
from formers.attention.executors.flex_kernel import KernelRefused, use_kernel
from formers.core.devices import Capabilities, assume_capabilities, on_host
from formers.inspect.draw.selftest import paste_block
from formers.inspect.measure.doctor import cases, clock, executors, hashing, members, selftest
from formers.inspect.measure.doctor.executors import check_executors
from formers.inspect.measure.doctor.selftest import self_test
from helpers import refused, sweep

PLACE = f"{NAME}:0"


def there() -> torch.device:
    """The test device, which torch knows only once it is in use."""
    return torch.device(PLACE)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A self-test of one executor and one member, in a second or two."""
    short, long = [*cases.short_cases()][:4], [*cases.long_cases()][:2]
    monkeypatch.setattr(executors, "short_cases", lambda: short)
    monkeypatch.setattr(executors, "long_cases", lambda: long)
    monkeypatch.setattr(selftest, "CASES", hashing.CASES[:1])
    monkeypatch.setattr(selftest, "MEMBERS", {"decoder": members.MEMBERS["decoder"]})
    monkeypatch.setattr(selftest, "causal_members", lambda: ["decoder"])


def scale_sdpa(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Multiplies the output of the fused kernel of the test device by a factor."""
    right = sdpa.scaled_dot_product_attention

    def wrong(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return right(q, *args, **kwargs) * (1.0 if on_host(q) else factor)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", wrong)


def test_every_executor_agrees_on_the_test_device() -> None:
    with use_test_device():
        found = check_executors(PLACE, precisions=["float32"])
    for verdict in found:
        assert verdict["status"] in ("works", "refuses"), verdict["wrong"][0]
        assert verdict["refuses"] or verdict["status"] == "works"
    working = {verdict["executor"] for verdict in found if verdict["status"] == "works"}
    assert {"flex", "blocked", "sdpa", "dense", "gather"} <= working


@sweep("precision", ["float32", "bf16", "fp16"])
def test_a_training_step_agrees_on_the_test_device(precision: str) -> None:
    with use_test_device():
        found = members.check_training("decoder", precision, there(), {})
    assert found["status"] == "ok", found["wrong"]
    assert found["largest_difference"] <= members.TRAINING_LIMITS[precision]


def test_a_wrong_kernel_is_found_by_executors_training_and_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_sdpa(monkeypatch, 1.01)
    with use_test_device():
        (verdict,) = check_executors(PLACE, precisions=["float32"], names=["sdpa"])
        trained = members.check_training("decoder", "float32", there(), {})
        streamed = members.check_streaming("decoder", "float32", there())
    assert verdict["status"] == "wrong"
    assert "largest difference" in verdict["wrong"][0]
    assert trained["status"] == "wrong"
    assert "instead of" in trained["wrong"]
    assert streamed["status"] == "wrong"


def test_a_wrong_flex_kernel_is_named() -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, score_mod: Any) -> tuple[Tensor, Tensor]:
        out, lse = equation(q, k, v, block_mask, scale, score_mod)
        return out + 1e-3, lse

    with use_test_device(), use_kernel(NAME, wrong):
        (verdict,) = check_executors(PLACE, precisions=["float32"], names=["flex"])
    assert verdict["status"] == "wrong"
    assert verdict["checked"] == EXECUTORS["flex"].kernels


def test_other_tokens_and_another_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_sdpa(monkeypatch, -1.0)
    with use_test_device():
        found = members.check_generation("decoder", there())
    assert found["status"] == "wrong"
    assert "is another than on the CPU" in found["wrong"]
    monkeypatch.setattr(members, "load", lambda folder, device: members.small_model("decoder").to(device))
    monkeypatch.setattr(members, "SPREAD", 0.1)
    with use_test_device():
        assert members.check_saving("decoder", there())["status"] == "ok"
        monkeypatch.setattr(members, "load", lambda folder, device: members.create("decoder", **members.SIZES, layers=2).to(device))
        assert members.check_saving("decoder", there())["wrong"] == "the weights differ"


@sweep("case", hashing.CASES)
def test_lsh_attention_agrees_on_the_test_device(case: hashing.Hashing) -> None:
    with use_test_device():
        found = hashing.check_hashing(case, "float32", there())
    assert found["status"] == "ok", found["wrong"]


def test_other_buckets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = hashing.LSHAttention.hash

    def shifted(self: Any, q: Tensor, *args: Any) -> Tensor:
        buckets = right(self, q, *args)
        return buckets if on_host(q) else buckets.roll(1, dims=-1)

    monkeypatch.setattr(hashing.LSHAttention, "hash", shifted)
    with use_test_device():
        found = hashing.check_hashing(hashing.CASES[0], "float32", there())
    assert "another bucket than on the CPU" in found["wrong"]


def test_a_device_without_float64_skips_it_and_says_so() -> None:
    with use_test_device(float64=False, flex=False):
        words = selftest.usable_precisions(there())
        found = check_executors(PLACE, precisions=["float64", "float32"], names=["sdpa", "flex"])
    assert words == {"float64": "the device has none", "float32": "works", "bf16": "works", "fp16": "works"}
    assert [verdict["status"] for verdict in found] == ["works", "refuses"]
    assert list(found[0]["largest_difference"]) == ["float32"]


def test_the_report_has_every_check_and_is_ready_for_json(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[tuple[int, int, str]] = []
    with use_test_device() as counts, only("sdpa"):
        facts = self_test(NAME, lambda *step: progress.append(step))
        assert any(place.startswith("synchronize") for place in counts.waited), "times are read after the device has finished"
    assert facts["ok"], facts["wrong"]
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert [step[0] for step in progress] == list(range(progress[0][1]))
    block = paste_block(facts)
    assert block.startswith("```text\nformers doctor --device testgpu:0\n")
    assert block.endswith("\n```")
    assert block.isascii()
    for words in (
        "torch 2.",
        "executor sdpa",
        "training decoder",
        "generating 32 tokens",
        "saving and loading",
        "float64",
        "fp16",
        "result: ok",
    ):
        assert words in block
    assert "WRONG" not in block


def test_the_report_names_what_is_wrong(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_sdpa(monkeypatch, 1.01)
    with use_test_device(), only("sdpa"):
        facts = self_test(NAME)
    assert not facts["ok"]
    block = paste_block(facts)
    assert "result: WRONG in " in block
    wrong = block.partition("\nwrong:\n")[2]
    assert wrong.startswith("  sdpa: ")
    assert "training decoder, float32: losses " in wrong
    assert wrong.count("  sdpa: ") == 1, "one line for many cases of an executor"


def test_an_exception_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*request: object) -> Tensor:
        raise RuntimeError("no kernel image is available.\nCUDA error")

    monkeypatch.setitem(EXECUTORS, "sdpa", EXECUTORS["sdpa"]._replace(run=fail))
    with use_test_device():
        (verdict,) = check_executors(PLACE, precisions=["float32"], names=["sdpa"])
        found = members.check_training("decoder", "float32", there(), {})
    assert verdict["wrong"][0].endswith("RuntimeError: no kernel image is available")
    assert found["wrong"] == "RuntimeError: no kernel image is available"


def test_an_absent_device_is_refused() -> None:
    with refused("device='cuda' is not available"):
        self_test("cuda")


def test_tf32_is_off_while_checking_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    run = EXECUTORS["sdpa"].run

    def watched(q: Tensor, k: Tensor, v: Tensor, request: Any) -> Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return run(q, k, v, request)

    monkeypatch.setitem(EXECUTORS, "sdpa", EXECUTORS["sdpa"]._replace(run=watched))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with assume_capabilities("cpu", Capabilities(host=True, tf32=True)):
            check_executors("cpu", precisions=["float32"], names=["sdpa"])
        assert set(seen) == {"highest"}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_kernel_that_torch_refuses_is_a_refusal() -> None:
    def refusing(*arguments: object) -> tuple[Tensor, Tensor]:
        raise KernelRefused("out of resources")

    with use_test_device(), use_kernel(NAME, refusing):
        (verdict,) = check_executors(PLACE, precisions=["float32"], names=["flex"])
    assert verdict["status"] == "refuses"
    assert any("out of resources" in why for why in verdict["refuses"])


def test_the_first_run_is_timed_on_its_own() -> None:
    ran: list[int] = []
    times = clock.timed(lambda: ran.append(len(ran)), torch.device("cpu"), 3)
    assert ran == [0, 1, 2, 3]
    assert times.first >= 0


@pytest.mark.slow
@sweep("capabilities", [{}, {"float64": False, "flex": False}])
def test_the_whole_self_test_passes_on_the_test_device(capabilities: dict[str, bool]) -> None:
    with use_test_device(**capabilities):
        facts = self_test(NAME)
    assert facts["ok"], paste_block(facts)
    assert facts["precisions"]["float64"] == ("works" if not capabilities else "the device has none")


@pytest.mark.slow
def test_the_whole_self_test_passes_on_the_cpu() -> None:
    facts = self_test("cpu")
    assert facts["ok"], paste_block(facts)
    assert facts["precisions"]["fp16"] == "training on a CPU does not use it"
