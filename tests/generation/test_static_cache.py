"""The static cache of a generation: allocated once, written in place, and equal to the growing one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import formers
from contracts.specimens import CAUSAL, Specimen, built
from formers.core import HiddenMemory, KVCache
from formers.core import cache as caches
from formers.generation import generate
from formers.generation.reader import Reader
from formers.generation.static_cache import reserve
from formers.patterns import Local
from helpers import close, sweep

WRITERS = sweep("specimen", [specimen for specimen in CAUSAL if specimen.spec.image is None and specimen.spec.encoder is None])
SMALL = dict(vocab=11, dim=16, heads=2, layers=2, hidden=24, length=400, dropout=0.0)


def model_of(name: str, **changes: Any) -> formers.Model:
    options = {key: changes.pop(key) for key in ("memory", "span") if key in changes}
    torch.manual_seed(0)
    return formers.build(formers.spec(name, **SMALL, **options).replace(**changes)).double().eval()


MODELS = sweep(("name", "changes"), [("decoder", {}), ("decoder", {"pattern": Local(window=9)}), ("transformer-xl", {"memory": 10})])


@MODELS
@torch.inference_mode()
def test_it_equals_the_growing_cache_and_a_whole_pass(name: str, changes: dict[str, Any]) -> None:
    model, new = model_of(name, **changes), 300  # of a window of 9 it moves many times
    tokens = torch.randint(11, (2, 7 + new)).tolist()
    for rows in ([row[:7] for row in tokens], [tokens[0][:7], tokens[1][4:7]]):
        static, growing = Reader(model, rows, new=new), Reader(model, rows)
        found = []
        for step in range(new):
            found.append(static.logits())
            close(found[-1], growing.logits())
            for reader in (static, growing):
                reader.push([row[7 + step] for row in tokens])
        if len(rows[0]) == len(rows[1]) and name == "decoder":
            close(torch.stack(found, dim=1), model(torch.tensor(tokens)).logits[:, 6:-1])


@MODELS
def test_it_is_allocated_once(name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = model_of(name, **changes), []
    old = caches._Buffer.__init__

    def counted(self: Any, tensors: Any, *rest: Any, **how: Any) -> None:
        sizes.append(tensors[0].shape[-2])
        old(self, tensors, *rest, **how)

    monkeypatch.setattr(caches._Buffer, "__init__", counted)
    generate(model, [[1, 2, 3], [4, 5, 6]], max_new_tokens=250, temperature=0.0)
    kept = {"decoder": 9 if changes else 253, "transformer-xl": 10}[name]
    assert len(sizes) == (4 if name == "transformer-xl" else 2), "hidden states, and their keys and values"
    assert max(sizes) <= min(253, 2 * kept + caches.SLACK)


@WRITERS
@torch.inference_mode()
def test_every_member_decodes_the_same(specimen: Specimen) -> None:
    read = built(specimen.spec, 2, torch.float64)
    if not specimen.spec.head.generates or specimen.spec.vocab is None:
        return
    tokens = torch.randint(specimen.spec.vocab, (2, 20)).tolist()
    static, growing = Reader(read.model, [tokens[0][:5], tokens[1][:3]], new=12), Reader(read.model, [tokens[0][:5], tokens[1][:3]])
    for step in range(12):
        close(static.logits(), growing.logits())
        if step == 6:
            for reader in (static, growing):
                reader.select([1])
        for reader in (static, growing):
            reader.push([row[5 + step] for row in tokens][: len(reader.rows)])


@MODELS
@torch.inference_mode()
def test_states_that_users_hold_do_not_change(name: str, changes: dict[str, Any]) -> None:
    """A state that the model returned is not written to, also by a static cache that was made from it."""
    model = model_of(name, **changes)
    tokens = torch.randint(11, (1, 60))
    held = model(tokens[:, :12], state=model.initial_state(1)).state
    held = model(tokens[:, 12:13], state=held).state
    before = [t.clone() for t in tensors(held)]
    wanted = model(tokens[:, 13:20], state=held).logits
    state = reserve(held, model.spec, 40)
    for i in range(13, 53):
        state = model(tokens[:, i : i + 1], state=state).state
    assert all(a.equal(b) for a, b in zip(before, tensors(held), strict=True))
    close(model(tokens[:, 13:20], state=held).logits, wanted)


def tensors(state: formers.State) -> list[torch.Tensor]:
    """The tensors of a state."""
    found: list[torch.Tensor] = []
    state.map(lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
    return found


@torch.inference_mode()
def test_a_reserved_buffer_is_not_shared() -> None:
    for model in (model_of("decoder"), model_of("transformer-xl", memory=10)):
        state = model(torch.randint(11, (1, 12)), state=model.initial_state(1)).state
        for (old, *_), (new, *_) in zip(state.steps, reserve(state, model.spec, 5).steps, strict=True):
            assert isinstance(new, KVCache | HiddenMemory)
            assert new.buffer is not None
            assert new.buffer is not old.buffer
            assert new.buffer.capacity >= (10 if isinstance(new, HiddenMemory) else 17)
