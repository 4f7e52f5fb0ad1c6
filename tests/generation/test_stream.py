"""Text as it is written: whole characters only, nothing of a stop string, and in the end what `generate` gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import formers
from formers import Output, State
from formers.data import Bytes, Tokenizer
from formers.data.bpe import train_bpe
from formers.model import StackModel
from helpers import sweep


class Reciting(StackModel):
    """A model that writes the bytes it was given, whatever it reads, and then zeros."""

    def __init__(self, ids: list[int], vocab: int = 256, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(formers.spec("decoder", vocab=vocab, dim=8, heads=2, layers=1, length=4096, position="none"))
        self.ids, self.tokenizer = ids, tokenizer or Bytes()

    def forward(self, tokens, targets=None, state=None, mask=None, *, watch=None) -> Output:
        after = state.bound + tokens.shape[1]
        token = self.ids[after - 1] if after <= len(self.ids) else 0
        logits = 99.0 * F.one_hot(torch.full(tokens.shape, token), self.spec.vocab).double()
        return Output(logits, None, state=State(state.batch, ((None,),), after, after))


def reciting(text: str) -> Reciting:
    """A model that recites a text behind a prompt of one byte."""
    return Reciting(list(text.encode()))


SAID = "naïve 𝄞 日本 e\u0301 🏳️‍🌈!"


def test_a_piece_never_ends_within_a_character():
    pieces = list(formers.stream(reciting(SAID), "x", max_new_tokens=len(SAID.encode())))
    assert "".join(pieces) == SAID
    assert "\ufffd" not in "".join(pieces)
    assert len(pieces) == len(SAID), "every character is shown as soon as it is whole"


def test_an_unfinished_character_at_the_end_shows_as_such_as_in_generate():
    model, n = reciting("é"), 1
    assert "x" + "".join(formers.stream(model, "x", max_new_tokens=n)) == formers.generate(model, "x", max_new_tokens=n) == "x\ufffd"


@sweep("stop", ["STOP", "é", "ST", ("nothing", "OP"), ("OP", "STOP"), "T"])
def test_nothing_of_a_stop_string_is_shown(stop):
    model = reciting("one ST two éSSTOP three")
    pieces = list(formers.stream(model, "x", max_new_tokens=24, stop=stop))
    whole = "one ST two éSSTOP three"
    stops = (stop,) if isinstance(stop, str) else stop
    assert "".join(pieces) == whole[: min(whole.find(s) for s in stops if s in whole)]
    assert formers.generate(model, "x", max_new_tokens=24, stop=stop) == "x" + "".join(pieces)


def test_the_beginning_of_a_stop_string_that_is_none_is_shown_in_the_end():
    assert "".join(formers.stream(reciting("endless EN"), "x", max_new_tokens=10, stop="END")) == "endless EN"


@given(text=st.text(max_size=20), stop=st.lists(st.text(min_size=1, max_size=3), max_size=3), seed=st.integers(0, 9))
def test_streamed_equals_generated(text, stop, seed):
    model, options = reciting(text), {"max_new_tokens": len(text.encode()), "stop": stop, "seed": seed}
    assert "x" + "".join(formers.stream(model, "x", **options)) == formers.generate(model, "x", **options)
    found = [at for s in stop if (at := text.find(s)) >= 0]
    assert formers.generate(model, "x", **options)[1:] == text[: min(found, default=len(text))]


def test_tokens_that_hold_parts_of_characters():
    bpe = train_bpe(["日本 日本 語 日本"] * 30, 270)
    ids = bpe.encode("日本語 日")
    model = Reciting([*ids, 1, 1], bpe.vocab, bpe)
    assert len(bpe.encode("!")) == 1
    assert any("\ufffd" in bpe.decode([i]) for i in ids), "some token is only a part of a character"
    assert "".join(formers.stream(model, "!", max_new_tokens=len(ids))) == "日本語 日"


def test_mistakes_are_reported_before_the_first_piece():
    with pytest.raises(formers.FormersError):
        formers.stream(reciting("a"), "x", top_p=0.0)
    with pytest.raises(formers.FormersError):
        formers.stream(formers.create("encoder", vocab=257, dim=8, heads=2), "x")


def test_a_stream_that_is_left_leaves_the_model_as_it_was():
    model = reciting(SAID).train()
    pieces = formers.stream(model, "x")
    next(pieces)
    pieces.close()
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_streams_side_by_side_of_a_model_in_training_are_those_of_evaluation():
    """Between two pieces a model is the caller's: one stream's end must not switch dropout on for another."""
    model = formers.create("decoder", vocab=256, dim=16, heads=2, layers=1, dropout=0.5).eval()
    wanted = "".join(formers.stream(model, "abc", max_new_tokens=60, seed=0))
    model.train()
    short, long = (formers.stream(model, "abc", max_new_tokens=n, seed=0) for n in (20, 60))
    next(short)
    found = next(long)
    assert model.training
    list(short)
    assert found + "".join(long) == wanted
    assert model.training


def test_between_two_texts_a_model_is_in_the_mode_it_was_in():
    model = formers.create("decoder", vocab=256, dim=16, heads=2, layers=1).train()
    for _ in formers.generation.texts(model, [[1], [2]], formers.generation.Options(max_new_tokens=2), batch=1):
        assert model.training
