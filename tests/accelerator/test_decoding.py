"""Generation on the test device: one wait for each token, no copies, and the tokens of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import formers
from accelerator.device import NAME, Counts, use_test_device
from contracts.specimens import MEMBERS as SPECIMENS
from formers.core.content import fixed_weights
from formers.core.devices import Capabilities, assume_capabilities
from formers.data import Characters
from formers.generation import generate, sample_images
from formers.model import Model
from formers.score.span import SpanScore
from helpers import close, refused, sweep

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SMALL = dict(vocab=len(LETTERS) + 2, dim=16, heads=2, hidden=32, length=64, dropout=0.0)
MEMBERS: list[tuple[str, dict[str, Any]]] = [
    ("decoder", dict(layers=4)),
    ("decoder", dict(layers=4, position="learned", norm="post")),
    ("transformer-xl", dict(layers=4, memory=12)),
    ("transformer-xl", dict(layers=2, memory=12, cutoffs=(4, 12), division=2)),
    ("adaptive-span", dict(layers=4, span=40, ramp=8)),
    ("adaptive-span", dict(layers=2, span=40, ramp=8, dynamic=True)),
    ("sparse-transformer", dict(layers=4, stride=8)),
    ("universal-transformer", dict(steps=4)),
    ("transformer", dict(layers=4)),
]
FEW, MANY = 3, 9
"""Two numbers of new tokens; what a token costs is the difference over their difference."""


def made(name: str, **options: Any) -> Model:
    """A model whose next tokens depend much on the last ones, and which never ends a text."""
    torch.manual_seed(5)
    model = formers.build(formers.spec(name, **{**SMALL, **options})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    model.tokenizer = Characters(characters=LETTERS, specials=("begin", "end"))
    return model


@contextmanager
def on_device(model: Model, **device: bool) -> Iterator[tuple[Model, Counts]]:
    """A copy of a model on the test device, and the counts of the device."""
    with use_test_device(**device) as counts:
        there = formers.build(model.spec).eval()
        there.load_state_dict(model.state_dict())
        there.tokenizer = model.tokenizer
        there.to(NAME)
        yield there, counts


def per_token(write: Callable[[int], Any], counts: Counts) -> tuple[float, float]:
    """The waits and copies of each of the later tokens."""
    found = []
    for new in (FEW, MANY):
        counts.reset()
        write(new)
        found.append((counts.waits, counts.copied.total()))
    (a, b), (c, d) = found
    return (c - a) / (MANY - FEW), (d - b) / (MANY - FEW)


@sweep(("name", "options"), MEMBERS)
def test_a_token_waits_once_and_is_that_of_the_cpu(name: str, options: dict[str, Any]) -> None:
    model = made(name, **options)
    for rows in ([[1, 2, 3, 4, 5]] * 2, [[1, 2, 3, 4, 5], [6], [7, 8, 9]]):  # of equal and of different lengths
        for how in (dict(temperature=0.0), dict(seed=3, top_k=20, top_p=0.95, repetition_penalty=1.2)):
            here = generate(model, rows, max_new_tokens=MANY, **how)
            with on_device(model) as (there, counts):
                assert generate(there, rows, max_new_tokens=MANY, **how) == here
                if min(map(len, here)) < MANY:
                    continue  # a text ended: its tokens are not all counted
                waits, copies = per_token(lambda new, how=how, rows=rows: generate(there, rows, max_new_tokens=new, **how), counts)
                assert waits == 1, counts
                assert copies == 0, counts


def test_random_numbers_are_copied_once_for_many_tokens() -> None:
    model = made("decoder", layers=1, position="none")
    with on_device(model) as (there, counts):
        generate(there, [[1, 2, 3]], max_new_tokens=1, seed=0)
        counts.reset()
        generate(there, [[1, 2, 3]], max_new_tokens=60, seed=0)
        assert sum(n for line, n in counts.copied.items() if "choose.py" in line) == 1, counts


@sweep("name", ["decoder", "transformer-xl", "transformer"])
def test_beam_search_waits_once_a_step(name: str) -> None:
    model = made(name, **({"memory": 12} if name == "transformer-xl" else {}), layers=2)
    rows = [[1, 2, 3], [4, 5], [6, 7, 8]]
    here = generate(model, rows, max_new_tokens=MANY, beams=3, samples=2)
    with on_device(model) as (there, counts):
        assert generate(there, rows, max_new_tokens=MANY, beams=3, samples=2) == here
        waits, _ = per_token(lambda new: generate(there, rows, max_new_tokens=new, beams=3), counts)
        assert waits <= 1, counts


@sweep("options", [SPECIMENS["image-transformer"][0], SPECIMENS["image-transformer"][5]])
def test_images_wait_only_at_their_end(options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    model = formers.build(formers.spec("image-transformer", **options)).eval()
    here = sample_images(model, 2, seed=1)
    with on_device(model) as (there, counts):
        found = sample_images(there, 2, seed=1)
        assert counts.waits <= 3, counts
        assert found.images.equal(here.images)
        assert found.nats is not None
        close(found.nats, here.nats, 1e-5)


@sweep("name", ["decoder", "transformer-xl", "adaptive-span", "sparse-transformer", "transformer"])
def test_a_device_without_float64(name: str) -> None:
    model = made(name, layers=2)
    rows = [[1, 2, 3, 4, 5], [6]]
    for how in (dict(temperature=0.0), dict(seed=3, top_p=0.9, min_p=0.01), dict(beams=2)):
        here = generate(model, rows, max_new_tokens=MANY, **how)
        with on_device(model, float64=False) as (there, _):
            assert generate(there, rows, max_new_tokens=MANY, **how) == here


@sweep("how", [dict(temperature=0.0), dict(seed=1), dict(beams=2)])
def test_weights_that_are_not_finite_are_reported(how: dict[str, Any]) -> None:
    model = made("decoder", layers=1)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with on_device(model) as (there, _), refused("not finite"):
        generate(there, [[1, 2, 3]], max_new_tokens=2, **how)


def test_ids_out_of_range_are_refused_before_they_are_copied() -> None:
    model = made("decoder", layers=1)
    with on_device(model) as (there, counts), refused("token id 28 is out of range: with vocab=28 ids are 0 ... 27"):
        counts.reset()
        generate(there, [[1, 28]], max_new_tokens=2)
    assert not counts.copied


def test_spans_are_read_once_while_weights_are_fixed() -> None:
    model = made("adaptive-span", layers=2, span=40, ramp=8)
    spans = [part for part in model.modules() if isinstance(part, SpanScore)]
    read = [part.reaches() for part in spans]
    assert None not in read
    with on_device(model) as (there, counts):
        own = [part for part in there.modules() if isinstance(part, SpanScore)]
        counts.reset()
        assert [part.reaches() for part in own] == [None, None]
        assert [part.reach(0) for part in own] == [41, 41]
        assert counts.waits == 0
        with fixed_weights():
            assert [part.reaches() for part in own] == [part.reaches() for part in own] == read
        assert counts.waits == 2
        with torch.no_grad(), fixed_weights():  # another scope: the weights may have changed
            own[0].share.fill_(1.0)
            assert own[0].reaches() == (41, 41)


def test_dynamic_spans_are_not_read_off_the_host() -> None:
    model = made("adaptive-span", layers=1, span=40, ramp=8, dynamic=True)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        here = model(tokens).logits
        with assume_capabilities("cpu", Capabilities()):
            close(model(tokens).logits, here, 1e-5)
