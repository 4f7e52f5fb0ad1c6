"""Protocols: each is what reading by hand gives, evaluates each token once, and refuses what it cannot do."""

from __future__ import annotations

import json
import math

import pytest
import torch

import formers
from formers.data import Bytes, Language, LastWord, Streams
from formers.evaluation import Protocol, evaluate
from formers.evaluation.protocol import apply_protocol
from formers.family.members import MEMBERS
from formers.memory import NoMemory
from formers.model import respecified
from formers.patterns import Blocks, Causal, Local
from formers.training import evaluate_run
from helpers import refused, sweep

STREAM = torch.randint(64, (151,), generator=torch.Generator().manual_seed(0))
SIZES = dict(vocab=256, dim=16, heads=2, layers=2, length=8)


@pytest.fixture
def xl():
    torch.manual_seed(0)
    return formers.create("transformer-xl", memory=4, **SIZES).double().eval()


@pytest.fixture
def decoder():
    return formers.create("decoder", **SIZES).double().eval()


@pytest.fixture
def span():
    return formers.create("adaptive-span", span=16, **SIZES).double().eval()


def evaluated(model, size=1, **options):
    """The figures of a protocol."""
    batches = Streams({"valid": STREAM}, 8) if model.spec.memory.limit is not None else Language({"valid": STREAM}, 8)
    reading = apply_protocol(Protocol(**options), model, batches)
    return evaluate(reading.model, reading.batches, Bytes(), size, stride=reading.stride)


def mean(model, rows):
    """The mean loss of the last token of each row, read by itself."""
    with torch.no_grad():
        losses = [-model(row[None, :-1]).logits[0, -1].log_softmax(-1)[row[-1]] for row in rows]
    return float(torch.stack(losses).mean())


def long_pass(model, pattern):
    """The mean loss of one pass over everything under a pattern."""
    with torch.no_grad():
        whole = respecified(model, model.spec.replace(pattern=pattern, memory=NoMemory()))
        return float(whole(STREAM[None, :-1], targets=STREAM[None, 1:]).loss)


@pytest.mark.parametrize("name", ["xl", "decoder"])
@pytest.mark.parametrize("size", [1, 5])
def test_sliding_is_a_window_for_every_token(name, size, request):
    model = request.getfixturevalue(name)
    found = evaluated(model, size, kind="sliding", attention_length=6)
    assert found["targets"] == len(STREAM) - 1
    assert found["loss"] == pytest.approx(mean(model, [STREAM[max(0, i - 6) : i + 1] for i in range(1, len(STREAM))]), abs=1e-10)
    assert found["protocol"].startswith("windows of 6 tokens one every token (context 6, stride 1), all 150 tokens")


