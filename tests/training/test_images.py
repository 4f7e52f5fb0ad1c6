"""Members train on images: every one that may, saved, resumed bit for bit, evaluated in bits per dimension, and drawn from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import formers
from formers.data.images import ImageBatches
from formers.data.images.batches import scaled_down
from formers.data.reading import Reading
from formers.evaluation.evaluate import evaluate
from formers.generation import sample_images
from formers.generation.images import cells_of
from formers.training import evaluate_run
from formers.training.task import prepare
from helpers import refused, sweep

TINY: dict[str, Any] = {"dim": 8, "heads": 2, "layers": 1, "dropout": 0.1}
STEPS: dict[str, Any] = {"batch": 4, "save_every": 2, "schedule": "constant", "warmup": 0, "quiet": True}
LEVELS = 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache folder, and no folder of data."""
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FORMERS_DATA", raising=False)


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    """40 images of 4 x 4 pixels with 4 levels and three classes."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=40)
    np.savez(tmp_path / "grey.npz", images=random.integers(LEVELS, size=(40, 4, 4)).astype(np.uint8), labels=labels)
    return tmp_path / "grey.npz"


@pytest.fixture
def colour(tmp_path: Path) -> Path:
    """40 images of 4 x 4 x 3 channel values."""
    np.save(tmp_path / "colour.npy", np.random.default_rng(0).integers(LEVELS, size=(40, 4, 4, 3)).astype(np.uint8))
    return tmp_path / "colour.npy"


MEMBERS: list[tuple[str, str, dict[str, Any]]] = [
    ("image-transformer", "grey", {}),
    ("image-transformer", "colour", {"query_block": 3, "memory_block": 4}),
    ("image-transformer", "colour", {"layout": "2d", "query_block": (2, 3), "memory_block": (1, 1)}),
    ("image-transformer", "colour", {"head": "mixture", "mixtures": 2}),
    ("image-transformer", "grey", {"condition": "class"}),
    ("image-transformer", "grey", {"condition": "small"}),
    ("image-transformer", "colour", {"condition": "grey", "head": "mixture", "mixtures": 2}),
    ("decoder", "colour", {}),
    ("decoder", "grey", {"condition": "class"}),
    ("sparse-transformer", "colour", {}),
    ("sparse-transformer", "grey", {"head": "mixture", "mixtures": 3}),
    ("reformer", "grey", {"chunk": 4}),
    ("transformer-xl", "grey", {"memory": 16}),
]


def same_weights(one: formers.Model, other: formers.Model) -> None:
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


@pytest.mark.parametrize(("member", "data", "options"), MEMBERS)
def test_a_member_trains_goes_on_bit_for_bit_and_draws(
    member: str, data: str, options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(data)
    sizes = {**TINY, **options, "levels": LEVELS}
    whole = formers.train(member, path, tmp_path / "whole", steps=4, **sizes, **STEPS)
    assert isinstance(whole.task.batches, ImageBatches)
    formers.train(member, path, tmp_path / "parts", steps=2, **sizes, **STEPS)
    parts = formers.resume(tmp_path / "parts", steps=4, quiet=True)
    same_weights(whole.model, parts.model)
    assert whole.results["bits_per_dimension"] == parts.results["bits_per_dimension"]
    found = evaluate_run(tmp_path / "parts")
    assert abs(float(found["bits_per_dimension"]) - float(whole.results["bits_per_dimension"])) < 1e-6
    assert {"marginal_bits_per_dimension", "context_bits_per_dimension"} <= found.keys()
    assert "nats_per_image" not in found
    model = formers.load(tmp_path / "parts")
    cells, valid = cells_of(model.spec), whole.task.batches.parts["valid"]
    given: dict[str, Any] = {}
    if model.spec.labels is not None:
        given["label"] = 2
    if cells.source == "small":
        given["source"] = scaled_down(valid.images[:1], 2, 2)
    elif cells.source == "grey":
        given["source"] = valid.images[:1, ..., :1]
    drawn = sample_images(model, 2, seed=0, **given)
    assert drawn.images.shape == (2, 4, 4, 3 if data == "colour" else 1)
    assert drawn.nats is not None
    if not given:
        stream = cells.stream(drawn.images)
        with torch.no_grad():
            nats = model.eval().head.token_losses(model(cells.inputs(stream)).hidden, model.embedding, stream).sum(dim=1)
        assert (nats - drawn.nats).abs().max() < 1e-5 * drawn.images[0].numel(), "one pass and the cache disagree"


def test_bits_per_dimension_are_of_every_channel_value(colour: Path) -> None:
    """A model whose head is zero needs exactly log2 of the levels, or what a mixture without information needs."""
    task = prepare("image-transformer", colour, options={**TINY, "levels": LEVELS})
    model = formers.build(task.spec).eval()
    with torch.no_grad():
        model.head.weight.zero_()
    found = evaluate(model, task.batches, None, 3)
    assert abs(float(found["bits_per_dimension"]) - 2.0) < 1e-6
    assert found["targets"] == len(task.batches.parts["valid"]) * 48
    task = prepare("image-transformer", colour, options={**TINY, "levels": LEVELS, "head": "mixture"})
    model = formers.build(task.spec).double().eval()
    found = evaluate(model, task.batches, None, 3)
    images = task.batches.parts["valid"].images
    batch = task.batches.cells.batch(images, None)
    with torch.no_grad():
        nats = model.head.token_losses(model(batch["tokens"]).hidden, model.embedding, batch["targets"]).sum()
    assert abs(float(found["bits_per_dimension"]) - float(nats) / images.numel() / math.log(2)) < 1e-6


def test_binary_images_give_nats_per_image(tmp_path: Path) -> None:
    np.save(tmp_path / "binary.npy", np.random.default_rng(0).integers(2, size=(30, 3, 3)).astype(bool))
    made = formers.train("image-transformer", tmp_path / "binary.npy", tmp_path / "run", steps=2, **TINY, **STEPS)
    assert made.model.spec.vocab == 2
    found = evaluate_run(tmp_path / "run")
    assert abs(float(found["nats_per_image"]) - float(found["bits_per_dimension"]) * 9 * math.log(2)) < 1e-6
    assert {"marginal_nats_per_image", "context_nats_per_image"} <= found.keys()


def test_batches_are_streams_shifted_by_one(colour: Path) -> None:
    options = {**TINY, "levels": LEVELS, "layout": "2d", "query_block": (2, 3)}
    task = prepare("image-transformer", colour, options=options)
    assert isinstance(task.batches, ImageBatches)
    (batch,) = task.batches.eval_batches(64)
    images = task.batches.parts["valid"].images
    raster = task.spec.image
    assert raster is not None
    for n, image in enumerate(images):
        cells = [int(image[raster.cell(t)]) for t in range(48)]
        assert batch["targets"][n].tolist() == cells
        assert batch["tokens"][n, 1:].tolist() == cells[:-1]
    mixture = prepare("image-transformer", colour, options={**options, "head": "mixture"})
    (pixels,) = mixture.batches.eval_batches(64)
    assert pixels["targets"].shape == (len(images), 16, 3)
    wanted = pixels["targets"][:, :-1].double() * 2 / (LEVELS - 1) - 1
    assert (pixels["tokens"][:, 1:] - wanted).abs().max() < 1e-6


def test_flips_keep_labels_and_turn_about_half(grey: Path) -> None:
    options = {**TINY, "levels": LEVELS, "condition": "class"}
    plain = prepare("image-transformer", grey, options=options)
    turned = prepare("image-transformer", grey, options=options, reading=Reading(flips=True))
    assert isinstance(plain.batches, ImageBatches)
    assert isinstance(turned.batches, ImageBatches)
    raster = plain.spec.image
    assert raster is not None
    flipped = 0
    for step in range(20):
        one, other = (task.batches.train_batch(4, 0, step) for task in (plain, turned))
        assert torch.equal(one["label"], other["label"])
        before, after = (raster.to_images(batch["targets"]) for batch in (one, other))
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a, b) or torch.equal(a.flip(1), b)
            flipped += not torch.equal(a, b)
    assert 20 < flipped < 60
    first, second = (next(iter(task.batches.eval_batches(8))) for task in (plain, turned))
    assert torch.equal(first["targets"], second["targets"])


def test_every_image_has_its_own_label(tmp_path: Path) -> None:
    """The class is the first pixel, in training, in evaluation and in the rows of one of several processes."""
    images = np.random.default_rng(0).integers(3, size=(40, 2, 2)).astype(np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=images[:, 0, 0].astype(np.int64))
    task = prepare("image-transformer", tmp_path / "own.npz", options={**TINY, "levels": 3, "condition": "class"})
    assert isinstance(task.batches, ImageBatches)
    whole = task.batches.train_batch(8, 0, 5)
    part = task.batches.train_batch(8, 0, 5, slice(2, 5))
    for batch in (whole, part, *task.batches.eval_batches(3)):
        assert torch.equal(batch["label"], batch["targets"][:, 0])
    assert torch.equal(part["targets"], whole["targets"][2:5])


def test_the_small_image_is_the_mean_of_its_rectangles() -> None:
    images = torch.randint(256, (2, 4, 6, 3), dtype=torch.uint8)
    found = scaled_down(images, 2, 2)
    for n, y, x, c in np.ndindex(2, 2, 2, 3):
        values = [int(images[n, 2 * y + i, 3 * x + j, c]) for i in range(2) for j in range(3)]
        assert int(found[n, y, x, c]) == round(sum(values) / 6)


@sweep(
    ("member", "options", "words"),
    [
        ("image-transformer", {"levels": 1}, ("levels",)),
        ("image-transformer", {"channels": 3}, ("channels=3", "it is 1")),
        ("image-transformer", {"condition": "class", "labels": 5}, ("labels=5", "it is 3")),
        ("image-transformer", {"head": "mixtur"}, ("head",)),
        ("image-transformer", {"query_block": 99}, ("query_block=99", "16 pixels")),
        ("image-transformer", {"condition": "grey"}, ("condition=grey", "channels=1")),
        ("image-transformer", {"dimm": 3}, ("dimm",)),
        ("decoder", {"condition": "small"}, ("condition=small", "image-transformer")),
        ("decoder", {"head": "mixtur"}, ("head=mixtur", "mixture")),
        ("decoder", {"condition": "clas"}, ("condition=clas", "class")),
        ("decoder", {"head": "mixture", "mixtures": "many"}, ("mixtures",)),
        ("decoder", {"height": "tall"}, ("height",)),
        ("image-transformer", {"height": "tall", "width": 4}, ("height=tall", "it is 4")),
        ("decoder", {"head": "mixture", "mixtures": 0}, ("mixtures",)),
        ("decoder", {"dimm": 3}, ("dimm",)),
        ("encoder", {}, ("encoder", "decoder")),
        ("transformer", {}, ("transformer", "decoder")),
    ],
)
def test_wrong_options_are_refused_before_training(grey: Path, member: str, options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        prepare(member, grey, options={**TINY, **options})


def test_data_without_classes(colour: Path) -> None:
    with refused("condition=class", "has none"):
        prepare("image-transformer", colour, options={**TINY, "condition": "class"})


def test_images_and_text_do_not_mix(grey: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be, or not to be. " * 50)
    with refused("tokens=bytes", "has images"):
        prepare("decoder", grey, options=TINY, reading=Reading(tokens="bytes"))
    with refused("valid="):
        prepare("decoder", grey, options=TINY, reading=Reading(valid=str(text)))
    with refused("text.txt is not a file of images"):
        prepare("image-transformer", text, options=TINY)
    (tmp_path / "empty").mkdir()
    with refused("no file matches", "empty"):
        prepare("image-transformer", tmp_path / "empty", options=TINY)
    for options in ({"levels": 16}, {"condition": "class"}):
        with refused("nothing does not exist"):
            prepare("image-transformer", "nothing", options={**TINY, **options})
    (tmp_path / "one.png").write_bytes(b"")
    with refused("one image only"):
        prepare("image-transformer", tmp_path / "one.png", options=TINY)
    formers.train("decoder", text, tmp_path / "text", steps=1, **TINY, length=16, **STEPS)
    formers.train("decoder", grey, tmp_path / "images", steps=1, **TINY, **STEPS)
    with refused("was not trained on images"):
        evaluate_run(tmp_path / "text", data=str(grey))
    with refused("images"):
        evaluate_run(tmp_path / "images", data=str(text))
    with refused("image"):
        formers.generate(formers.load(tmp_path / "images"), "to be")


def test_other_images_must_have_the_shape_of_the_model(grey: Path, colour: Path, tmp_path: Path) -> None:
    formers.train("decoder", grey, tmp_path / "run", steps=1, **TINY, levels=LEVELS, **STEPS)
    with refused("4 x 4 x 3", "4 x 4 x 1"):
        evaluate_run(tmp_path / "run", data=str(colour))
    same = tmp_path / "same.npz"
    np.savez(same, **dict(np.load(grey)))
    own, other = evaluate_run(tmp_path / "run"), evaluate_run(tmp_path / "run", data=str(same))
    assert other["targets"] == own["targets"]
