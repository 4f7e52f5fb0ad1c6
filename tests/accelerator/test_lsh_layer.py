"""The LSH sublayer on the test device: it equals the CPU's, launches do not depend on the sizes, and nothing waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from accelerator.device import NAME, Counts, use_test_device
from formers.attention import LSH
from formers.attention.lsh import paths
from formers.attention.lsh.layer import LSHAttention
from formers.core import Context, ExplicitPositions, Range, Sizes, Watch
from formers.patterns import Causal, Full
from helpers import close, sweep

SMALL: dict[str, Any] = {"chunk": 8, "buckets": 4}
KINDS = [
    LSH(**SMALL),
    LSH(**SMALL, rounds=3, duplicates=True, itself="always", key_epsilon=0.1),
    LSH(**SMALL, reach="chunk", look_ahead=1),
    LSH(**SMALL, rounds=3, reach="chunk", across_buckets=True),
    LSH(**SMALL, rounds=3, reach="chunk", across_buckets=True, duplicates=True, wrap="rounds"),
    LSH(**SMALL, reach="chunk", across_buckets=True, wrap="rounds"),
    LSH(chunk=8, buckets=(4, 6)),
]
swept = sweep("part", KINDS)


def sublayer(part: LSH, causal: bool = True, heads: int = 2, width: int = 6, dropout: float = 0.0) -> LSHAttention:
    """A sublayer with random weights."""
    sizes = Sizes(
        dim=heads * width, heads=heads, head_dim=width, value_dim=width, length=64, depth_steps=1, dropout=0.0, attention_dropout=dropout
    )
    torch.manual_seed(0)
    made = part.build(sizes, Causal() if causal else Full())
    assert isinstance(made, LSHAttention)
    return made


def step(layer: LSHAttention, x: Tensor, valid: Tensor | None) -> list[Tensor]:
    """The output of real tokens, and the gradients of the input and of the weights."""
    x = x.detach().requires_grad_()
    y = layer(x, Context(Range(0, x.shape[1]), valid, update=5), None, 0)[0]
    y = y if valid is None else y * valid[..., None]
    return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]


@swept
@sweep("causal", [True, False])
@sweep("flex", [True, False])
def test_a_step_equals_that_of_the_cpu(part: LSH, causal: bool, flex: bool) -> None:
    layer = sublayer(part, causal).double()
    for training, n in ((True, 29), (False, 400)):
        layer.train(training)
        x = torch.randn(2, n, 12, dtype=torch.float64)
        valid = torch.arange(n) < torch.tensor([[n], [n - 7]])
        for real in (None, valid) if training else (valid,):
            wanted = step(layer.to("cpu"), x, real)
            with use_test_device(flex=flex) as counts:
                found = step(layer.to(NAME), x.to(NAME), None if real is None else real.to(NAME))
                assert counts.waits == 0, counts
                for one, other in zip(found, wanted, strict=True):
                    close(one.detach().cpu(), other.detach(), 1e-10)
                layer.to("cpu")


def launches(part: LSH, batch: int, heads: int, n: int, dropout: float = 0.0, flex: bool = True) -> Counts:
    """The counts of a training step of the sublayer, forward and backward, without values."""
    with use_test_device(shapes_only=True, flex=flex) as counts:
        layer = sublayer(part, heads=heads, width=16, dropout=dropout).to(NAME)
        x = torch.randn(batch, n, heads * 16, device=NAME, requires_grad=True)
        valid = torch.ones(batch, n, dtype=torch.bool, device=NAME)
        counts.reset()
        layer(x, Context(Range(0, n), valid, update=1), None, 0)[0].sum().backward()
    return counts


LONG = [
    LSH(),
    LSH(reach="chunk", rounds=4),
    LSH(reach="chunk", across_buckets=True),
    LSH(reach="chunk", across_buckets=True, duplicates=True, wrap="rounds"),
]


@sweep("part", LONG)
@sweep("dropout", [0.0, 0.1])
def test_launches_are_few_and_do_not_depend_on_the_sizes(part: LSH, dropout: float) -> None:
    for flex in (True, False):
        if part.reach == "bucket" and not flex:
            continue
        counts = launches(part, 8, 8, 4096, dropout, flex)
        assert counts.launches <= (200 if flex or part.rounds == 2 else 220), counts
        assert counts.waits == 0
        assert counts.copied.total() == 1, "the rotations"
        # Memory is linear: the largest tensor has the keys of each window, or the sorted tokens.
        assert counts.largest <= 8 * 8 * 4096 * part.rounds * (16 if flex else 128)
        few, more = launches(part, 2, 2, 512, dropout, flex), launches(part, 4, 4, 512, dropout, flex)
        assert few.launches == more.launches


@torch.no_grad()
def decoded(layer: LSHAttention, x: Tensor, cuts: list[int], valid: Tensor | None = None) -> Tensor:
    """The output for x (batch, n, dim), given in parts; valid marks the real tokens of the first part."""
    parts, past, start = [], None, 0
    for stop in [*cuts, x.shape[1]]:
        positions: Any = Range(start, stop - start)
        if valid is not None and start:
            ends = valid.sum(dim=1, keepdim=True) + start - cuts[0]
            positions = ExplicitPositions(ends + torch.arange(stop - start, device=x.device), stop)
        context = Context(positions, valid if start == 0 else None, keep=True)
        y, past = layer(x[:, start:stop], context, past, 0)
        parts.append(y)
        start = stop
    return torch.cat(parts, dim=1)


@sweep("part", [p for p in KINDS if p.reach == "bucket"])
@sweep("flex", [True, False])
def test_decoding_does_not_wait_and_equals_one_pass(part: LSH, flex: bool) -> None:
    layer, n = sublayer(part).double().eval(), 45
    x = torch.randn(2, n, 12, dtype=torch.float64)
    valid = torch.arange(20) < torch.tensor([[20], [13]])
    cuts = [20, 37, *range(38, n)]
    whole, ragged = decoded(layer, x, []), decoded(layer, x, cuts, valid)
    with use_test_device(flex=flex) as counts:
        layer.to(NAME)
        there, real = x.to(NAME), valid.to(NAME)
        counts.reset()
        found = [decoded(layer, there, each) for each in ([], [20], cuts, [*range(1, n)])]
        found_ragged = decoded(layer, there, cuts, real)
        assert counts.waits == 0, counts
        assert counts.copied.total() <= 1, "the rotations, once"
        for each in found:
            close(each.cpu(), whole, 1e-10)
        tokens = torch.ones(2, n, 1, dtype=torch.bool)
        tokens[:, :20, 0] = valid
        close(found_ragged.cpu() * tokens, ragged * tokens, 1e-10)


def test_launches_of_a_decoding_step_do_not_depend_on_the_past() -> None:
    made = []
    with use_test_device() as counts, torch.no_grad():
        layer = sublayer(LSH(**SMALL), width=16).to(NAME).eval()
        for batch, n in ((2, 30), (4, 1000)):
            _, past = layer(torch.randn(batch, n, 32, device=NAME), Context(Range(0, n), keep=True), None, 0)
            _, past = layer(torch.randn(batch, 1, 32, device=NAME), Context(Range(n, 1), keep=True), past, 0)
            counts.reset()
            layer(torch.randn(batch, 1, 32, device=NAME), Context(Range(n + 1, 1), keep=True), past, 0)
            made.append(counts.launches)
    assert made[0] == made[1] <= 50


@torch.no_grad()
def test_a_state_of_the_device_continues_on_the_cpu() -> None:
    layer, n = sublayer(LSH(**SMALL)).double().eval(), 320
    x = torch.randn(2, n, 12, dtype=torch.float64)
    whole = decoded(layer, x, [])
    with use_test_device():
        layer.to(NAME)
        _, past = layer(x[:, :10].to(NAME), Context(Range(0, 10), keep=True), None, 0)
        _, past = layer(x[:, 10:310].to(NAME), Context(Range(10, 300), keep=True), past, 0)
        past = past.map(lambda t: t.cpu())
        layer.to("cpu")
    y, _ = layer(x[:, 310:], Context(Range(310, 10), keep=True), past, 0)
    close(y, whole[:, 310:], 1e-10)


def test_explain_names_the_path_of_the_device() -> None:
    x = torch.randn(1, 400, 32)
    for flex, part, name, why in (
        (True, LSH(**SMALL), "flex", "would wait for the device"),
        (False, LSH(**SMALL, reach="chunk"), "chunked", "no kernels on testgpu"),
        (False, LSH(**SMALL), "sdpa", ""),
    ):
        with use_test_device(flex=flex):
            layer, watch = sublayer(part, width=16).to(NAME).eval(), Watch()
            layer(x.to(NAME), Context(Range(0, 400), watch=watch), None, 0)
            found = watch.notes["attention executor"][0]
            assert found.startswith(name)
            assert why in found
            assert [v.name for v in watch.notes["attention executors"][0] if v.runs] == [name]


def test_quadratic_memory_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    paths._warn.cache_clear()
    with use_test_device(flex=False):
        layer = sublayer(LSH(**SMALL)).to(NAME).eval()
        for n in (100, 400, 401):
            layer(torch.randn(1, n, 12, device=NAME), Context(Range(0, n)), None, 0)
    assert [record.getMessage().count("quadratic") for record in caplog.records] == [1]


@sweep("flex", [True, False])
@sweep("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_hashing_in_float32(flex: bool, dtype: torch.dtype) -> None:
    """Buckets under autocast are those of the float32 product of the same queries; outputs are close to float32's."""
    layer, x = sublayer(LSH(**SMALL, reach="chunk"), width=16).eval(), torch.randn(2, 100, 32)
    with use_test_device(flex=flex), torch.no_grad():
        layer.to(NAME)
        q = torch.randn(2, 2, 100, 16).to(dtype).to(NAME)
        context = Context(Range(0, 100))
        wanted = layer.hash(q, layer.draw(context, 0), context)
        with torch.autocast(NAME, dtype=dtype):
            assert layer.hash(q, layer.draw(context, 0), context).cpu().equal(wanted.cpu())
            y = layer(x.to(NAME), context, None, 0)[0]
        assert y.dtype == dtype
        assert y.cpu().isfinite().all()
