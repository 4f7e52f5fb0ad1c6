"""A memory is hidden states in every mode: training after a pass without gradients, old weights, files, zeros."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import formers
from formers import Model, State
from formers.core import HiddenMemory, KVCache
from formers.core.content import fixed_weights
from formers.core.serialise import pack, unpack
from formers.memory import Recurrence
from formers.patterns import Causal, Fixed, Local
from helpers import close, gradients, refused

MEMBERS: dict[str, dict[str, Any]] = {
    "pre": dict(norm="pre"),
    "post": dict(norm="post"),
    "same length": dict(norm="pre", same_length=True),
    "reversible": dict(norm="reversible"),
}


def model_of(memory: int = 6, **options: Any) -> Model:
    torch.manual_seed(3)
    sizes = dict(vocab=11, dim=12, heads=2, layers=2, hidden=16, length=5, dropout=0.0)
    return formers.create("transformer-xl", **{**sizes, "memory": memory, **options}).double()


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(length))


def read(model: Model, x: Tensor, state: State | None, mode: Callable[[], Any]) -> State:
    with mode():
        state = model(x, state=model.initial_state(len(x)) if state is None else state).state
    assert state is not None
    return state


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("options", MEMBERS.values(), ids=MEMBERS)
def test_training_over_a_memory_does_not_depend_on_how_it_was_read(options: dict[str, Any], mode: Callable[[], Any]) -> None:
    """The gradients of all weights, those of keys and values among them: they were 8.7e-2 off where a memory was read without gradients."""
    model = model_of(**options)
    x, parameters = tokens(13), list(model.parameters())
    found = []
    for way in (torch.enable_grad, mode):
        state = read(model, x[:, :4], None, way)
        state = read(model, x[:, 4:7], state, way)  # shorter than the memory
        out = model(x[:, 7:12], state=state, targets=x[:, 8:])
        found.append((out.logits, gradients(out.loss, parameters), out.state))
    (logits, wanted, after), (same, slopes, then) = found
    close(same, logits)
    for one, other in zip(slopes, wanted, strict=True):
        close(one, other)
    for mine, theirs in zip(then.steps, after.steps, strict=True):
        assert isinstance(mine[0], HiddenMemory)
        close(mine[0].states, theirs[0].states)


def change(model: Model, how: str) -> None:
    """Changes the weights in a way that version counters may miss."""
    torch.manual_seed(5)
    weights = list(model.parameters())
    if how == "fused":
        for p in weights:
            p.grad = torch.randn_like(p)
        torch.optim.AdamW(weights, lr=0.05, fused=True).step()
    elif how == "data":
        for p in weights:
            p.data.mul_(1.3)
    elif how == "lerp":
        torch._foreach_lerp_([p.data for p in weights], [torch.randn_like(p) for p in weights], 0.2)
    elif how == "load_state_dict":
        model.load_state_dict({name: 0.7 * value for name, value in model.state_dict().items()})
    elif how == "replaced":
        for module in list(model.modules()):
            for name, p in list(module._parameters.items()):
                if p is not None:
                    setattr(module, name, nn.Parameter(0.8 * p.detach()))
    else:
        for p in weights:
            nn.Parameter.data.__set__(p, -p.detach())


HOW = ["fused", "data", "lerp", "load_state_dict", "replaced", "negated"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("member", ["transformer-xl", "adaptive-span"])
@torch.no_grad()
def test_old_weights_are_never_read_again(member: str, how: str) -> None:
    """In evaluation mode, without a change of mode between: tables by distance and the keys of a memory follow the weights."""
    torch.manual_seed(3)
    sizes = dict(vocab=11, dim=12, heads=2, layers=2, hidden=16, length=5, dropout=0.0)
    own = dict(memory=6) if member == "transformer-xl" else dict(span=6, ramp=3)
    model = formers.create(member, **sizes, **own).double().eval()
    x = tokens(12)
    state = read(model, x[:, :3], None, torch.no_grad)
    state = read(model, x[:, 3:5], state, torch.no_grad)  # which appends in a buffer
    state = read(model, x[:, 5:7], state, torch.no_grad)
    before = model(x[:, 7:], state=state).logits
    memory = [step[0].states.clone() for step in state.steps]
    change(model, how)
    after = model(x[:, 7:], state=state).logits
    fresh = formers.build(model.spec).double().eval()
    fresh.load_state_dict(model.state_dict())
    steps = tuple((replace(step[0], states=m, cached_kv=None), *step[1:]) for step, m in zip(state.steps, memory, strict=True))
    wanted = fresh(x[:, 7:], state=replace(state, steps=steps)).logits
    close(after, wanted)
    assert (after - before).abs().max() > 1e-3, "the weights did change"


@torch.no_grad()
def test_keys_are_used_again_while_weights_stay_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of().eval(), tokens(9)
    state = read(model, x[:, :8], None, torch.no_grad)
    entered: list[int] = []
    plain = HiddenMemory.append
    monkeypatch.setattr(HiddenMemory, "append", lambda self, states, positions: entered.append(1) or plain(self, states, positions))
    for inside in (False, True):
        entered.clear()
        with fixed_weights() if inside else torch.no_grad():
            once = model(x[:, 8:], state=state).state
            assert once is not None
            count = len(entered)
            model(x[:, 8:], state=once)
        # Each layer appends to the hidden states; one that computes keys from them appends once more to do so.
        assert len(entered) - count == model.spec.depth.steps
    next(model.parameters()).data.add_(0.0)
    model.stack.depth.blocks[0].attention.qkv.weight.data[0, 0] += 1e-9
    entered.clear()
    model(x[:, 8:], state=state)
    assert len(entered) == model.spec.depth.steps + 1, "one layer has other weights"


@torch.no_grad()
def test_torch_func_and_vmap_read_the_weights_that_they_are_given() -> None:
    x = tokens(6)
    for model in (model_of(), formers.create("adaptive-span", vocab=11, dim=12, heads=2, layers=2, length=5, span=6, ramp=3).double()):
        check_torch_func(model.eval(), x)


def check_torch_func(model: Model, x: Tensor) -> None:
    """Weights that are given to a call are those that it computes with, and the model's own stay what they are."""
    plain = model(x).logits
    other = {name: 0.5 * value for name, value in model.named_parameters()}
    halved = torch.func.functional_call(model, other, (x,)).logits
    fresh = formers.build(model.spec).double().eval()
    fresh.load_state_dict({**model.state_dict(), **other})
    close(halved, fresh(x).logits)
    close(model(x).logits, plain)
    both = {name: torch.stack([value, other[name]]) for name, value in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its attention kernel is slow under vmap
        mapped = torch.vmap(lambda weights: torch.func.functional_call(model, weights, (x,)).logits)(both)
    close(mapped, torch.stack([plain, halved]))


def test_an_adapter_around_the_projection_sees_the_memory_in_both_modes() -> None:
    """A wrapper that replaces a Linear is applied to the memory as to the segment; its switch changes no weight."""

    class Adapter(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner, self.weight, self.bias, self.on = inner, inner.weight, inner.bias, True
            self.more = nn.Parameter(torch.randn_like(inner.weight) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + (x @ self.more.T if self.on else 0.0)

    model, x = model_of().eval(), tokens(12)
    for block in model.stack.depth.blocks:
        block.attention.qkv = Adapter(block.attention.qkv)
    segments = [x[:, :4], x[:, 4:8], x[:, 8:]]

    def logits(mode: Callable[[], Any]) -> Tensor:
        state, found = model.initial_state(2), []
        with mode():
            for segment in segments:
                out = model(segment, state=state)
                state = out.state
                found.append(out.logits.detach())
        return torch.cat(found, dim=1)

    close(logits(torch.no_grad), logits(torch.enable_grad))
    state = read(model, x[:, :8], None, torch.no_grad)
    for block in model.stack.depth.blocks:
        block.attention.qkv.on = False
    with torch.no_grad():
        off = model(x[:, 8:], state=state).logits
        close(off, model(x[:, 8:], state=unpacked(state)).logits)


def unpacked(state: State) -> State:
    """The state after the way through a file."""
    tensors: dict[str, Tensor] = {}
    packed = pack(state, tensors)
    return unpack(packed, tensors)


@torch.no_grad()
def test_a_state_of_an_earlier_version_continues() -> None:
    """It held keys and values alone where it was made without gradients, and did not say what shaped it."""
    model, x = model_of(memory=6).eval(), tokens(16)
    state = read(model, x[:, :6], None, torch.no_grad)
    old = replace(state, shape=None, steps=tuple((step[0].cached_kv[1], *step[1:]) for step in state.steps))
    assert all(isinstance(step[0], KVCache) for step in unpacked(old).steps)
    packed = pack(old, tensors := {})
    for name in ("shape", "origin"):
        del packed[name]
    old = unpack(packed, tensors)
    for end in (8, 9, 16):  # the last one fills the memory alone
        new = model(x[:, end - 2 : end] if end < 16 else x[:, 9:16], state=state)
        then = model(x[:, end - 2 : end] if end < 16 else x[:, 9:16], state=old)
        close(then.logits, new.logits)
        state, old = new.state, then.state
    assert all(isinstance(step[0], HiddenMemory) for step in old.steps)


def test_a_memory_of_zeros_is_attended_to() -> None:
    """As in the authors' code: keys of zeros, at the distances before the first token, also behind a reset, in files and in every mode."""
    model, x = model_of(memory=4, norm="post"), tokens(12, batch=3)
    zeros = formers.build(model.spec.replace(memory=Recurrence(length=4, start="zeros"))).double()
    zeros.load_state_dict(model.state_dict())
    first = zeros.initial_state(3)
    # The same by hand: a memory that holds zeros, given to the model whose memory begins empty.
    blank = tuple((HiddenMemory(torch.zeros(3, 4, 12).double(), formers.core.Range(0, 4)), None) for _ in range(2))
    hand = replace(model.initial_state(3), steps=blank, next=4, bound=4)
    parameters = [list(m.parameters()) for m in (model, zeros)]
    wanted, found = (m(x[:, :5], state=s, targets=x[:, 1:6]) for m, s in ((model, hand), (zeros, first)))
    close(found.logits, wanted.logits)
    for one, other in zip(gradients(found.loss, parameters[1]), gradients(wanted.loss, parameters[0]), strict=True):
        close(one, other)
    close(zeros(x[:, :5]).logits, wanted.logits)
    assert (model(x[:, :5]).logits - wanted.logits).abs().max() > 1e-3, "zeros do count"
    done = torch.tensor([False, True, False])
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            start = zeros(x[:, :5], state=zeros.initial_state(3)).state
            again = zeros(x[:, 5:8], state=unpacked(start.reset(done)))
            close(again.logits[1], zeros(x[1:2, 5:8]).logits[0])
            close(again.logits[0], zeros(x[:, 5:8], state=start).logits[0])
            last = zeros(x[:, 8:], state=again.state).logits[1]
            alone = zeros(x[1:2, 5:8], state=zeros.initial_state(1)).state
            close(last, zeros(x[1:2, 8:], state=alone).logits[0])
    mask = torch.tensor([[True, True, True, False], [False, False, False, False], [False, True, False, True]])
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            padded = zeros(x[:, :4], mask=mask, state=zeros.initial_state(3))
            after = zeros(x[:, 4:7], state=padded.state).logits
            for row in range(3):
                real = x[row, :4][mask[row]]
                state = zeros(real[None], state=zeros.initial_state(1)).state if len(real) else zeros.initial_state(1)
                close(after[row], zeros(x[row : row + 1, 4:7], state=state).logits[0])
    for pattern in (Causal(), Local(window=3)):
        formers.build(zeros.spec.replace(pattern=pattern))
    with refused("start=zeros", "Fixed", "start=empty"):
        formers.build(zeros.spec.replace(pattern=Fixed(stride=4, summary=4)))
