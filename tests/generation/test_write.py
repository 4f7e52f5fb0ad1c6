"""Writing: text for text, ids for ids, prompts side by side, the sliding window, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch

import formers
from contracts.specimens import CAUSAL, VOCAB, subject
from formers.data import Bytes, Characters
from formers.generation import answer
from formers.model import Seq2Seq
from helpers import refused, sweep

SMALL = {"dim": 16, "heads": 2, "layers": 1}
PROMPTED = [s for s in CAUSAL if s.spec.encoder is None and s.spec.image is None]


def moved(model: formers.Model) -> formers.Model:
    """The model in float64 with parameters far from where they began, so that what it writes depends much on what it reads."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.8)
    return model.double()


@sweep("specimen", PROMPTED)
def test_greedy_generation_equals_recomputing_every_token(specimen):
    model = subject(specimen.spec).model
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


def test_what_was_written_can_be_trained_on():
    model = formers.create("decoder", vocab=VOCAB, **SMALL)
    ids = formers.generate(model, torch.zeros(1, 3, dtype=torch.long), max_new_tokens=5)
    model(ids[:, :-1], targets=ids[:, 1:]).loss.backward()
    assert model.embedding.weight.grad.isfinite().all()


def test_an_empty_prompt_starts_from_nothing():
    model = formers.create("decoder", vocab=256, **SMALL)
    assert isinstance(formers.generate(model, "", max_new_tokens=5, seed=0), str)
    assert formers.generate(model, "", max_new_tokens=0) == ""


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "axial"])
def test_beyond_the_training_length_the_window_slides_and_says_so(position, caplog):
    model = formers.create("decoder", vocab=VOCAB, length=8, position=position, **SMALL)
    with caplog.at_level(logging.WARNING):
        written = formers.generate(model, torch.zeros(2, 3, dtype=torch.long), max_new_tokens=30, seed=0)
    assert written.shape == (2, 33)
    assert sum("slides" in r.message for r in caplog.records) == 1


def test_many_batches_of_a_model_say_it_once(caplog):
    model = formers.create("decoder", vocab=VOCAB, length=8, **SMALL)
    with caplog.at_level(logging.WARNING):
        formers.generate(model, [[1] * n for n in range(5, 12)], max_new_tokens=9, seed=0, batch=3)
        formers.generate(model, [[1, 2]], max_new_tokens=9, seed=0)
    assert len(caplog.records) == 1


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


def test_an_encoder_decoder_writes_rows_of_different_lengths_as_each_alone():
    torch.manual_seed(2)
    model = moved(formers.create("transformer", vocab=258, length=32, **SMALL))
    model.tokenizer = Bytes(specials=("begin", "end"))
    assert isinstance(model, Seq2Seq)
    sources = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    together = answer(model, sources, max_new_tokens=7)
    assert len(set(map(tuple, together))) > 1, "a model that writes the same for all sources shows nothing"
    assert together == [answer(model, [s], max_new_tokens=7)[0] for s in sources]
    assert formers.generate(model, torch.tensor([sources[0]]), max_new_tokens=7, temperature=0)[0].tolist() == together[0]


def test_a_prompt_longer_than_a_learned_table_slides_and_says_so(caplog):
    model = formers.create("decoder", vocab=256, length=8, position="learned", **SMALL)
    with caplog.at_level(logging.WARNING):
        written = formers.generate(model, "x" * 9, max_new_tokens=3, temperature=0)
    assert len(written) >= 9
    assert "slides" in caplog.text


@sweep("specimen", PROMPTED)
def test_prompts_side_by_side_are_written_as_each_alone(specimen):
    """Whatever their lengths, however their windows slide, whatever the batch, and each sample with draws of its own."""
    model = subject(specimen.spec.replace(length=16)).model
    prompts = [[1, 2, 3], [4], [1, 2, 3], [5] * 15, [0] * 20, [9, 8, 7]]
    # The random weights of a stack without a final norm make large logits.
    options = {"max_new_tokens": 14, "seed": 5, "repetition_penalty": 1.2, "top_k": 5, "temperature": 8.0}
    together = formers.generate(model, prompts, **options)
    assert together[0] != together[2], "equal prompts are two samples"
    assert together[:2] + together[3:] == [formers.generate(model, [p], **options)[0] for p in prompts[:2] + prompts[3:]]
    assert together == formers.generate(model, prompts, batch=2, **options)
    samples = formers.generate(model, [[4], [1, 2, 3]], samples=2, **options)
    assert samples == [[together[1], samples[0][1]], [together[0], together[2]]]


