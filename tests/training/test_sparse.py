"""Training the Sparse Transformer: in bf16 through pieces, with checkpointing, and on images."""

from __future__ import annotations

import gzip
import hashlib
import math

import numpy as np
import pytest
import torch

import formers
from formers.attention.executors import blocked
from formers.data.catalogue import IMAGES, Images, Package
from formers.model import build
from formers.model.files import checkpoints
from formers.training import evaluate_run, prepare
from formers.training.config import Settings
from formers.training.trainer import Trainer
from helpers import refused

TINY = {"dim": 32, "heads": 2, "layers": 2, "batch": 4, "quiet": True, "track": "none", "sample_tokens": 0}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 200)
    return path


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_bf16_goes_through_pieces_in_both_directions(text, pattern, monkeypatch):
    ran = []

    def note(*given):
        ran.append(given[0].dtype)
        return run(*given)

    run = blocked.operation
    monkeypatch.setattr(blocked, "operation", note)
    sizes = {"dim": 32, "heads": 2, "layers": 2, "length": 1024, "pattern": pattern, "stride": 32}
    task = prepare("sparse-transformer", text, None, sizes)
    losses = []
    for precision in ("float32", "bf16"):
        torch.manual_seed(0)
        loop = Trainer(build(task.spec).train(), task, Settings(batch=2, steps=5, warmup=0, learning_rate=1e-2, precision=precision))
        steps = [loop.advance()[0] for _ in range(4)]
        assert all(step.taken for step in steps)
        losses.append(steps[-1].loss)
    assert set(ran) == {torch.float32, torch.bfloat16}
    assert losses[0] < 0.9 * math.log(256)
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]


def test_checkpointing_trains_the_same_weights_and_is_remembered(text, tmp_path):
    for name, on in (("plain", False), ("less", True)):
        options = {**TINY, "length": 64, "dropout": 0.2, "checkpoint": on}
        formers.train("sparse-transformer", text, tmp_path / name, steps=3, **options)
        formers.resume(tmp_path / name, steps=5, quiet=True)
    plain, less = ((checkpoints(tmp_path / name)[0] / "model.safetensors").read_bytes() for name in ("plain", "less"))
    assert plain == less
    assert "checkpoint: true" in (tmp_path / "less" / "run.yaml").read_text()


@pytest.fixture
def stripes(tmp_path, monkeypatch):
    """A set of images of 6 x 5 bytes, each with rows of two values by turns."""
    chosen = np.random.default_rng(0).integers(0, 8, (300, 2, 1), dtype=np.uint8) * 30
    images = np.repeat(np.tile(chosen, (1, 3, 1)), 5, axis=2)
    content = bytes([0, 0, 8, 3, 0, 0, 1, 44, 0, 0, 0, 6, 0, 0, 0, 5]) + images.tobytes()
    package = Package({"it": "sha256:" + hashlib.sha256(content).hexdigest()}, (), ("it.gz",))
    parts = {"train": (("it", 0, 260),), "valid": (("it", 260, 280),), "test": (("it", 280, 300),)}
    monkeypatch.setitem(IMAGES, "stripes", Images((package,), "idx", (6, 5, 1), parts))
    (tmp_path / "stripes").mkdir()
    (tmp_path / "stripes" / "it.gz").write_bytes(gzip.compress(content))
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path))
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))


def test_images_are_trained_on_and_evaluated_in_bits_per_dimension(stripes, tmp_path):
    done = formers.train("sparse-transformer", "stripes", tmp_path / "run", steps=3, **TINY)
    spec = done.model.spec
    assert (spec.length, spec.vocab) == (30, 256)
    assert spec.pattern == formers.patterns.Strided(stride=5)
    assert done.results["bits_per_dimension"] == pytest.approx(done.results["loss"] / math.log(2))
    assert done.results["targets"] == 20 * 30, "the first value of an image counts, too"
    assert done.results["protocol"] == "all 20 images of valid"
    formers.resume(tmp_path / "run", steps=150, quiet=True)
    after = evaluate_run(tmp_path / "run", part="test")
    assert after["bits_per_dimension"] < 2.5 < done.results["bits_per_dimension"], "of eight values, 3 at the most"
    drawn = formers.sample_images(formers.load(tmp_path / "run"), 2, seed=1)
    assert drawn.images.shape == (2, 6, 5, 1)


def test_other_members_read_images_too_and_what_does_not_fit_is_refused(stripes, tmp_path):
    done = formers.train("decoder", "stripes", steps=1, **TINY)
    assert done.model.spec.length == 30
    for member in ("decoder", "sparse-transformer"):
        with refused("length=31", "30"):
            formers.train(member, "stripes", steps=1, **TINY, length=31)
    with refused("height=4", "6"):
        formers.train("sparse-transformer", "stripes", steps=1, **TINY, height=4)
    with refused("tokens=bpe", "images"):
        formers.train("decoder", "stripes", steps=1, **TINY, tokens="bpe")
    for more in ({}, {"classes": 3}):
        with refused("encoder", "images"):
            formers.train("encoder", "stripes", steps=1, **TINY, **more)