@pytest.mark.parametrize("name", ["xl", "decoder"])
@pytest.mark.parametrize("size", [1, 5])
def test_segments_are_read_alone_also_by_who_has_a_memory(name, size, request):
    model = request.getfixturevalue(name)
    found = evaluated(model, size, kind="segments", attention_length=7)
    assert found["targets"] == len(STREAM) - 1
    rows = [STREAM[(i - 1) // 7 * 7 : i + 1] for i in range(1, len(STREAM))]
    assert found["loss"] == pytest.approx(mean(model, rows), abs=1e-10)
    assert "windows of 7 tokens side by side" in found["protocol"]


@sweep("segment", [1, 5, 8, 64])
@sweep("memory", [0, 1, 7, 40, 1000])
def test_a_memory_is_one_long_pass_under_the_blocks_that_it_implies(xl, segment, memory):
    found = evaluated(xl, kind="memory", segment=segment, attention_length=memory)
    assert found["targets"] == len(STREAM) - 1
    assert found["loss"] == pytest.approx(long_pass(xl, Blocks(query=segment, memory=memory)), abs=1e-10)
    assert f"in 1 lane, each with the state of the one before (memory {memory:,})" in found["protocol"]


@sweep("segment", [1, 5, 64])
@sweep("length", [1, 7, 40])
def test_the_same_length_is_a_band_whatever_the_segment(xl, segment, length):
    found = evaluated(xl, kind="memory", segment=segment, attention_length=length, same_length=True)
    assert found["loss"] == pytest.approx(long_pass(xl, Local(window=length)), abs=1e-10)
    assert f"(memory {length}, same length)" in found["protocol"]


def test_a_model_of_the_same_length_can_be_evaluated_without_it():
    torch.manual_seed(0)
    model = formers.create("transformer-xl", memory=4, same_length=True, **SIZES).double().eval()
    assert evaluated(model)["loss"] == pytest.approx(long_pass(model, Local(window=4)), abs=1e-10)
    assert evaluated(model, attention_length=6)["loss"] == pytest.approx(long_pass(model, Local(window=6)), abs=1e-10)
    assert evaluated(model, same_length=False)["loss"] == pytest.approx(long_pass(model, Blocks(query=8, memory=4)), abs=1e-10)


def test_lanes_are_streams_of_their_own(xl):
    found = evaluated(xl, size=2, attention_length=40)
    with torch.no_grad():
        whole = respecified(xl, xl.spec.replace(pattern=Blocks(query=8, memory=40), memory=NoMemory()))
        losses = [whole(STREAM[None, a:b], targets=STREAM[None, a + 1 : b + 1]).loss for a, b in ((0, 75), (75, 150))]
    assert found["loss"] == pytest.approx(float(sum(losses)) / 2, abs=1e-10)
    assert "segments of 8 tokens in 2 lanes" in found["protocol"]


def test_a_clamp_is_the_models_with_that_clamp(xl):
    spec = xl.spec.replace(score=xl.spec.score.replace(clamp=3))
    clamped = respecified(xl, spec)
    found = evaluated(xl, attention_length=40, clamp=3)
    assert found["loss"] == pytest.approx(evaluated(clamped, attention_length=40)["loss"], abs=1e-12)
    assert found["loss"] != evaluated(xl, attention_length=40)["loss"]
    assert "(memory 40, clamp 3)" in found["protocol"]
    assert "stride 8, clamp 3)" in evaluated(xl, kind="segments", clamp=3)["protocol"]


def test_what_is_left_open_is_the_models_own(xl, decoder):
    assert Protocol().resolved_for(xl.spec) == Protocol(kind="memory", attention_length=4, segment=8, same_length=False)
    assert Protocol().resolved_for(decoder.spec) == Protocol(kind="segments", attention_length=8, segment=8)
    assert Protocol(stride=2).resolved_for(decoder.spec) == Protocol(kind="sliding", attention_length=8, segment=8, stride=2)
    assert Protocol(attention_length=3).resolved_for(decoder.spec).segment == 3
    # what is not given is that of the run, as long as it is read the same way
    own = Protocol(kind="memory", attention_length=2100, segment=80, clamp=820, same_length=True)
    assert Protocol(attention_length=640).with_defaults(own) == own.replace(attention_length=640)
    assert Protocol(kind="segments").with_defaults(own) == Protocol(kind="segments")
    assert Protocol(stride=4).with_defaults(own) == Protocol(kind="sliding", stride=4)
    assert Protocol(segment=4).with_defaults(Protocol().resolved_for(decoder.spec)).resolved_for(decoder.spec).attention_length == 4


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("decoder", {"kind": "memory"}, ("absolute positions", "segments", "transformer-xl")),
        ("decoder", {"clamp": 4}, ("clamp=4", "decoder")),
        ("decoder", {"same_length": True}, ("same_length=True", "protocol memory")),
        ("decoder", {"kind": "segments", "stride": 2}, ("stride=2", "sliding")),
        ("xl", {"kind": "memory", "stride": 2}, ("stride=2", "sliding")),
        ("span", {"same_length": True}, ("same_length", "Local")),
        ("span", {"attention_length": 5}, ("span=16", "memory=5")),
        ("xl", {"kind": "memory", "attention_length": 0, "same_length": True}, ("attention_length=0", "at least 1")),
        ("xl", {"kind": "sliding", "attention_length": 0}, ("attention_length=0", "at least 1")),
        ("xl", {"kind": "segments", "attention_length": 4, "segment": 5}, ("attention_length=4", "segment=5")),
    ],
)
def test_what_cannot_be_done_is_refused(name, options, words, request):
    with refused(*words):
        evaluated(request.getfixturevalue(name), **options)


def test_numbers_that_are_none_are_refused():
    for name, value in (("attention_length", -1), ("clamp", 0), ("segment", 0), ("stride", 0), ("kind", "windows")):
        with refused(f"{name}={value!r}"):
            Protocol(**{name: value})
    with refused("learned positions", "length=8"):
        Protocol(attention_length=9).resolved_for(formers.spec("decoder", position="learned", **SIZES))
    with refused("next token"):
        Protocol(kind="sliding").resolved_for(formers.spec("encoder", **SIZES))


def test_papers_protocols_come_with_their_presets():
    for name, member in MEMBERS.items():
        for preset, options in member.evaluation.items():
            spec = formers.spec(name, preset=preset or None, vocab=300_000)
            chosen = Protocol(**options).resolved_for(spec)
            formers.model.check(chosen.spec(spec))
    assert Protocol(**MEMBERS["character-transformer"].evaluation["t12"]).kind == "sliding"
    base = Protocol(**MEMBERS["transformer-xl"].evaluation["base"])
    assert base == Protocol(kind="memory", attention_length=2100, segment=80, clamp=820, same_length=True)