@sweep("position", ["sinusoidal", "learned"])
@sweep("options", [{"temperature": 0}, {"seed": 1, "samples": 2, "repetition_penalty": 1.5}, {"beams": 3, "samples": 2}])
def test_sources_side_by_side_are_answered_as_each_alone(position, options):
    """Empty ones too, and those whose answers outlive others and slide."""
    model = moved(formers.create("transformer", vocab=20, length=12, position=position, **SMALL))
    model.tokenizer = Characters(characters="abcdefghijklmnopqr", specials=("begin", "end"))
    sources = [[], [1, 2, 3], [4], [5] * 11, [7, 8]]
    together = formers.generate(model, sources, max_new_tokens=30, **options)
    assert together == [formers.generate(model, [source], max_new_tokens=30, **options)[0] for source in sources]
    assert len({str(answers) for answers in together}) > 1


@sweep("member", ["decoder", "transformer"])
def test_the_repetition_penalty_counts_the_prompt_and_what_was_written_but_no_source(member):
    model = moved(formers.create(member, vocab=13, length=64, **SMALL)).eval()
    model.tokenizer = Characters(characters="abcdefghijk", specials=("begin", "end"))
    prompts = [[1, 2, 3], [4], [5, 6], [1, 1, 1, 7], [8, 9]]
    written = formers.generate(model, prompts, max_new_tokens=25, temperature=0, repetition_penalty=4.0)
    for prompt, found in zip(prompts, written, strict=True):
        ids = list(prompt) if member == "decoder" else []
        for _ in range(25):
            with torch.no_grad():
                x = torch.tensor([ids if member == "decoder" else [11, *ids]])
                logits = (model(x) if member == "decoder" else model(torch.tensor([prompt]), x)).logits[0, -1]
            for token in {*ids}:
                logits[token] = logits[token] / 4 if logits[token] > 0 else logits[token] * 4
            token = int(logits.argmax())
            if token == 12:
                break
            ids.append(token)
        assert found == ids
    plain = formers.generate(model, prompts, max_new_tokens=25, temperature=0)
    assert plain != written


def test_an_empty_text_begins_after_the_begin_token_or_a_line_break():
    model = moved(formers.create("decoder", vocab=8, **SMALL))
    options = {"max_new_tokens": 9, "temperature": 0, "repetition_penalty": 4.0}
    model.tokenizer = Characters(characters="\nabcdef", specials=("begin",))
    behind = [formers.generate(model, [[first]], **options)[0][1:] for first in (0, 1, 7)]
    assert len(set(map(tuple, behind))) == 3, "what stands first matters"
    assert formers.generate(model, [[]], **options)[0] == formers.generate(model, [[7]], **options)[0][1:]
    model.tokenizer = Characters(characters="\t\nabcdef")
    assert formers.generate(model, [[]], **options)[0] == formers.generate(model, [[1]], **options)[0][1:]
    model.tokenizer = Characters(characters="abcdefgh")
    assert formers.generate(model, [[]], **options)[0] == formers.generate(model, [[0]], **options)[0][1:]


def test_tensors_of_prompts_with_padding_give_tensors():
    model = formers.create("decoder", vocab=VOCAB, **SMALL).double()
    prompt, mask = torch.tensor([[1, 2, 3], [0, 4, 5]]), torch.tensor([[True] * 3, [False, True, True]])
    written = formers.generate(model, prompt, max_new_tokens=4, temperature=0, mask=mask)
    assert written.shape == (2, 7)
    assert written[1].tolist() == [0, *formers.generate(model, [[4, 5]], max_new_tokens=4, temperature=0)[0]]
    assert formers.generate(model, prompt, max_new_tokens=4, samples=3, seed=1).shape == (6, 7)
    with refused("mask", "(2, 2)"):
        formers.generate(model, prompt, mask=mask[:, :2])


