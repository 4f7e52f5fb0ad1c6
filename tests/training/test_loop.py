"""Training: it learns, it saves what it judged, it is the same every time, and mistakes are told before it starts."""

from __future__ import annotations

import json
import math

import pytest
import torch

import formers
from formers.training import evaluate_run
from formers.training.config import Settings
from helpers import refused

TINY = {"dim": 32, "heads": 2, "layers": 1, "length": 32, "batch": 8, "quiet": True}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij" * 400)
    return path


def test_a_decoder_learns_a_text_and_its_run_can_be_judged_again(text, tmp_path):
    model, results, _ = formers.train("decoder", text, tmp_path / "run", steps=60, learning_rate=1e-2, warmup=5, **TINY)
    assert results["bits_per_byte"] < 0.6  # chance is 8, the letters alone 3.3
    assert results["bits_per_byte"] == pytest.approx(results["loss"] / math.log(2))
    loaded = formers.load(tmp_path / "run")
    assert loaded.spec == model.spec
    assert loaded.tokenizer == model.tokenizer
    again = evaluate_run(tmp_path / "run")
    assert again["loss"] == pytest.approx(results["loss"], abs=1e-6)
    assert formers.generate(loaded, "abcd", max_new_tokens=6, temperature=0) == "abcdefghij"
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 61), 60]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["learning_rate"] == 1e-2


def test_the_same_seed_trains_the_same_weights(text):
    first, again, other = (formers.train("decoder", text, steps=4, seed=s, **TINY).model for s in (5, 5, 6))
    weights = [torch.cat([p.flatten() for p in m.parameters()]) for m in (first, again, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_an_encoder_learns_what_was_masked(text):
    options = {**TINY, "dim": 64, "layers": 2, "dropout": 0.0, "learning_rate": 3e-3, "warmup": 20}
    before = formers.train("encoder", text, steps=1, **options).results
    after = formers.train("encoder", text, steps=500, **options).results
    assert after["masked_bits_per_byte"] < 1.0 < before["masked_bits_per_byte"]
    assert "bits_per_byte" not in after


def test_a_transformer_learns_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(400)))
    done = formers.train(
        "transformer", path, tmp_path / "run", steps=120, learning_rate=3e-3, warmup=20, dropout=0.0, **{**TINY, "batch": 32}
    )
    assert done.results["exact_match"] > 0.95
    assert evaluate_run(tmp_path / "run")["exact_match"] == done.results["exact_match"]
    assert formers.generate(done.model, "123", temperature=0) == "odd"


def test_a_budget_of_minutes_is_kept(text):
    done = formers.train("decoder", text, minutes=0.02, **TINY)
    assert 1.2 <= done.results["seconds"] < 10
    assert done.results["steps"] >= 1


def test_judging_while_training_is_recorded(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=6, eval_every=3, **TINY)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "valid_loss" in line] == [3, 6]


def test_a_loss_that_is_not_finite_stops_the_run_and_ruins_nothing(text, tmp_path):
    good = formers.train("decoder", text, tmp_path / "run", steps=2, **TINY).model
    with refused("the loss is", "learning_rate"):
        formers.train("decoder", text, tmp_path / "run", steps=50, learning_rate=1e30, warmup=0, overwrite=True, **TINY)
    kept = formers.load(tmp_path / "run").state_dict()
    assert all(kept[name].equal(value) for name, value in good.state_dict().items())


def test_a_run_is_not_replaced_unless_asked_for(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=1, **TINY)
    before = {f.name: f.read_bytes() for f in (tmp_path / "run").iterdir()}
    with refused("holds a run already", "--overwrite"):
        formers.train("decoder", text, tmp_path / "run", steps=2, **TINY)
    assert {f.name: f.read_bytes() for f in (tmp_path / "run").iterdir()} == before


def test_a_stopped_run_keeps_what_it_learnt(text, tmp_path, monkeypatch):
    from formers.training import loop

    taken = loop.take_step

    def stop(*arguments):
        taken(*arguments)
        if arguments[0].step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "take_step", stop)
    with pytest.raises(KeyboardInterrupt):
        formers.train("decoder", text, tmp_path / "run", steps=50, **TINY)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["steps"] == 3
    assert formers.load(tmp_path / "run").spec.dim == TINY["dim"]


def test_mistakes_are_told_before_training_starts(text, tmp_path):
    with refused("no option 'layrs'", "'layers'"):
        formers.train("decoder", text, layrs=3)
    with refused("no member 'decodr'", "'decoder'"):
        formers.train("decodr", text)
    with refused("two budgets"):
        formers.train("decoder", text, steps=3, minutes=3)
    with refused("batch=0"):
        formers.train("decoder", text, batch=0)
    with refused("pairs", ".tsv"):
        formers.train("transformer", text)
    with refused("Classify"):
        formers.train("encoder", text, classes=3)
    with refused("vocab=100", "256"):
        formers.train("decoder", text, vocab=100)
    with refused("device='abacus'"):
        formers.train("decoder", text, device="abacus")
    (tmp_path / "file").write_text("x")
    with refused("cannot be made a folder"):
        formers.train("decoder", text, tmp_path / "file" / "run")
    with refused("not a saved model"):
        evaluate_run(tmp_path)


def test_settings_survive_json():
    settings = Settings(steps=3, schedule="constant")
    assert Settings(**json.loads(settings.model_dump_json())) == settings
