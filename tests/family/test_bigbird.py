"""The member `bigbird`: what its options make, and what it does at every length."""

from __future__ import annotations

import torch

import formers
from formers.heads import Classify, MaskedLM, NoHead
from formers.inspect import explain_facts
from formers.inspect.measure.explain import subject
from formers.patterns import BigBird, Causal, Globals
from helpers import close, refused, sweep

TINY = {"vocab": 11, "dim": 16, "heads": 2, "layers": 2, "hidden": 24, "dropout": 0.0}
BLOCK = 4


def test_what_its_options_make() -> None:
    assert formers.spec("bigbird", **TINY).pattern == BigBird(block=32)
    assert isinstance(formers.spec("bigbird", **TINY).head, MaskedLM)
    assert formers.spec("bigbird", classes=3, pool="first", **TINY).head == Classify(classes=3, pool="first")
    etc = formers.spec("bigbird", extra=5, pattern_seed=3, **TINY)
    assert etc.extra == 5
    assert etc.pattern == Globals(tokens=5) | BigBird(block=32, global_blocks=0, seed=3)
    assert formers.spec("bigbird", extra=5, global_blocks=1, **TINY).pattern.second.global_blocks == 1
    pair = formers.spec("bigbird", decoder_layers=3, **TINY)
    assert (pair.pattern, pair.depth.steps, pair.extra) == (Causal(), 3, 0)
    assert (pair.encoder.pattern, pair.encoder.depth.steps, pair.encoder.head) == (BigBird(block=32), 2, NoHead())


def test_its_presets_are_the_papers() -> None:
    base, etc = (formers.spec("bigbird", preset=name, vocab=100) for name in ("base", "etc"))
    assert base.pattern == BigBird(block=64, window=3, global_blocks=2, random_blocks=3)
    assert etc.pattern == Globals(tokens=256) | BigBird(block=84, window=3, global_blocks=0, random_blocks=0)
    for spec in (base, etc):
        assert (spec.length, spec.depth.steps, spec.dim, spec.heads) == (4096, 12, 768, 12)


def test_what_cannot_work_is_one_sentence() -> None:
    with refused("window=4", "give 3 or 5"):
        formers.spec("bigbird", window=4, **TINY)
    with refused("classes=2", "decoder_layers=1"):
        formers.spec("bigbird", classes=2, decoder_layers=1, **TINY)
    for name in ("block", "window"):
        with refused(name):
            formers.spec("bigbird", **{name: 0}, **TINY)
    for name in ("global_blocks", "random_blocks", "extra"):
        with refused(name):
            formers.spec("bigbird", **{name: -1}, **TINY)


@sweep("wide", [{"window": 99}, {"global_blocks": 99}, {"random_blocks": 99}, {"block": 4096}])
@torch.no_grad()
def test_where_its_blocks_cover_the_row_it_is_the_encoder(wide: dict[str, int]) -> None:
    full, sparse = formers.create("encoder", **TINY).double().eval(), formers.create("bigbird", **wide, **TINY).double().eval()
    sparse.load_state_dict(full.state_dict())
    x, mask = torch.randint(11, (2, 50)), torch.ones(2, 50, dtype=torch.bool)
    mask[1, 20:] = False
    close(sparse(x).logits, full(x).logits)
    close(sparse(x, mask=mask).logits[mask], full(x, mask=mask).logits[mask])


@sweep("extra", [0, 3])
@torch.no_grad()
def test_every_length_beside_a_longer_row(extra: int) -> None:
    model = formers.create("bigbird", block=BLOCK, window=1, random_blocks=1, extra=extra, **TINY).double().eval()
    longest = 6 * BLOCK
    for n in range(1, 2 * BLOCK + 2):
        x = torch.randint(11, (2, longest))
        mask = torch.arange(longest) < torch.tensor([[longest], [n]])
        close(model(x, mask=mask).logits[1, :n], model(x[1:, :n]).logits[0])


def test_long_padded_rows_run_by_pieces_and_say_so() -> None:
    model = formers.create("bigbird", block=16, **TINY).double().eval()
    x, n = torch.randint(11, (2, 1024)), 700
    mask = torch.arange(1024) < torch.tensor([[1024], [n]])
    seen = formers.core.Watch(only="attention executor")
    with torch.no_grad():
        out = model(x, mask=mask, watch=seen)
        close(out.logits[1, :n], model(x[1:, :n]).logits[0])
    assert all(text.startswith("blocked") for text in seen.notes["attention executor"].values())


def test_an_explanation_says_where_it_is_full() -> None:
    facts = explain_facts(subject("bigbird", options={**TINY, "block": 32}), [64, 600])
    allowed = {row["length"]: row["pairs_allowed"] for row in facts["lengths"]}
    assert allowed[64] == 1
    assert allowed[600] < 0.7
    assert formers.spec("bigbird", **TINY).pattern == BigBird(block=32), "the spec is never another at short lengths"