def test_rows_that_end_early_are_filled_up():
    model = formers.create("decoder", vocab=VOCAB, **SMALL)
    model.tokenizer = Characters(characters="abcdefghijk")
    prompts = torch.arange(6)[:, None]
    free = formers.generate(model, prompts, max_new_tokens=12, seed=3)
    stop = model.tokenizer.decode([int(free[0, 4])])
    written = formers.generate(model, prompts, max_new_tokens=12, seed=3, stop=stop)
    for row, whole in zip(written.tolist(), free.tolist(), strict=True):
        ends = next((i for i in range(1, 13) if whole[i] == free[0, 4]), 12)
        assert row[: ends + 1] == whole[: ends + 1]
        assert set(row[ends + 1 :]) <= {-1}
    assert min(map(len, written.tolist())) <= 13


def test_an_end_token_ends_a_decoder_too():
    model = formers.create("decoder", vocab=6, **SMALL)
    model.tokenizer = Characters(characters="abcde", specials=("end",))
    for text in formers.generate(model, "ab", max_new_tokens=50, temperature=20.0, samples=20, seed=0):
        assert text.startswith("ab")
        assert set(text) <= set("abcde")
    lengths = {len(row) for row in formers.generate(model, [[0, 1]] * 20, max_new_tokens=50, temperature=20.0, seed=0)}
    assert len(lengths) > 3, "texts end where their end token is drawn"


def test_without_a_seed_torchs_own_generator_decides():
    model = formers.create("decoder", vocab=256, **SMALL)
    torch.manual_seed(4)
    first, second = (formers.generate(model, "abc", max_new_tokens=30) for _ in range(2))
    torch.manual_seed(4)
    assert formers.generate(model, "abc", max_new_tokens=30) == first != second


def test_an_empty_source_has_an_answer():
    answering = formers.create("transformer", vocab=258, **SMALL)
    answering.tokenizer = Bytes(specials=("begin", "end"))
    assert isinstance(formers.generate(answering, "", max_new_tokens=5, seed=0), str)


def test_samples_of_one_prompt_read_it_once():
    model, read = formers.create("decoder", vocab=256, **SMALL), []
    model.register_forward_pre_hook(lambda m, args, kwargs: read.append(tuple(args[0].shape)), with_kwargs=True)
    formers.generate(model, "a long prompt", samples=5, max_new_tokens=2)
    assert read == [(1, 13), (5, 1)]


def test_what_has_ended_costs_nothing_more():
    model, read = formers.create("decoder", vocab=6, **SMALL), []
    model.tokenizer = Characters(characters="abcde", specials=("end",))
    model.register_forward_pre_hook(lambda m, args, kwargs: read.append(args[0].shape[0]), with_kwargs=True)
    formers.generate(model, [[0], [1]] * 16, max_new_tokens=60, temperature=20.0, seed=1)
    assert read == sorted(read[:1]) + sorted(read[1:], reverse=True)
    assert read[-1] < 8


def test_a_source_longer_than_the_training_length_is_reported(caplog):
    model = formers.create("transformer", vocab=258, length=8, **SMALL)
    model.tokenizer = Bytes(specials=("begin", "end"))
    with caplog.at_level(logging.WARNING):
        formers.generate(model, "x" * 8, max_new_tokens=2)
        assert not caplog.records
        formers.generate(model, "x" * 9, max_new_tokens=2)
    assert "longer than 8 tokens" in caplog.text


def test_bad_prompts_are_refused():
    model = formers.create("decoder", vocab=256, length=8, position="learned", **SMALL)
    with refused("float32"):
        formers.generate(model, torch.zeros(1, 3))
    with refused("(1, 0)"):
        formers.generate(model, torch.zeros(1, 0, dtype=torch.long))
    with refused("does not generate"):
        formers.generate(formers.create("encoder", vocab=257, **SMALL), "x")
    for wrong in (3, [1, 2], [[1], "a"], None, [[0.5]]):
        with refused("give a text"):
            formers.generate(model, wrong)
    with refused("batch=0"):
        formers.generate(model, "x", batch=0)
    with refused("'q' (U+0071) at position 1"):
        known = formers.create("decoder", vocab=3, **SMALL)
        known.tokenizer = Characters(characters="abc")
        formers.generate(known, "aqb")
    with refused("(0, 3)"):
        formers.generate(model, torch.zeros(0, 3, dtype=torch.long))
    with refused("mask", "str"):
        formers.generate(model, "x", mask=torch.ones(1, 1, dtype=torch.bool))
    for wrong in (300, -1, 2**70):
        with refused(f"token id {wrong}"):
            formers.generate(model, [[1, wrong]])
    with refused("no tokenizer"):
        formers.generate(formers.create("decoder", vocab=99, **SMALL), "x")
