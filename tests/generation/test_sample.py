"""Sampling: the distribution, the cache, the sliding window, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch

import formers
from contracts.specimens import CAUSAL, VOCAB
from formers.data import Bytes
from formers.generation.sample import Chooser, answer
from formers.model import Seq2Seq
from helpers import refused

SMALL = {"dim": 16, "heads": 2, "layers": 1}
PROMPTED = [s for s in CAUSAL if s.member != "transformer"]


@pytest.mark.parametrize("specimen", PROMPTED, ids=str)
def test_greedy_generation_equals_recomputing_every_token(specimen):
    model = formers.build(specimen.spec).double().eval()
    prompt = torch.randint(VOCAB, (3, 4))
    written = formers.generate(model, prompt, max_new_tokens=12, temperature=0)
    tokens = prompt
    for _ in range(12):
        tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert written.equal(tokens)


def test_a_seed_gives_the_same_text_and_another_gives_another():
    model = formers.create("decoder", vocab=256, **SMALL)
    first, again, other = (formers.generate(model, "abc", max_new_tokens=40, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.startswith("abc")


def test_every_module_is_left_in_the_mode_it_was_in():
    model = formers.create("decoder", vocab=256, **SMALL).train()
    model.stack.final.eval()
    formers.generate(model, "abc", max_new_tokens=2)
    assert model.training
    assert not model.stack.final.training


def test_what_was_written_can_be_learnt_from():
    model = formers.create("decoder", vocab=VOCAB, **SMALL)
    ids = formers.generate(model, torch.zeros(1, 3, dtype=torch.long), max_new_tokens=5)
    model(ids[:, :-1], targets=ids[:, 1:]).loss.backward()
    assert model.embedding.weight.grad.isfinite().all()


def test_a_temperature_near_0_takes_the_likeliest():
    logits = torch.randn(5, 9)
    assert Chooser(1e-40, seed=0)(logits).equal(logits.argmax(-1))


def test_an_empty_prompt_starts_from_nothing():
    model = formers.create("decoder", vocab=256, **SMALL)
    assert isinstance(formers.generate(model, "", max_new_tokens=5, seed=0), str)
    assert formers.generate(model, "", max_new_tokens=0) == ""


@pytest.mark.parametrize("position", ["sinusoidal", "learned"])
def test_beyond_the_training_length_the_window_slides_and_says_so(position, caplog):
    model = formers.create("decoder", vocab=VOCAB, length=8, position=position, **SMALL)
    with caplog.at_level(logging.WARNING):
        written = formers.generate(model, torch.zeros(2, 3, dtype=torch.long), max_new_tokens=30, seed=0)
    assert written.shape == (2, 33)
    assert sum("slides" in r.message for r in caplog.records) == 1


def test_within_the_training_length_nothing_slides(caplog):
    model = formers.create("decoder", vocab=VOCAB, length=8, **SMALL)
    with caplog.at_level(logging.WARNING):
        formers.generate(model, torch.zeros(1, 3, dtype=torch.long), max_new_tokens=6, seed=0)
    assert not caplog.records


def test_without_positions_there_is_no_limit(caplog):
    model = formers.create("decoder", vocab=VOCAB, length=8, position="none", **SMALL)
    with caplog.at_level(logging.WARNING):
        formers.generate(model, torch.zeros(1, 3, dtype=torch.long), max_new_tokens=20, seed=0)
    assert not caplog.records


def test_probabilities_are_those_of_the_equation():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])
    whole = (logits / 0.5).softmax(-1)
    assert Chooser(0.5).probabilities(logits).allclose(whole)
    top2 = Chooser(0.5, top_k=2).probabilities(logits)
    assert (top2 > 0).tolist() == [[True, True, False, False, False]]
    assert top2.sum() == pytest.approx(1.0)
    assert (Chooser(1.0, top_p=0.7).probabilities(logits) > 0).tolist() == [[True, True, False, False, False]]
    assert (Chooser(1.0, top_p=1e-9).probabilities(logits) > 0).sum() == 1
    assert Chooser(1.0, top_k=99, top_p=1.0).probabilities(logits).allclose(logits.softmax(-1))


def test_samples_follow_the_distribution():
    logits = torch.tensor([1.0, 0.0, -1.0]).expand(20_000, 3)
    drawn = Chooser(1.0, seed=3)(logits)
    share = torch.bincount(drawn, minlength=3) / len(drawn)
    assert share.allclose(logits[0].softmax(-1), atol=0.015)


def test_an_encoder_decoder_writes_rows_of_different_lengths_as_each_alone():
    model = formers.create("transformer", vocab=258, length=32, **SMALL).double().eval()
    model.tokenizer = Bytes(specials=("begin", "end"))
    assert isinstance(model, Seq2Seq)
    sources = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    together = answer(model, sources, max_new_tokens=7)
    assert together == [answer(model, [s], max_new_tokens=7)[0] for s in sources]
    assert formers.generate(model, torch.tensor([sources[0]]), max_new_tokens=7, temperature=0)[0].tolist() == together[0]


@pytest.mark.parametrize(
    ("options", "word"),
    [({"temperature": -0.1}, "temperature=-0.1"), ({"temperature": float("nan")}, "temperature"), ({"top_k": 0}, "top_k=0"),
     ({"top_p": 0.0}, "top_p=0.0"), ({"top_p": 1.1}, "top_p=1.1"), ({"max_new_tokens": -1}, "max_new_tokens=-1")],
)  # fmt: skip
def test_bad_options_are_refused(options, word):
    with refused(word):
        formers.generate(formers.create("decoder", vocab=256, **SMALL), "x", **options)


def test_bad_prompts_are_refused():
    model = formers.create("decoder", vocab=256, length=8, position="learned", **SMALL)
    with refused("9 tokens", "length=8"):
        formers.generate(model, "x" * 9)
    with refused("float32"):
        formers.generate(model, torch.zeros(1, 3))
    with refused("(1, 0)"):
        formers.generate(model, torch.zeros(1, 0, dtype=torch.long))
    with refused("does not write"):
        formers.generate(formers.create("encoder", vocab=257, **SMALL), "x")
    with refused("no tokenizer"):
        formers.generate(formers.create("decoder", vocab=99, **SMALL), "x")
