"""The chunked feed-forward equals the dense one, and stores the hidden activations of one chunk only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import formers
from formers.core import Context, Range, Sizes
from formers.core.chunks import in_chunks
from formers.feedforward import Chunked, Dense
from helpers import Largest, close, gradients, sweep

SIZES = Sizes(dim=8, heads=1, head_dim=8, value_dim=8, length=24, depth_steps=1, dropout=0.0, attention_dropout=0.0)
CHUNK = 4
ACTIVATIONS = ["relu", "gelu", "gelu-tanh", "gelu-sigmoid", "swiglu"]


def pair(activation: str = "gelu", **options: object) -> tuple[nn.Module, nn.Module]:
    """A dense and a chunked module of one seed, in float64."""
    made = []
    for part in (
        Dense(hidden=20, activation=activation, **options),
        Chunked(hidden=20, activation=activation, chunk=CHUNK, **options),
    ):
        torch.manual_seed(3)
        made.append(part.build(SIZES).double())
    return made[0], made[1]


def run(module: nn.Module, x: Tensor) -> Tensor:
    y, left = module(x, Context(Range(0, x.shape[1])), None, 0)
    assert left is None
    return y


@sweep("activation", ACTIVATIONS)
def test_values_and_gradients_of_every_length_are_the_dense_ones(activation: str) -> None:
    dense, chunked = pair(activation)
    assert chunked.chunk == CHUNK
    for name, weight in chunked.state_dict().items():
        assert weight.equal(dense.state_dict()[name]), "one seed, one start"
    for n in range(1, 2 * CHUNK + 2):
        x = torch.randn(3, n, 8, dtype=torch.float64, requires_grad=True)
        wanted, found = run(dense, x), run(chunked, x)
        close(found, wanted, 1e-12)
        with torch.no_grad():
            close(run(chunked, x), wanted.detach(), 1e-12)
        wanted_slopes = gradients(wanted, [x, *dense.parameters()])
        for slope, other in zip(gradients(found, [x, *chunked.parameters()]), wanted_slopes, strict=True):
            close(slope, other)


def test_models_load_each_others_weights(tmp_path) -> None:
    spec = formers.spec("decoder", vocab=11, dim=8, heads=2, layers=2, hidden=20, length=12)
    dense = formers.build(spec)
    chunked = formers.build(spec.replace(feedforward=Chunked(hidden=20, activation="gelu", chunk=CHUNK)))
    tokens = torch.randint(11, (2, 10))
    for one, other in ((dense, chunked), (chunked, dense)):
        with torch.no_grad():
            for weight in one.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        other.load_state_dict(one.state_dict())
        close(other(tokens).logits, one(tokens).logits, 1e-5)
    chunked.save_pretrained(tmp_path)
    assert formers.load(tmp_path).spec == chunked.spec


def test_the_backward_pass_drops_what_the_forward_pass_has_dropped() -> None:
    dense, chunked = pair(dropout=0.4)
    x = torch.randn(2, 11, 8, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(5)
    wanted = torch.cat([run(dense, few) for few in x.split(CHUNK, dim=1)], dim=1)
    torch.manual_seed(5)
    found = run(chunked, x)
    close(found, wanted, 1e-12)
    torch.rand(7)  # whoever draws in between
    for slope, other in zip(gradients(found, [x, *chunked.parameters()]), gradients(wanted, [x, *dense.parameters()]), strict=True):
        close(slope, other)


@sweep("activation", ["gelu", "swiglu"])
def test_hidden_activations_of_a_slice_only_live_at_once(activation: str) -> None:
    n, hidden, chunk = 512, 256, 32
    sizes = Sizes(**{**SIZES.__dict__, "dim": 16})
    peaks = []
    for part in (Dense(hidden=hidden, activation=activation), Chunked(hidden=hidden, activation=activation, chunk=chunk)):
        module, x = part.build(sizes), torch.randn(1, n, 16, requires_grad=True)
        with Largest() as live:
            run(module, x).sum().backward()
        peaks.append(live.peak)
    widest = 2 * hidden if activation == "swiglu" else hidden
    assert live.largest <= 4 * max(chunk * widest, n * 16)
    assert peaks[0] > 4 * n * 2 * hidden
    assert peaks[1] < peaks[0] / 4


def test_rows_without_dropout_leave_the_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    import formers.core.chunks as module

    real = module.checkpoint
    monkeypatch.setattr(module, "checkpoint", lambda *given, **how: kept.append(how["preserve_rng_state"]) or real(*given, **how))
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    for options, training in (({}, True), ({"dropout": 0.1}, True), ({"dropout": 0.1}, False)):
        run(pair(**options)[1].train(training), x)
    assert kept == [False] * 3 + [True] * 3 + [False] * 3
    run(pair()[1], x[:, :CHUNK])  # one slice
    with torch.no_grad():
        run(pair()[1], x)
    assert len(kept) == 9


def test_inside_a_checkpointed_block_and_autocast_too() -> None:
    spec = formers.spec("decoder", vocab=11, dim=16, heads=2, layers=2, hidden=32, length=16)
    found = []
    for part, checkpointing in ((spec.feedforward, False), (Chunked(hidden=32, activation="gelu", dropout=0.0, chunk=3), True)):
        torch.manual_seed(0)
        model = formers.build(spec.replace(feedforward=part))
        model.checkpointing(checkpointing)
        tokens = torch.randint(11, (2, 17), generator=torch.Generator().manual_seed(1))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens[:, :-1], targets=tokens[:, 1:]).loss
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        close(other, one, 2e-2)


def test_compiled_it_is_one_graph_without_checkpoints() -> None:
    torch._dynamo.reset()
    dense, chunked = pair()
    compiled = torch.compile(lambda x: run(chunked, x), fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 10, 8, dtype=torch.float64, requires_grad=True)
    wanted, found = run(dense, x), compiled(x)
    close(found, wanted, 1e-12)
    for slope, other in zip(gradients(found, [x, *chunked.parameters()]), gradients(wanted, [x, *dense.parameters()]), strict=True):
        close(slope, other)


def test_slices_of_several_tensors_are_taken_together() -> None:
    a, b = torch.randn(7, 2, requires_grad=True), torch.arange(7.0)
    found = in_chunks(lambda x, y: x.sum(dim=1) * y, (a, b), 3)
    close(found, a.sum(dim=1) * b)
    close(torch.autograd.grad(found.sum(), a)[0], b[:, None].expand(7, 2))
