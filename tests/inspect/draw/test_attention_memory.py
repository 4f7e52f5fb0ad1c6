"""Attention with a memory: its tokens are keys before those of the segment, and marked."""

from __future__ import annotations

import json
import re

import torch

import formers
from formers.inspect import attention_facts, attention_page, by_words, draw_map, save_heads, save_map, views_of
from helpers import close

TEXT = "the quick brown fox jumps"


def model(**options):
    torch.manual_seed(0)
    return formers.create("transformer-xl", vocab=256, dim=16, heads=2, layers=2, length=8, **options).eval()


def test_the_last_segment_is_seen_with_the_memory_before_it():
    (view,) = views_of(model(memory=8), TEXT)
    assert "".join(view.queries) == "ox␣jumps"
    assert "".join(view.keys) == "␣brown␣fox␣jumps"
    assert view.memory == 8
    assert not view.same
    close(view.weights.sum(dim=3), torch.ones(2, 2, 8), 1e-5)
    assert bool((view.weights[:, :, 0, :9] > 0).all())
    assert not bool((view.weights[:, :, 0, 9:] > 0).any())
    assert "first 8 keys are the memory" in view.note


def test_the_weights_are_those_of_one_long_pass():
    wide = model(memory=1000)
    (view,) = views_of(wide, TEXT)
    whole = wide.inspect(torch.tensor([list(TEXT.encode())])).attention
    close(view.weights, torch.stack([layer[0, :, -8:] for layer in whole]), 1e-5)
    assert view.memory == len(TEXT) - 8


def test_a_text_of_one_segment_has_no_memory():
    (view,) = views_of(model(memory=8), "the quic")
    assert view.memory == 0
    assert view.same
    assert "memory" not in view.note


def test_every_drawing_marks_the_memory(tmp_path):
    (view,) = views_of(model(memory=8), TEXT)
    lines = draw_map(view, columns=80).splitlines()
    first = next(line for line in lines if line.lstrip().startswith("o "))
    assert first.split(" ", 2)[-1].lstrip().index("│") == 16  # two characters a key
    assert lines[0].index("│") == first.index("│")
    narrow = draw_map(view, columns=20)
    assert "│" in narrow
    assert "|" in draw_map(view, encoding="ascii")
    page = attention_page([view])
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["views"][0]["memory"] == 8
    assert attention_facts(view)["memory"] == 8
    for save, name in ((save_heads, "heads.svg"), (save_map, "map.svg")):
        assert "#b4560a" in save(view, tmp_path / name).read_text()
    words = by_words(view)
    assert words.memory == sum(len(key) > 0 for key in words.keys[: words.memory])
    assert 0 < words.memory < len(words.keys)


def test_layers_that_look_back_less_far_have_weights_of_0_there():
    model = formers.create("adaptive-span", vocab=256, dim=16, heads=2, layers=2, hidden=16, length=8, span=200, ramp=4).eval()
    with torch.no_grad():
        model.stack.depth.blocks[1].attention.score.share.fill_(0.5)  # its reach is 128, that of the other 64
    (view,) = views_of(model, "x" * 150)
    assert view.weights.shape == (2, 2, 8, 8 + 128)
    assert (view.weights[0, :, :, :64] == 0).all()
    assert view.memory == 128