def test_what_slides_for_its_figures_does_not_in_a_training(decoder):
    slow = Protocol(kind="sliding", attention_length=6).resolved_for(decoder.spec)
    assert slow.during_training() == Protocol(kind="segments", attention_length=6, segment=6)
    fast = Protocol(kind="segments").resolved_for(decoder.spec)
    assert fast.during_training() is fast


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "a.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 100)
    small = dict(dim=16, heads=2, layers=1, length=16, steps=2, quiet=True, batch=4)
    formers.train("decoder", text, folder / "decoder", **small)
    formers.train("transformer-xl", text, folder / "xl", memory=16, **small)
    formers.train("transformer-xl", text, folder / "base", preset="base", hidden=16, head_dim=8, **small)
    return folder


def test_a_run_keeps_its_protocol_and_is_evaluated_by_it(runs):
    facts = json.loads((runs / "base" / "run.json").read_text())
    assert facts["protocol"] == {
        "kind": "memory", "attention_length": 2100, "segment": 80, "clamp": 820, "same_length": True, "stride": None,
        "rounds": None,
    }  # fmt: skip
    words = "each with the state of the one before (memory 2,100, same length, clamp 820)"
    assert words in facts["results"]["protocol"]
    assert words in evaluate_run(runs / "base")["protocol"]
    again = evaluate_run(runs / "base", protocol=Protocol(attention_length=64, clamp=32), size=1)
    assert "segments of 80 tokens in 1 lane, each with the state of the one before (memory 64, same length, clamp 32)" in again["protocol"]
    assert "(memory 16)" in evaluate_run(runs / "xl")["protocol"]
    resumed = formers.resume(runs / "base", steps=3, quiet=True)
    assert words in resumed.results["protocol"]


def test_every_run_can_be_read_in_every_way_that_it_can(runs):
    targets = {evaluate_run(runs / "xl", protocol=Protocol(kind=kind))["targets"] for kind in ("segments", "memory", "sliding")}
    targets |= {evaluate_run(runs / "decoder", protocol=Protocol(kind=kind))["targets"] for kind in ("segments", "sliding")}
    assert len(targets) == 1
    with refused("absolute positions"):
        evaluate_run(runs / "decoder", protocol=Protocol(kind="memory"))
    with refused("segment=5000", "valid"):
        evaluate_run(runs / "xl", protocol=Protocol(segment=5000))
    with refused("attention_length=5000", "valid"):
        evaluate_run(runs / "decoder", protocol=Protocol(attention_length=5000))
    assert math.isfinite(evaluate_run(runs / "xl", protocol=Protocol(attention_length=5000))["loss"])  # of a memory that never fills


def test_the_verb_takes_the_protocol(runs):
    from typer.testing import CliRunner

    from formers.cli.app import app

    words = [
        "eval",
        str(runs / "xl"),
        "--protocol",
        "memory",
        "--attention-length",
        "32",
        "--segment",
        "8",
        "--clamp",
        "16",
        "--same-length",
    ]
    done = CliRunner().invoke(app, [*words, "--batch", "1", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1])["protocol"]
    assert said.startswith("segments of 8 tokens in 1 lane, each with the state of the one before (memory 32, same length, clamp 16), all")
    for wrong in (["--clamp", "0"], ["--attention-length", "-1"], ["--protocol", "windows"]):
        assert CliRunner().invoke(app, ["eval", str(runs / "xl"), *wrong]).exit_code == 2


def test_passages_are_not_a_running_text(xl):
    words = LastWord({"test": ["a b c"]}, 8, Bytes())
    assert apply_protocol(Protocol(kind="memory", attention_length=40), xl, words).model is xl


@sweep("segment", [1, 5, 64])
@sweep("member", ["rnn", "word-window"])
def test_a_carried_state_is_one_long_pass_whatever_the_segment(segment, member):
    torch.manual_seed(2)
    model = formers.create(member, vocab=256, dim=8, layers=2, length=16).double().eval()
    found = evaluated(model, kind="memory", segment=segment)
    assert found["loss"] == pytest.approx(long_pass(model, Causal()), abs=1e-10)
    assert found["protocol"].startswith(f"segments of {segment} tokens in 1 lane, each with the state of the one before, all")
    assert evaluated(model, kind="segments", segment=5)["loss"] != pytest.approx(found["loss"], abs=1e-6)
    for options in ({"attention_length": 4}, {"same_length": True}):
        with refused("state of fixed size", "leave it out"):
            evaluated(model, kind="memory", **options)
    assert Protocol().resolved_for(model.spec).kind == ("memory" if member == "rnn" else "segments")
