"""Training: it learns, it saves what it evaluated, it is the same every time, and mistakes are reported before it starts."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

import formers
from formers.model import build
from formers.model.files import checkpoints
from formers.training import evaluate_run, prepare
from formers.training.config import Settings
from formers.training.trainer import Trainer
from helpers import close, refused

compiled = torch.compile

TINY = {"dim": 32, "heads": 2, "layers": 1, "length": 32, "batch": 8, "quiet": True, "track": "none", "sample_tokens": 0}


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def weights(run):
    return (checkpoints(run)[0] / "model.safetensors").read_bytes()


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij" * 400)
    return path


def test_a_decoder_learns_a_text_and_its_run_can_be_evaluated_again(text, tmp_path):
    model, results, _ = formers.train("decoder", text, tmp_path / "run", steps=60, learning_rate=1e-2, warmup=5, **TINY)
    assert results["bits_per_byte"] < 0.6  # chance is 8, the letters alone 3.3
    assert results["bits_per_byte"] == pytest.approx(results["loss"] / math.log(2))
    loaded = formers.load(tmp_path / "run")
    assert loaded.spec == model.spec
    assert loaded.tokenizer == model.tokenizer
    again = evaluate_run(tmp_path / "run")
    assert again["loss"] == pytest.approx(results["loss"], abs=1e-6)
    assert formers.generate(loaded, "abcd", max_new_tokens=6, temperature=0) == "abcdefghij"
    assert [line["step"] for line in metrics(tmp_path / "run") if "norm" in line] == list(range(1, 61))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["learning_rate"] == 1e-2


def test_the_same_seed_trains_the_same_weights(text):
    first, again, other = (formers.train("decoder", text, steps=4, seed=s, **TINY).model for s in (5, 5, 6))
    weights = [torch.cat([p.flatten() for p in m.parameters()]) for m in (first, again, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


@pytest.mark.slow
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


def test_evaluating_while_training_is_recorded(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=7, eval_every=3, **TINY)
    evaluated = [line for line in metrics(tmp_path / "run") if "valid_loss" in line]
    assert [line["step"] for line in evaluated] == [3, 6, 7]
    assert all(line["valid_bits_per_byte"] == pytest.approx(line["valid_loss"] / math.log(2)) for line in evaluated)


def test_by_default_a_run_is_evaluated_ten_times_and_shows_what_it_writes(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=40, **{**TINY, "sample_tokens": 5})
    lines = metrics(tmp_path / "run")
    assert [line["step"] for line in lines if "valid_loss" in line] == list(range(4, 41, 4))
    assert all(line["sample"] for line in lines if "sample" in line)
    assert len([line for line in lines if "sample" in line]) == 10


def test_a_loss_that_is_not_finite_stops_the_run_and_ruins_nothing(text, tmp_path):
    with refused("the loss is", "learning_rate", f"--from {tmp_path / 'run'}"):
        options = {**TINY, "sample_tokens": 20, "eval_every": 1}
        formers.train("decoder", text, tmp_path / "run", steps=50, learning_rate=1e30, warmup=0, save_every=1, **options)
    kept = formers.load(tmp_path / "run")
    assert all(bool(p.isfinite().all()) for p in kept.parameters())
    skipped = [line for line in metrics(tmp_path / "run") if line.get("skipped")]
    assert len(skipped) == 3
    assert (tmp_path / "run" / skipped[0]["batch"]).exists()


def test_a_run_is_not_replaced_unless_asked_for(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=1, **TINY)
    before = {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
    with refused("contains a run", "--overwrite", "formers resume"):
        formers.train("decoder", text, tmp_path / "run", steps=2, **TINY)
    assert {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()} == before
    formers.train("decoder", text, tmp_path / "run", steps=2, overwrite=True, **TINY)
    assert checkpoints(tmp_path / "run")[0].name == "step-00000002"


def everything(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file() and f.name != "lock"}


def test_a_run_that_is_replaced_comes_back_where_the_new_one_cannot_begin(text, tmp_path, monkeypatch):
    formers.train("decoder", text, tmp_path / "run", steps=2, **TINY)
    before = everything(tmp_path / "run")
    with refused("'carrier-pigeon'"):
        formers.train("decoder", text, tmp_path / "run", steps=3, overwrite=True, **{**TINY, "track": "carrier-pigeon"})
    assert everything(tmp_path / "run") == before

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("formers.training.checkpoint.write_through", full)
        with refused("No space left", "train again"):
            formers.train("decoder", text, tmp_path / "new", steps=3, **TINY)
        assert not (tmp_path / "new").exists()
        with refused("No space left"):
            formers.train("decoder", text, tmp_path / "run", steps=3, overwrite=True, **TINY)
    assert everything(tmp_path / "run") == before


def test_files_that_are_no_runs_are_left_alone(text, tmp_path):
    mine = tmp_path / "project"
    (mine / "ckpt").mkdir(parents=True)
    (mine / "ckpt" / "mine.txt").write_text("dear to me")
    (mine / "notes.txt").write_text("too")
    before = everything(mine)
    with refused("contains ckpt", "--out"):
        formers.train("decoder", text, mine, steps=1, overwrite=True, **TINY)
    with refused("out is empty"):
        formers.train("decoder", text, "", steps=1, **TINY)
    assert everything(mine) == before
    (mine / "ckpt" / "mine.txt").unlink()
    (mine / "ckpt").rmdir()
    formers.train("decoder", text, mine, steps=1, **TINY)
    assert (mine / "notes.txt").read_text() == "too"


def test_a_file_of_ones_own_is_evaluated_whole(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=1, **TINY)
    (tmp_path / "other.txt").write_bytes(b"abcdefghij" * 20)
    assert evaluate_run(tmp_path / "run", str(tmp_path / "other.txt"))["bytes"] == 199
    assert evaluate_run(tmp_path / "run", str(text))["bytes"] == evaluate_run(tmp_path / "run")["bytes"] == 199  # held out of 4000
    (tmp_path / "labelled.tsv").write_text("".join(f"number {i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(200)))
    (tmp_path / "test.tsv").write_text("odd\tnumber 7\neven\tnumber 8\n")
    formers.train("encoder", tmp_path / "labelled.tsv", tmp_path / "classifier", steps=1, **TINY)
    assert evaluate_run(tmp_path / "classifier", str(tmp_path / "test.tsv"))["targets"] == 2


def test_a_masked_model_learns_to_classify(text, tmp_path):
    formers.train("encoder", text, tmp_path / "read", steps=2, **TINY)
    (tmp_path / "labelled.tsv").write_text("".join(f"number {i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(200)))
    few = {"steps": 1, "learning_rate": 1e-9, "quiet": True, "track": "none", "batch": 8}
    done = formers.train("encoder", tmp_path / "labelled.tsv", tmp_path / "classifier", from_run=tmp_path / "read", **few)
    read = formers.load(tmp_path / "read")
    assert "accuracy" in done.results
    assert torch.allclose(done.model.embedding.weight, read.embedding.weight, atol=1e-6)
    assert formers.load(tmp_path / "classifier").labels == ("even", "odd")
    with refused("preset=base", "--from"):
        formers.train("encoder", text, from_run=tmp_path / "read", preset="base", **few)


def test_a_run_can_be_loaded_while_it_prunes(text, tmp_path, monkeypatch):
    formers.train("decoder", text, tmp_path / "run", steps=3, save_every=1, **TINY)
    from formers.model import save

    real, gone = save.load_weights, []

    def vanish(model, folder, **options):
        if not gone:
            gone.append(folder)
            shutil.rmtree(folder)
        real(model, folder, **options)

    monkeypatch.setattr(save, "load_weights", vanish)
    assert formers.load(tmp_path / "run").spec.dim == 32
    assert gone


def test_a_mistake_leaves_no_folder_behind(tmp_path):
    with refused("nowhere.txt"):
        formers.train("decoder", tmp_path / "nowhere.txt", tmp_path / "runs" / "one", steps=1, **TINY)
    assert not (tmp_path / "runs" / "one").exists()


def test_more_budget_goes_on_as_if_it_had_been_given_at_once(text, tmp_path):
    options = {**TINY, "dropout": 0.1, "schedule": "constant", "warmup": 0}
    formers.train("decoder", text, tmp_path / "whole", steps=9, **options)
    formers.train("decoder", text, tmp_path / "parts", steps=4, **options)
    with refused("has spent its budget", "--steps"):
        formers.resume(tmp_path / "parts", quiet=True)
    done = formers.resume(tmp_path / "parts", steps=9, quiet=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    steps = [line["step"] for line in metrics(tmp_path / "parts") if "norm" in line]
    assert steps == list(range(1, 10))
    assert done.results["steps"] == 9
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["settings"]["steps"] == 9


def test_a_reversible_stack_learns_and_goes_on_bit_for_bit(text, tmp_path):
    options = {**TINY, "norm": "reversible", "layers": 2, "dropout": 0.1, "schedule": "constant", "warmup": 0, "learning_rate": 0.01}
    formers.train("decoder", text, tmp_path / "whole", steps=12, **options)
    formers.train("decoder", text, tmp_path / "parts", steps=5, **options)
    formers.resume(tmp_path / "parts", steps=12, quiet=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    losses = [line["loss"] for line in metrics(tmp_path / "parts") if "norm" in line]
    assert losses[-1] < 0.7 * losses[0]
    loaded = formers.load(tmp_path / "parts")
    assert loaded.spec.residual == formers.residual.Reversible()
    assert formers.generate(loaded, "abc", max_new_tokens=4, temperature=0)


@pytest.mark.parametrize("how", [{"optimizer": "momentum", "momentum": 0.99}, {"optimizer": "adagrad", "clip_each": 0.03}], ids=str)
def test_every_optimiser_goes_on_bit_for_bit(how, text, tmp_path):
    options = {**TINY, "dropout": 0.1, "schedule": "constant", "warmup": 0, "learning_rate": 0.01, **how}
    formers.train("decoder", text, tmp_path / "whole", steps=6, **options)
    formers.train("decoder", text, tmp_path / "parts", steps=3, **options)
    formers.resume(tmp_path / "parts", steps=6, quiet=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    losses = [line["loss"] for line in metrics(tmp_path / "parts") if "norm" in line]
    assert losses[-1] < losses[0]


def test_a_run_with_auxiliary_losses_keeps_what_training_needs_and_gives_what_inference_needs(text, tmp_path):
    options = {**TINY, "layers": 3, "schedule": "constant", "warmup": 0}
    whole = formers.train("character-transformer", text, tmp_path / "whole", steps=6, save_every=1, keep=9, **options)
    for folder in checkpoints(tmp_path / "whole")[:3]:  # as if it had been stopped half-way
        shutil.rmtree(folder)
    resumed = shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    facts = json.loads((resumed / "run.json").read_text())
    (resumed / "run.json").write_text(json.dumps({**facts, "finished": False}))
    formers.resume(resumed, quiet=True)
    found = dict(whole.model.state_dict())
    again = formers.load(resumed)
    assert again.spec == whole.model.spec.deployed() != whole.model.spec
    assert again.state_dict().keys() < found.keys()
    assert all(found[name].equal(value) for name, value in again.state_dict().items())
    lines = [line for line in metrics(resumed) if "norm" in line]
    assert [line.get("intermediate") is not None for line in lines] == [True, True, False, False, False, False]
    assert all(line["loss"] == pytest.approx(line["cross_entropy"] + line["future"] + line.get("intermediate", 0)) for line in lines)
    assert whole.results["loss"] == pytest.approx(evaluate_run(resumed)["loss"], abs=1e-6)
    few = {"steps": 1, "learning_rate": 1e-6, "quiet": True, "track": "none", "batch": 8, "sample_tokens": 0}
    assert formers.train("character-transformer", text, from_run=resumed, **few).model.auxiliary is not None
    again.save_pretrained(tmp_path / "saved")
    assert formers.train("character-transformer", text, from_run=tmp_path / "saved", **few).model.auxiliary is None


def test_a_budget_that_is_spent_already_is_refused(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=3, **TINY)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with refused("at step 3 already", "from the start"):
        formers.resume(tmp_path / "run", steps=2, quiet=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_characters_without_a_line_break_can_be_trained_and_written(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab ba " * 200)
    done = formers.train("decoder", path, tmp_path / "run", steps=2, tokens="characters", **{**TINY, "sample_tokens": 4})
    assert len(formers.generate(formers.load(tmp_path / "run"), "", max_new_tokens=5, seed=0)) == 5
    assert done.model.spec.vocab == 3
    with refused("'x'", "position 1"):
        formers.generate(done.model, "ax")


@pytest.mark.parametrize("tokens", ["characters", "bpe"])
def test_a_run_with_a_vocabulary_goes_on_with_it(text, tokens, tmp_path):
    options = {**TINY, "schedule": "constant", "tokens": tokens, **({"vocab": 300} if tokens == "bpe" else {})}
    formers.train("decoder", text, tmp_path / "whole", steps=6, **options)
    formers.train("decoder", text, tmp_path / "parts", steps=3, **options)
    formers.resume(tmp_path / "parts", steps=6, quiet=True)
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    again = evaluate_run(tmp_path / "parts", size=8)
    assert 0 < again["bytes"] < 200  # all but those of the first token
    assert formers.load(tmp_path / "parts").tokenizer.vocab == formers.load(tmp_path / "parts").spec.vocab


def test_labels_go_with_the_run(tmp_path):
    path = tmp_path / "labelled.tsv"
    path.write_text("".join(f"number {i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(200)))
    done = formers.train("encoder", path, tmp_path / "run", steps=2, **TINY)
    assert 0 <= done.results["accuracy"] <= 1
    assert formers.load(tmp_path / "run").labels == ("even", "odd")
    assert formers.resume(tmp_path / "run", steps=3, quiet=True).results["steps"] == 3


def test_changed_data_are_not_evaluated_as_if_they_were_the_same(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=1, **TINY)
    text.write_bytes(text.read_bytes()[:-10] + b"0123456789")
    with refused("have changed", "--data"):
        evaluate_run(tmp_path / "run")
    other = shutil.copy(text, tmp_path / "copy.txt")
    assert evaluate_run(tmp_path / "run", str(other))["bytes"] == 3999


def test_changed_data_are_not_resumed_on(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=1, **TINY)
    text.write_bytes(text.read_bytes()[:-10] + b"0123456789")
    with refused("have changed since the run started", str(text)):
        formers.resume(tmp_path / "run", steps=2, quiet=True)


THINKING = {"steps": 4, "act": "graves", "ponder": 0.5, "halt_bias": -1.0}


@pytest.mark.parametrize(
    ("member", "data", "options"),
    [
        ("transformer", None, {"heads": 2, "layers": 1}),
        ("universal-transformer", None, {"heads": 2, "decoder_steps": 3, **THINKING}),  # the price of thinking is a mean over tokens,
        ("universal-transformer", "task:addition,digits=4", {"heads": 2, **THINKING}),  # more of which are read than asked for
        ("act-rnn", "task:addition,digits=2", THINKING),
    ],
)
def test_pieces_give_the_gradient_of_the_whole_batch(tmp_path, member, data, options):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{'a' * (i % 9)}{i}\t{'b' * (i % 4)}{i}\n" for i in range(300)))
    task = prepare(member, data or path, None, {"dim": 16, "dropout": 0.0, **options})
    found = []
    for pieces in (1, 3, 7):
        torch.manual_seed(0)
        loop = Trainer(build(task.spec).double().train(), task, Settings(batch=7, accumulate=pieces, clip=1e9))
        for unit in (module.unit for module in loop.model.modules() if hasattr(module, "unit")):
            torch.nn.init.normal_(unit.weight)  # which starts at 0: tokens would all halt at once
        done = loop.train_step(loop.micro_batches())
        found.append([torch.tensor([done.loss, *done.terms.values()]).double(), *(p.grad for p in loop.model.parameters())])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            close(a, b)


def test_bf16_learns_and_leaves_the_weights_in_float32(text, tmp_path):
    plain = formers.train("decoder", text, steps=30, learning_rate=1e-2, warmup=5, **TINY)
    half = formers.train("decoder", text, tmp_path / "run", steps=30, learning_rate=1e-2, warmup=5, precision="bf16", **TINY)
    assert half.results["loss"] == pytest.approx(plain.results["loss"], abs=0.2)
    assert half.results["loss"] != plain.results["loss"]
    assert all(p.dtype == torch.float32 for p in formers.load(tmp_path / "run").parameters())
    with refused("precision=fp16", "GPU"):
        formers.train("decoder", text, steps=1, precision="fp16", **TINY)


def test_fp16_scales_the_loss_and_an_overflow_is_no_bad_step(text):
    task = prepare("decoder", text, None, {"dim": 16, "heads": 2, "layers": 1, "length": 8})
    loop = Trainer(build(task.spec).train(), task, Settings(batch=4, precision="fp16"))
    assert loop.scaler.enabled
    before = loop.scaler.scale
    weight = loop.model.embedding.weight.detach().clone()
    handle = loop.model.embedding.weight.register_hook(lambda g: g * float("inf"))
    done, _ = loop.advance()
    assert not done.taken
    assert not done.bad
    assert loop.bad == 0
    assert loop.scaler.scale < before
    assert loop.model.embedding.weight.equal(weight), "a step that overflowed must not move the weights"
    handle.remove()
    loop.advance()
    assert not loop.model.embedding.weight.equal(weight)


@pytest.mark.slow
def test_a_compiled_step_is_the_same_step(text, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda m, **sizes: compiled(m, backend="aot_eager", **sizes))
    found = [formers.train("decoder", text, steps=3, compile=c, **TINY).results["loss"] for c in (False, True)]
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_a_run_can_begin_with_the_weights_of_another(text, tmp_path):
    first = formers.train("decoder", text, tmp_path / "one", steps=40, learning_rate=1e-2, warmup=5, **TINY)
    few = {"steps": 1, "learning_rate": 1e-6, "quiet": True, "track": "none", "batch": 8, "sample_tokens": 0}
    second = formers.train("decoder", text, tmp_path / "two", from_run=tmp_path / "one", dropout=0.1, **few)
    assert second.results["loss"] == pytest.approx(first.results["loss"], abs=1e-2)
    assert second.model.spec == first.model.spec.replace(dropout=0.1)
    with refused("layers=3", "--from"):
        formers.train("decoder", text, from_run=tmp_path / "one", layers=3, **few)
    with refused("a run of decoder", "encoder"):
        formers.train("encoder", text, from_run=tmp_path / "one", **few)


def test_the_best_checkpoint_can_be_loaded(text, tmp_path):
    formers.train("decoder", text, tmp_path / "run", steps=12, eval_every=2, learning_rate=1e-2, warmup=1, schedule="constant", **TINY)
    evaluated = {line["step"]: line["valid_loss"] for line in metrics(tmp_path / "run") if "valid_loss" in line}
    best = evaluate_run(tmp_path / "run", checkpoint="best", size=8)
    assert best["loss"] == pytest.approx(min(evaluated.values()), abs=1e-6)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["results"]["best_step"] == min(evaluated, key=evaluated.get)


def test_memory_that_runs_out_is_reported_with_what_helps(text, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(Trainer, "train_step", run_out)
    with refused("memory", "batch=8", "accumulate"):
        formers.train("decoder", text, steps=2, **TINY)


def test_mistakes_are_reported_before_training_starts(text, tmp_path):
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
    with refused("no labels", ".tsv"):
        formers.train("encoder", text, classes=3)
    with refused("vocab=100", "256"):
        formers.train("decoder", text, vocab=100)
    with refused("device='abacus'"):
        formers.train("decoder", text, device="abacus")
    (tmp_path / "file").write_text("x")
    with refused("cannot be written to"):
        formers.train("decoder", text, tmp_path / "file" / "run")
    with refused("not a saved model"):
        evaluate_run(tmp_path)


def test_settings_survive_json():
    settings = Settings(steps=3, schedule="constant")
    assert Settings(**json.loads(settings.model_dump_json())) == settings


SPANS = {**TINY, "span": 40, "ramp": 8, "steps": 12}


def spans_of(model):
    return [block.attention.score for block in model.stack.depth.blocks]


def test_spans_stay_within_their_bounds(text, tmp_path):
    """A rate so high that a step goes from one end to the other; half-way the run is resumed, and ends the same."""
    options = {**SPANS, "learning_rate": 0.5, "warmup": 0, "init": 0.5, "eval_every": 5}
    whole = formers.train("adaptive-span", data=text, out=tmp_path / "whole", **options)
    spans = torch.stack([score.spans().detach() for score in spans_of(whole.model)])
    assert ((spans >= 0) & (spans <= SPANS["span"])).all()
    assert any(((score.share < 0) | (score.share > 1)).any() for score in spans_of(whole.model)), "no parameter left its bounds"
    formers.train("adaptive-span", data=text, out=tmp_path / "half", **{**options, "steps": 5, "schedule": "constant"})
    formers.train("adaptive-span", data=text, out=tmp_path / "one", **{**options, "schedule": "constant"})
    formers.resume(tmp_path / "half", steps=12, quiet=True)
    assert weights(tmp_path / "half") == weights(tmp_path / "one")


@pytest.mark.parametrize("member", ["transformer-xl", "adaptive-span"])
def test_tables_that_evaluating_keeps_do_not_outlive_a_step(text, member):
    """Fused optimisers do not count the versions of what they change: a table kept from before the step must not serve after it."""
    task = prepare(member, text, None, {"dim": 32, "heads": 2, "layers": 1, "length": 32})
    loop = Trainer(build(task.spec), task, Settings(steps=9, batch=4, learning_rate=0.1, warmup=0))
    tokens = torch.randint(256, (1, 20))
    with torch.no_grad():
        loop.model(tokens)
    loop.advance()
    with torch.no_grad():
        after = loop.model(tokens).logits
        again = build(task.spec)
        again.load_state_dict(loop.model.state_dict())
        close(after, again(tokens).logits, 1e-5)
