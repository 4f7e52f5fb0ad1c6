"""Public functions given None, nothing, or another type: one sentence, never a bare TypeError or a traceback of an allocator."""

from __future__ import annotations

import math

import pytest

import formers
from formers.data import Bytes
from formers.training import evaluate_run, prepare
from formers.training.folder import claimed
from helpers import refused

SMALL = dict(dim=16, heads=2, layers=1, length=8)
TINY = dict(**SMALL, steps=1, batch=2, sample_tokens=0, track="none", quiet=True)


@pytest.fixture
def model():
    return formers.create("decoder", vocab=11, **SMALL)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A current folder with a text in it, which an empty path would mean."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(b"abcdefghij" * 60)
    return tmp_path


def test_what_is_no_path_is_refused(model, empty):
    calls = {
        "path": (formers.load, model.save_pretrained),
        "data": (lambda data: formers.train("decoder", data, **TINY), lambda data: prepare("decoder", data)),
        "run": (formers.resume, evaluate_run),
        "from_run": (lambda run: formers.train("decoder", "text.txt", from_run=run, steps=1, quiet=True),),
        "out": (lambda out: formers.train("decoder", "text.txt", out, **TINY),),
    }
    before = sorted(empty.iterdir())
    for name, functions in calls.items():
        for function in functions:
            for value in ("", "  ", 3, ["text.txt"], model) + (() if name in ("out", "from_run") else (None,)):
                with refused(name, "give"):
                    function(value)
    assert sorted(empty.iterdir()) == before


def test_what_is_no_member_no_preset_and_no_spec_is_refused():
    for name in (None, 3, [], {}, "decodr"):
        for function in (formers.create, formers.spec):
            with refused("no member"):
                function(name)
        with refused("no member"):
            formers.train(name, "text.txt", **TINY)
    for preset in (3, [], "bse"):
        with refused("no preset"):
            formers.spec("decoder", preset=preset, vocab=11)
    for spec in (None, "decoder", 3):
        with refused("not a spec"):
            formers.build(spec)
    with refused("track=None"):
        formers.train("decoder", "text.txt", **{**TINY, "track": None})


def test_what_is_no_model_and_no_prompt_is_refused(model):
    for other in (None, "runs/mine", 3):
        with refused("the model is a"):
            formers.generate(other, "abc")
        with refused("the model is a"):
            formers.stream(other, "abc")
    for prompts in ([], ()):
        with refused("the list of prompts is empty"):
            formers.generate(model, prompts)
    for prompt in (None, 3, [None], ["a", [1]]):
        with refused("the prompt is a"):
            formers.generate(model, prompt)
    model.tokenizer = Bytes()
    with refused("the prompt is a NoneType"):
        formers.stream(model, None)


def test_options_of_writing_that_are_not_numbers_are_named_as_such(model):
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty"):
        for value in (math.nan, math.inf):
            with refused(f"{name}={value}", "give" if name != "temperature" else "not a finite number"):
                formers.generate(model, [[1]], **{name: value})
    with refused("temperature=-1.0 is below 0"):
        formers.generate(model, [[1]], temperature=-1.0)


@pytest.mark.parametrize(
    ("member", "sizes", "words"),
    [
        ("decoder", {"vocab": 256, "dim": 10**9}, ("dim=1000000000", "1,024 GB", "use a smaller dim")),
        ("decoder", {"vocab": 10**12}, ("vocab=1000000000000", "GB", "use a smaller vocab.")),
        ("decoder", {"vocab": 256, "length": 10**12, "position": "learned"}, ("length=1000000000000", "use a smaller length.")),
        ("transformer", {"vocab": 258, "dim": 2**31}, (f"dim={2**31}", "GB")),
        ("encoder", {"vocab": 10**18}, (f"vocab={10**18}", "GB")),
    ],
)
def test_a_model_that_no_memory_holds_is_refused_before_it_is_built(member, sizes, words):
    with refused(*words):
        formers.create(member, **sizes)


def test_advice_beside_a_training_that_lives_fits_the_verb(empty):
    formers.train("decoder", "text.txt", "run", **TINY)
    with claimed(empty / "run"):
        with refused("another process is training", "wait until it ends, or stop it first"):
            formers.resume("run", steps=2, quiet=True)
        with refused("another process is training", "give another --out"):
            formers.train("decoder", "text.txt", "run", **TINY)
