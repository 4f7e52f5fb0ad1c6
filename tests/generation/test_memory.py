"""A model with a memory reads its prompt in segments, however long it is."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.generation.reader import Reader

SIZES = dict(vocab=23, dim=16, heads=2, layers=2, length=8)


@pytest.fixture(params=[{"memory": 12}, {"memory": 3}, {"memory": 5, "same_length": True}, {"memory": 0}])
def model(request):
    torch.manual_seed(1)
    return formers.create("transformer-xl", **SIZES, **request.param).double().eval()


def by_hand(model, row, new):
    """The likeliest continuation, the row read in segments and then token by token."""
    row = list(row)
    with torch.no_grad():
        state = model.initial_state(1)
        for begin in range(0, len(row), 8):
            out = model(torch.tensor([row[begin : begin + 8]]), state=state)
            state = out.state
        written = []
        for _ in range(new):
            written.append(int(out.logits[0, -1].argmax()))
            out = model(torch.tensor([written[-1:]]), state=out.state)
    return written


@pytest.mark.parametrize("length", [1, 8, 9, 40])
def test_a_prompt_is_read_in_segments(model, length):
    prompt = torch.randint(23, (1, length))
    made = formers.generate(model, prompt, max_new_tokens=20, temperature=0)
    assert made[0, length:].tolist() == by_hand(model, prompt[0].tolist(), 20)


def test_prompts_of_different_lengths_do_not_disturb_each_other(model):
    prompts = [torch.randint(23, (n,)).tolist() for n in (1, 30, 8, 17, 9, 30)]
    made = formers.generate(model, prompts, max_new_tokens=20, temperature=0)
    assert [row[len(prompt) :] for row, prompt in zip(made, prompts, strict=True)] == [by_hand(model, prompt, 20) for prompt in prompts]


def test_no_pass_is_longer_than_a_segment():
    model = formers.create("transformer-xl", memory=16, **SIZES).eval()
    widths = []
    model.register_forward_pre_hook(lambda module, given: widths.append(given[0].shape[1]))
    Reader(model, [[1] * 1000]).logits()
    assert widths == [8] * 125
