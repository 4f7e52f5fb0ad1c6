"""Beam search: greedy at width 1, exact at the width of everything, and a naive search's equal in between."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

import formers
from contracts.specimens import CAUSAL, Specimen, subject
from formers.data import Characters
from formers.generation import Options, texts
from helpers import refused, sweep

LETTERS = "abc"
SPECIALS = ("begin", "end")
SMALL = {"dim": 8, "heads": 2, "layers": 1, "dropout": 0.0}
WRITERS = [s for s in CAUSAL if s.spec.head.generates and s.spec.image is None]


def writer(member: str, seed: int) -> formers.Model:
    """A model of three letters, a beginning and an end, whose next tokens depend much on the last ones."""
    torch.manual_seed(seed)
    model = formers.create(member, vocab=5, length=32, **SMALL).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.7)
    model.tokenizer = Characters(characters=LETTERS, specials=SPECIALS)
    return model


def chance(model: formers.Model, prompt: list[int], ids: tuple[int, ...]) -> float:
    """log P of ids behind a prompt."""
    return _chance(model, tuple(prompt), ids)


@cache
@torch.no_grad()
def _chance(model: formers.Model, prompt: tuple[int, ...], ids: tuple[int, ...]) -> float:
    """The same, in one pass, and computed once."""
    if model.spec.encoder is None:
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    else:
        logits = model(torch.tensor([prompt]), torch.tensor([[3, *ids[:-1]]])).logits[0]
    return logits.log_softmax(-1)[torch.arange(len(ids)), list(ids)].sum().item()


def score(total: float, length: int, penalty: float) -> float:
    return total / ((5 + length) / 6) ** penalty


def everything(longest: int) -> list[tuple[int, ...]]:
    """Every text that ends in the end token (4) or has the most tokens."""
    inner = [t for n in range(longest) for t in itertools.product((0, 1, 2, 3), repeat=n)]
    return [(*t, 4) for t in inner] + list(itertools.product((0, 1, 2, 3), repeat=longest))


@sweep("member", ["decoder", "transformer"])
@sweep("penalty", [0.0, 0.6, 2.0])
def test_wide_enough_it_finds_the_best_of_all_texts(member, penalty):
    model, prompt = writer(member, 3), [0, 1, 1]
    ranked = sorted(((score(chance(model, prompt, t), len(t), penalty), t) for t in everything(4)), reverse=True)[:5]
    (found,) = texts(model, [prompt], Options(beams=5**4, samples=5, max_new_tokens=4, length_penalty=penalty))
    assert [tuple(line.ids) for line in found] == [t[:-1] if t[-1] == 4 else t for _, t in ranked]
    assert [line.score for line in found] == pytest.approx([s for s, _ in ranked], abs=1e-9)
    assert [line.why for line in found] == ["end" if t[-1] == 4 else "length" for _, t in ranked]


def naive(model: formers.Model, prompt: list[int], beams: int, longest: int, penalty: float) -> tuple[int, ...]:
    """The search as one would write it down: every continuation recomputed, every step run to the end."""
    going, ended = [((), 0.0)], []
    for _ in range(longest):
        tried = sorted(((chance(model, prompt, (*t, v)), (*t, v)) for t, _ in going for v in range(5)), reverse=True)[:beams]
        ended += [(score(c, len(t), penalty), t[:-1]) for c, t in tried if t[-1] == 4]
        going = [(t, c) for c, t in tried if t[-1] != 4]
    ended += [(score(c, len(t), penalty), t) for t, c in going]
    return max(ended)[1]


@sweep("member", ["decoder", "transformer"])
@sweep("beams", [1, 2, 3, 7])
def test_it_finds_what_a_naive_search_finds(member, beams):
    for seed in range(6):
        model, prompt = writer(member, seed), [seed % 3, 1]
        (found,) = texts(model, [prompt], Options(beams=beams, max_new_tokens=5))
        assert tuple(found[0].ids) == naive(model, prompt, beams, 5, 0.6), seed


def ending(model: formers.Model, ids: tuple[int, ...], stops: tuple[str, ...], longest: int) -> str | None:
    """Why a text ends with its last token, or None where it goes on."""
    if ids[-1] == 4:
        return "end"
    if any(stop in model.tokenizer.decode(ids) for stop in stops):
        return "stop"
    return "length" if len(ids) == longest else None


def naive_texts(model: formers.Model, prompt: list[int], options: Options) -> list[tuple[list[int], str | None]]:
    """The best texts and why they end, found as `naive` does; with enough beams these are the best of all."""
    going: list[tuple[int, ...]] = [()]
    ended = []
    for _ in range(options.max_new_tokens):
        tried = sorted(((chance(model, prompt, (*t, v)), (*t, v)) for t in going for v in range(5)), reverse=True)[: options.beams]
        why = {t: ending(model, t, options.stop, options.max_new_tokens) for _, t in tried}
        ended += [(score(c, len(t), options.length_penalty), t) for c, t in tried if why[t]]
        going = [t for _, t in tried if not why[t]]
    best = [t for _, t in sorted(ended, reverse=True)[: options.samples]]
    whys = [ending(model, t, options.stop, options.max_new_tokens) for t in best]
    return [(list(t[:-1] if w == "end" else t), w) for t, w in zip(best, whys, strict=True)]


@sweep("member", ["decoder", "transformer"])
def test_texts_that_end_at_every_place_are_ranked_as_a_naive_search_ranks_them(member):
    """End tokens and stop strings, narrow and wide beams, penalties that favour short and long texts."""
    whys, lengths = set(), set()
    models, prompt = [writer(member, seed) for seed in range(4)], [0, 1]
    cases = itertools.product(models, [(), ("a",), ("ab", "c"), ("abc",)], [0.0, 0.6, 3.0], [(2, 2), (4, 3), (999, 4)])
    for model, stop, penalty, (beams, samples) in cases:
        options = Options(beams=beams, samples=samples, max_new_tokens=3, length_penalty=penalty, stop=stop)
        (found,) = texts(model, [prompt], options)
        assert [(line.ids, line.why) for line in found] == naive_texts(model, prompt, options), (models.index(model), options)
        whys |= {line.why for line in found}
        lengths |= {len(line.ids) for line in found if line.why != "length"}
    assert whys == {"end", "stop", "length"}
    assert lengths >= {0, 1, 2}


@sweep("specimen", WRITERS)
def test_a_beam_of_one_is_greedy(specimen: Specimen):
    torch.manual_seed(0)
    model = subject(specimen.spec).model  # with no two tokens equally likely
    vocab = model.spec.vocab
    model.tokenizer = Characters(characters="".join(sorted("abcdefghijklmnop"[: vocab - 2])), specials=SPECIALS)
    limit = (model.spec.encoder or model.spec).vocab or vocab
    prompts = [[1, 2, 3], [4], [5 % limit, 2, 6 % limit, 1, 0]]
    for length_penalty in (0.0, 1.5):
        beam = formers.generate(model, prompts, max_new_tokens=9, beams=1, length_penalty=length_penalty)
        assert beam == formers.generate(model, prompts, max_new_tokens=9, temperature=0)


def test_prompts_side_by_side_are_searched_as_each_alone():
    model, prompts = writer("decoder", 1), [[0, 1], [2], [1, 1, 1, 0, 2], [0, 1]]
    together = formers.generate(model, prompts, max_new_tokens=6, beams=3)
    assert together == [formers.generate(model, [p], max_new_tokens=6, beams=3)[0] for p in prompts]
    assert together == formers.generate(model, prompts, max_new_tokens=6, beams=3, batch=2)


def test_a_wider_beam_never_scores_worse_here():
    for seed in range(4):
        model = writer("decoder", seed)
        scores = [next(texts(model, [[0]], Options(beams=b, max_new_tokens=6)))[0].score for b in (1, 5**3, 5**6)]
        assert scores[-1] >= max(scores) - 1e-12


def test_beyond_the_training_length_the_window_slides_for_a_beam_too():
    model = writer("decoder", 2)
    model.tokenizer = Characters(characters="abcde")  # nothing ends
    written = formers.generate(model, [[0] * 30, [1, 2]], max_new_tokens=20, beams=2)
    assert [len(w) for w in written] == [50, 22]
    assert written[0] == formers.generate(model, [[0] * 30], max_new_tokens=20, beams=2)[0]


def test_a_stop_string_ends_a_beam():
    model = writer("decoder", 2)
    model.tokenizer = Characters(characters="abcde")
    plain = formers.generate(model, "a", max_new_tokens=8, beams=3, length_penalty=0.0)
    stop = plain[3:5]
    (found,) = texts(model, [[0]], Options(beams=3, max_new_tokens=8, stop=(stop,), samples=3))
    assert all((line.why == "stop") == (stop in model.tokenizer.decode(line.ids)) for line in found)
    assert all(stop not in line.text for line in found)
    assert any(line.why == "stop" for line in found)


def test_the_search_ends_when_nothing_can_be_better():
    model, read = writer("decoder", 1), []
    model.register_forward_pre_hook(lambda m, args, kwargs: read.append(1), with_kwargs=True)
    model.tokenizer = Characters(characters="ab", specials=("begin", "mask", "end"))
    with torch.no_grad():  # the end is all but certain
        model.stack.final.weight.mul_(0.01)
        model.stack.final.bias.copy_(model.embedding.weight[4] * 9)
    formers.generate(model, "a", max_new_tokens=20, beams=2)
    assert len(read) < 10


def test_nothing_to_write_gives_the_prompt_and_bad_logits_are_reported():
    model = writer("decoder", 0)
    assert formers.generate(model, [[0, 1]], max_new_tokens=0, beams=4) == [[0, 1]]
    with torch.no_grad():
        model.embedding.weight.fill_(float("nan"))
    with refused("not finite"):
        formers.generate(model, "ab", beams=2)
    with refused("leave out beams"):
        from formers.generation import stream_with

        stream_with(model, "ab", Options(beams=2))
