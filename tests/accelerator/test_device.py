"""The test device itself: it computes what the CPU computes, raises where a GPU raises, and counts what a GPU would do."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import formers
from accelerator.device import NAME, use_test_device
from formers.attention.executors.flex_kernel import flex_attention
from helpers import close, sweep


@sweep("member", ["decoder", "transformer-xl", "rnn", "linformer", "word-window"])
def test_a_step_equals_that_of_the_cpu(member: str) -> None:
    options = {"vocab": 11, "dim": 16, "layers": 2, "dropout": 0.0} | ({"length": 8} if member != "rnn" else {})
    model, tokens = formers.create(member, **options).double(), torch.randint(11, (2, 9))
    targets = tokens[:, 1:] if model.is_causal else tokens[:, :-1]
    model(tokens[:, :-1], targets=targets).loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with use_test_device():
        there = model.to(NAME)
        there(tokens[:, :-1].to(NAME), targets=targets.to(NAME)).loss.backward()
        found = {name: p.grad.cpu() for name, p in there.named_parameters()}
    for name, slope in wanted.items():
        close(found[name], slope)


def test_mixing_devices_raises() -> None:
    with use_test_device():
        here, there = torch.ones(3), torch.ones(3, device=NAME)
        with pytest.raises(RuntimeError, match="of testgpu and of the CPU"):
            here + there
        close((there + torch.tensor(2.0)).cpu(), torch.full((3,), 3.0))  # numbers may be mixed, as on a GPU


@sweep(
    ("read", "what"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool((x > 0).any()), "_local_scalar_dense"),
        (lambda x: x.tolist(), "tolist"),
        (lambda x: x.cpu(), "copy to cpu"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "index by a mask"),
    ],
)
def test_every_read_of_a_value_is_a_wait(read: object, what: str) -> None:
    with use_test_device() as counts:
        x = torch.ones(3, device=NAME)
        counts.reset()
        read(x)  # type: ignore[operator]
        assert counts.waits == 1
        assert what in next(iter(counts.waited))
    with use_test_device(shapes_only=True), pytest.raises(RuntimeError, match="reads a value on the host"):
        read(torch.ones(3, device=NAME))  # type: ignore[operator]


def test_launches_and_copies_are_counted() -> None:
    with use_test_device() as counts:
        x = torch.tensor([1.0, 2.0], device=NAME)
        assert (counts.launches, counts.copied.total()) == (0, 1)
        x.view(2, 1).transpose(0, 1)
        assert counts.launches == 0
        x.mul_(2.0).add(1.0)
        assert counts.launches == 2
        assert counts.waits == 0


def test_a_fused_kernel_is_one_launch_forward_and_two_backward() -> None:
    from torch.nn.attention.flex_attention import BlockMask

    q = torch.randn(2, 3, 128, 16, dtype=torch.float64)
    bias = torch.randn(3, dtype=torch.float64)
    both = []
    with use_test_device() as counts:
        for device in ("cpu", NAME):
            x, term = q.detach().to(device).requires_grad_(), bias.detach().to(device).requires_grad_()
            blocks = torch.ones(1, 1, 1, dtype=torch.int32, device=device), torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
            mask = BlockMask.from_kv_blocks(*blocks, BLOCK_SIZE=128, mask_mod=lambda b, h, i, j: j <= i)
            if device == "cpu":
                out = F.scaled_dot_product_attention(x, x, x, (torch.ones(128, 128).tril() == 1), scale=0.3)
                out = out + 0 * term.sum()
            else:
                counts.reset()
                out, _ = flex_attention(x, x, x, mask, 0.3, lambda s, b, h, i, j, term=term: s + term.detach()[h])
                assert counts.launches == 1
            slopes = torch.autograd.grad(out.sum(), [x])
            if device != "cpu":
                flexed = {what: n for what, n in counts.launched.items() if what.startswith("flex_attention")}
                assert sorted(flexed.values()) == [1, 2]
            both.append([y.cpu() for y in (out.detach(), *slopes)])
    for found, wanted in zip(*both, strict=True):  # a constant per head changes no softmax
        close(found, wanted)


def test_without_float64_it_refuses_it() -> None:
    with use_test_device(float64=False):
        with pytest.raises(TypeError, match="has no float64"):
            torch.ones(2, device=NAME).double()
        with pytest.raises(TypeError, match="has no float64"):
            torch.zeros(2, dtype=torch.float64, device=NAME)


def test_autocast_follows_the_lists_of_cuda() -> None:
    with use_test_device(), torch.autocast(NAME, dtype=torch.bfloat16):
        x = torch.randn(4, 4, device=NAME)
        assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).exp().dtype == torch.float32
        assert F.layer_norm(x @ x, (4,)).dtype == torch.float32


def test_a_custom_operation_is_refused() -> None:
    from formers.attention.executors.blocked import operation
    from formers.patterns.text import pattern_text

    with use_test_device():
        x = torch.randn(1, 1, 8, 4, device=NAME)
        with pytest.raises(RuntimeError, match="hides its launches"):
            operation(x, x, x, None, None, pattern_text(formers.patterns.Causal()), 1.0, 0.0)


def test_it_exists_only_inside_its_context() -> None:
    with use_test_device():
        assert torch.accelerator.is_available()
    assert not torch.accelerator.is_available()


def test_counts_are_the_same_in_inference_mode() -> None:
    found = []
    for inference in (False, True):
        with use_test_device() as counts, torch.inference_mode(inference):
            weight = torch.ones(3, 3).to(NAME)
            view = weight[1:]
            y = torch.nn.functional.linear(view, weight)
            assert y.cpu().sum() == 18
            found.append((counts.launches, counts.waits, counts.copied.total()))
    assert found[0] == found[1] == (1, 1, 1)


def test_a_view_in_inference_mode_of_a_tensor_from_outside_of_it() -> None:
    with use_test_device():
        table = torch.arange(4.0).to(NAME)
        with torch.inference_mode():
            assert not table[1:].is_inference()
            assert table[1:].tolist() == [1.0, 2.0, 3.0]
