"""The training loop on the test device: one wait a step and a batch, the same numbers as on the CPU, resumed to the bit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import formers
from accelerator.device import NAME, Counts, use_test_device
from formers.core.devices import Capabilities, assume_capabilities
from formers.evaluation import evaluate
from formers.model.files import checkpoints
from formers.training import evaluate_run, prepare
from formers.training.config import Settings
from formers.training.device import pick_device
from formers.training.start import new_model
from formers.training.trainer import Trainer
from helpers import refused, sweep

SIZES = {"dim": 32, "heads": 2, "layers": 2, "length": 32}
TINY = {**SIZES, "batch": 4, "quiet": True, "track": "none", "sample_tokens": 0, "schedule": "constant", "warmup": 0}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcdefghij" * 400)
    return path


def steps_on(counts: Counts, text: Path, member: str, count: int = 3, **options: Any) -> Trainer:
    """A trainer after some steps on the device; the counts are those of the last step."""
    task = prepare(member, text, None, SIZES)
    loop = Trainer(new_model(task, pick_device(NAME)), task, Settings(batch=4, steps=8, **options))
    with loop._prefetch():
        for _ in range(count):
            counts.reset()
            loop.advance()
    return loop


@sweep(
    ("member", "options"),
    [
        ("decoder", {}),
        ("decoder", {"precision": "bf16"}),
        ("decoder", {"precision": "fp16"}),
        ("decoder", {"clip_each": 0.1, "optimizer": "momentum"}),
        ("decoder", {"accumulate": 2, "optimizer": "adagrad"}),
        ("encoder", {}),
        ("transformer-xl", {}),
        ("character-transformer", {}),
    ],
)
def test_a_step_waits_once_and_an_evaluated_batch_once(text: Path, member: str, options: dict[str, Any]) -> None:
    with use_test_device() as counts:
        loop = steps_on(counts, text, member, **options)
        assert counts.waits == 1, str(counts)
        assert "trainer.py" in next(iter(counts.waited))
        counts.reset()
        evaluate(loop.model, loop.task.batches, loop.task.tokenizer, 4, 3)
        assert counts.waits <= 3, str(counts)


@sweep("options", [{}, {"clip_each": 0.1}])
def test_it_trains_where_torch_lists_no_foreach_kernels(text: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """As on MPS, where functions of torch refuse foreach=True."""
    monkeypatch.setattr("torch.utils._foreach_utils._get_foreach_kernels_supported_devices", lambda: ["cuda"])
    with use_test_device(float64=False, flex=False) as counts:
        steps_on(counts, text, "decoder", **options)


def test_a_classifier_and_pairs_are_evaluated_with_one_wait_a_batch(tmp_path: Path) -> None:
    labelled, pairs = tmp_path / "labelled.tsv", tmp_path / "pairs.tsv"
    labelled.write_text("".join(f"number {i}\t{'even' if i % 2 == 0 else 'odd'}\n" for i in range(200)))
    pairs.write_text("".join(f"{'a' * (i % 9)}{i}\t{'b' * (i % 4)}{i}\n" for i in range(300)))
    with use_test_device() as counts:
        for member, data, sizes in (
            ("encoder", str(labelled), {}),
            ("transformer", str(pairs), {"layers": 1}),
            ("encoder", "task:addition,digits=2", {}),
        ):
            task = prepare(member, data, None, {"dim": 16, "heads": 2, **sizes})
            model = new_model(task, pick_device(NAME))
            counts.reset()
            evaluate(model, task.batches, task.tokenizer, 4, 3)
            assert counts.waits <= 3, f"{data}: {counts}"


def test_training_and_resuming_equal_one_run_and_nearly_the_cpu(text: Path, tmp_path: Path) -> None:
    with use_test_device():
        whole = formers.train("decoder", text, tmp_path / "whole", steps=6, dropout=0.1, **TINY)
        formers.train("decoder", text, tmp_path / "parts", steps=3, dropout=0.1, **TINY)
        again = formers.resume(tmp_path / "parts", steps=6, quiet=True)
        assert again.model.embedding.weight.device.type == NAME
    assert threading.active_count() == len([t for t in threading.enumerate() if not t.name.startswith("batches")])
    one, other = ((checkpoints(tmp_path / run)[0] / "model.safetensors").read_bytes() for run in ("whole", "parts"))
    assert one == other
    here = formers.train("decoder", text, steps=6, dropout=0.1, device="cpu", **TINY)
    assert here.results["loss"] == pytest.approx(whole.results["loss"], abs=1e-5)


def test_the_thread_makes_the_batches_and_ends_after_an_error(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    drawn = Trainer.host_batches

    def seen(self: Trainer, step: int) -> Any:
        names.append(threading.current_thread().name)
        if step == 4:
            raise RuntimeError("no batch 4")
        return drawn(self, step)

    monkeypatch.setattr(Trainer, "host_batches", seen)
    with use_test_device(), pytest.raises(RuntimeError, match="no batch 4"):
        formers.train("decoder", text, steps=8, **TINY)
    assert all(name.startswith("batches") for name in names)
    assert not any(thread.name.startswith("batches") for thread in threading.enumerate())
    names.clear()
    formers.train("decoder", text, steps=2, device="cpu", **TINY)
    assert set(names) == {threading.current_thread().name}  # on the host there is no thread


def test_ids_are_checked_before_the_copy(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = formers.create("decoder", vocab=11, **SIZES)
    wrong = torch.full((1, 4), 11)
    for batch, words in (({"tokens": wrong}, "token id 11"), ({"targets": wrong}, "target 11"), ({"targets": -wrong}, "target -11")):
        with refused(words, "10"):
            model.check_ids(batch)
    padding = torch.zeros(1, 4, dtype=torch.bool)
    model.check_ids({"targets": wrong, "mask": padding})  # targets at padding are not used
    pair = formers.create("transformer", vocab=11, **SIZES)
    for name in ("source", "target"):
        with refused("token id 11"):
            pair.check_ids({name: wrong})
    with use_test_device():
        task = prepare("decoder", text, None, SIZES)
        bad = task.spec.replace(vocab=100)  # the text has the bytes 97 ... 106
        loop = Trainer(new_model(task._replace(spec=bad), pick_device(NAME)), task, Settings(batch=4, steps=8))
        with refused("token id 10", "vocab=100"), loop._prefetch():
            loop.advance()
        with refused("vocab=100"):
            evaluate(loop.model, task.batches, task.tokenizer, 4, 1)


def test_a_plain_forward_reads_ids_only_with_the_debug_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    model = formers.create("decoder", vocab=11, **SIZES)
    tokens = torch.randint(11, (2, 8))
    with use_test_device() as counts:
        there = tokens.to(NAME)
        model.to(NAME)
        model(there, targets=there)
        counts.reset()
        model(there, targets=there)
        assert counts.waits == 0
        monkeypatch.setenv("FORMERS_DEBUG", "1")
        model(there, targets=there)
        assert counts.waits == 2  # tokens and targets
        for given in ({"tokens": there + 11}, {"tokens": there, "targets": there - 20}):
            with refused("0 ... 10"):
                model(**given)


def test_resume_keeps_the_device_and_refuses_if_it_is_absent(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with use_test_device():
        formers.train("decoder", text, run, steps=1, **TINY)
        assert json.loads((run / "run.json").read_text())["device"] == f"{NAME}:0"
        assert formers.resume(run, steps=2, quiet=True).model.embedding.weight.device.type == NAME
        with refused("testgpu:9", "there are 2", "testgpu:0 ... testgpu:1"):
            formers.resume(run, steps=3, device=f"{NAME}:9", quiet=True)
    with refused("trained on testgpu:0", "--device"):
        formers.resume(run, steps=3, quiet=True)
    assert formers.resume(run, steps=3, device="cpu", quiet=True).results["steps"] == 3
    assert json.loads((run / "run.json").read_text())["device"] == "cpu"


@sweep("name", ["cuda:1", "mps", "meta", "toaster", "cuda:x", ""])
def test_an_absent_device_is_refused(name: str) -> None:
    with refused(f"device={name!r}", "use cpu, or auto"):
        pick_device(name)


def test_several_processes_have_a_device_each() -> None:
    with use_test_device():
        assert pick_device("auto") == pick_device(NAME, 0) == torch.device(NAME, 0)
        with refused("testgpu:9", "fewer processes"):
            pick_device(NAME, 9)
        with refused("one device for several processes"):
            pick_device(f"{NAME}:0", 1)


def test_evaluating_in_another_precision(text: Path, tmp_path: Path) -> None:
    with use_test_device():
        formers.train("decoder", text, tmp_path / "run", steps=2, precision="fp16", **TINY)
        full, half, short = (evaluate_run(tmp_path / "run", precision=name) for name in ("float32", "fp16", "bf16"))
    here = evaluate_run(tmp_path / "run", device="cpu")
    assert full["loss"] == pytest.approx(here["loss"], abs=1e-6)
    assert 0 < abs(half["loss"] - full["loss"]) < abs(short["loss"] - full["loss"]) < 1e-2
    assert str(short["protocol"]).endswith("in bf16")
    with refused("precision='half'"):
        evaluate_run(tmp_path / "run", precision="half")
    with refused("precision=fp16", "GPU"):
        evaluate_run(tmp_path / "run", precision="fp16", device="cpu")


def settings_now() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@sweep("on", [True, False])
def test_tf32_is_on_in_training_and_off_in_evaluation(text: Path, monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    seen: dict[str, set[tuple[str, bool]]] = {"step": set(), "evaluation": set()}
    step, batches = Trainer.train_step, formers.Model.check_ids
    before = settings_now()

    def stepping(self: Trainer, micro: Any) -> Any:
        seen["step"].add(settings_now())
        return step(self, micro)

    def checking(self: Any, batch: Any) -> None:
        if threading.current_thread() is threading.main_thread():  # not of the thread that makes batches
            seen["evaluation"].add(settings_now())
        batches(self, batch)

    monkeypatch.setattr(Trainer, "train_step", stepping)
    monkeypatch.setattr(formers.Model, "check_ids", checking)
    with use_test_device(), assume_capabilities(NAME, Capabilities(flex=True, tf32=True)):
        formers.train("decoder", text, steps=2, tf32=on, **TINY)
    assert seen == {"step": {("high" if on else "highest", on)}, "evaluation": {("highest", False)}}
    assert settings_now() == before
    formers.train("decoder", text, steps=1, tf32=on, device="cpu", **TINY)  # without effect where there is no TF32
    assert settings_now() == before


def test_runs_without_the_setting_are_read() -> None:
    stored = {name: value for name, value in dict(Settings()).items() if name != "tf32"}
    assert Settings(**stored).tf32
