"""Drawn images: their likelihood in one pass, their distribution, completions, conditions, seeds, and mistakes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

import formers
from formers import Model
from formers.generation import sample_images
from formers.generation.images import cells_of
from formers.heads import LanguageModel
from helpers import refused, sweep

SMALL: dict[str, Any] = {"dim": 8, "heads": 2, "layers": 2, "hidden": 8, "dropout": 0.0}
CASES: list[dict[str, Any]] = [
    {"levels": 5, "channels": 3, "query_block": 4, "memory_block": 3},
    {"levels": 5, "layout": "2d", "query_block": (2, 3), "memory_block": (1, 1)},
    {"levels": 6, "channels": 3, "head": "mixture", "mixtures": 2},
    {"levels": 17, "head": "mixture", "layout": "2d", "query_block": (2, 2), "memory_block": (2, 1)},
    {"levels": 4, "condition": "class", "labels": 3, "position": "learned"},
    {"levels": 4, "head": "mixture", "channels": 2, "condition": "class", "labels": 3},
    {"levels": 3, "condition": "small", "layout": "2d", "query_block": (2, 2), "memory_block": (1, 1)},
    {"levels": 5, "condition": "small", "channels": 3, "head": "mixture"},
    {"levels": 5, "condition": "grey", "channels": 3},
]


def model_of(height: int = 4, width: int = 6, spread: float = 0.5, **options: Any) -> Model:
    """A model whose outputs differ from position to position."""
    model = formers.create("image-transformer", height=height, width=width, **SMALL, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn_like(parameter)
    return model


def conditions(model: Model, samples: int) -> dict[str, Any]:
    """A label or a source for each image, where the model wants one."""
    spec = model.spec
    if spec.labels is not None:
        return {"label": torch.arange(samples) % spec.labels}
    if spec.encoder is None:
        return {}
    image = spec.encoder.image
    assert image is not None
    cells = cells_of(spec)
    return {"source": torch.randint(cells.levels, (samples, image.height, image.width, spec.encoder.features or image.channels))}


def one_pass(model: Model, images: Tensor, given: dict[str, Any]) -> Tensor:
    """-log p (images,) of images in one pass."""
    cells = cells_of(model.spec)
    stream = cells.stream(images)
    arguments: dict[str, Any] = {"label": given["label"]} if "label" in given else {}
    inputs = cells.inputs(stream)
    if "source" in given:
        source = cells.given(cells.stream(given["source"], cells.source_raster))
        out = model(source, inputs, **arguments)
    else:
        out = model(inputs, **arguments)
    return model.head.token_losses(out.hidden, model.embedding, stream).double().sum(dim=1)


@sweep("case", CASES)
@sweep(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_the_likelihood_in_one_pass_is_that_of_the_draws(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    model = model_of(**case).to(dtype)
    given = conditions(model, 5)
    drawn = sample_images(model, 5, seed=3, **given)
    assert drawn.images.shape == (5, 4, 6, case.get("channels", 1))
    assert 0 <= drawn.images.min() <= drawn.images.max() < case["levels"]
    assert drawn.nats is not None
    with torch.no_grad():
        wanted = one_pass(model, drawn.images, given)
    dimensions = drawn.images[0].numel()
    assert ((drawn.nats - wanted).abs() / dimensions).max() < tolerance
    assert drawn.nats.min() > 0


@sweep("case", CASES)
def test_a_seed_draws_the_same_images_whatever_the_batch(case: dict[str, Any]) -> None:
    model = model_of(**case).double()
    given = conditions(model, 5)
    whole = sample_images(model, 5, seed=3, **given).images
    for batch in (1, 2):
        assert torch.equal(sample_images(model, 5, seed=3, batch=batch, **given).images, whole)
    first = {name: value[:2] for name, value in given.items()}
    assert torch.equal(sample_images(model, 2, seed=3, **first).images, whole[:2])
    assert not torch.equal(sample_images(model, 5, seed=4, **given).images, whole)
    assert len(whole.flatten(1).unique(dim=0)) == 5


@sweep("case", CASES)
def test_temperature_0_is_top_1(case: dict[str, Any]) -> None:
    model = model_of(**case).double()
    given = conditions(model, 1)
    cold = sample_images(model, 1, temperature=0.0, seed=1, **given)
    assert cold.nats is None
    assert torch.equal(cold.images, sample_images(model, 1, top_k=1, seed=2, **given).images)
    cells, stream = cells_of(model.spec), cells_of(model.spec).stream(cold.images)
    if not cells.pixels and "source" not in given:
        with torch.no_grad():
            assert torch.equal(model(cells.inputs(stream), **given).logits.argmax(dim=-1), stream)


def every(levels: int, cells: int) -> Tensor:
    """All images of so many cells, as (images, cells)."""
    return torch.tensor(list(itertools.product(range(levels), repeat=cells)))


def fits(counts: Tensor, p: Tensor) -> None:
    """Fails unless counts are as a multinomial distribution has them: chi-square within five standard deviations."""
    expected = p * counts.sum()
    assert expected.min() > 3, "too few samples for the rarest image"
    square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(p) - 1
    assert abs(square - freedom) < 5 * math.sqrt(2 * freedom), (square, freedom)


@sweep(
    "case",
    [
        {"height": 1, "width": 2, "levels": 4},
        {"height": 2, "width": 1, "levels": 3, "layout": "2d", "query_block": (1, 1), "memory_block": (1, 1)},
        {"height": 1, "width": 1, "levels": 3, "channels": 2},
        {"height": 1, "width": 1, "levels": 4, "channels": 2, "head": "mixture", "mixtures": 2},
        {"height": 2, "width": 1, "levels": 4, "head": "mixture", "mixtures": 2},
    ],
)
def test_samples_have_the_distribution_of_the_model(case: dict[str, Any]) -> None:
    model = model_of(**{"spread": 0.2, **case})
    levels, shape = case["levels"], (case["height"], case["width"], case.get("channels", 1))
    images = every(levels, 2).view(-1, *shape)
    with torch.no_grad():
        p = (-one_pass(model, images, {})).exp()
    assert abs(float(p.sum()) - 1) < 1e-5
    drawn = sample_images(model, 4000, seed=0, batch=4000).images.view(-1, 2)
    fits(torch.bincount(drawn[:, 0] * levels + drawn[:, 1], minlength=levels**2).double(), p)


def test_temperature_and_top_k_change_the_distribution_of_levels() -> None:
    model = model_of(height=1, width=1, levels=5)
    with torch.no_grad():
        logits = model(torch.zeros(1, 1, dtype=torch.int64)).logits[0, 0].double()
    warm = sample_images(model, 4000, seed=0, batch=4000, temperature=2.0).images.flatten()
    fits(torch.bincount(warm, minlength=5).double(), (logits / 2).softmax(dim=0))
    few = sample_images(model, 500, seed=0, batch=500, top_k=2).images.unique()
    assert set(few.tolist()) == set(logits.topk(2).indices.tolist())


@sweep(
    ("case", "keep"),
    [
        ({"height": 2, "width": 2, "levels": 2}, [[1, 1], [0, 0]]),
        ({"height": 2, "width": 2, "levels": 2}, [[1, 1], [1, 0]]),
        ({"height": 2, "width": 2, "levels": 2, "layout": "2d", "query_block": (2, 1), "memory_block": (1, 1)}, [[1, 0], [1, 0]]),
        ({"height": 1, "width": 2, "levels": 2, "channels": 2}, [[1, 0]]),
        ({"height": 1, "width": 2, "levels": 2, "channels": 2, "head": "mixture", "mixtures": 2}, [[1, 0]]),
    ],
)
def test_completions_are_drawn_from_the_exact_conditional(case: dict[str, Any], keep: list[list[int]]) -> None:
    model = model_of(**{"spread": 0.3, **case})
    channels = case.get("channels", 1)
    mask = torch.tensor(keep, dtype=torch.bool)
    given = torch.randint(2, (1, case["height"], case["width"], channels))
    images = every(2, mask.numel() * channels).view(-1, *given.shape[1:])
    same = (images == given)[:, mask].flatten(1).all(dim=1)
    with torch.no_grad():
        p = (-one_pass(model, images[same], {})).exp()
    total = float(p.sum())
    drawn = sample_images(model, 3000, seed=0, batch=3000, given=given, keep=mask)
    assert torch.equal(drawn.images[:, mask], given.expand(3000, -1, -1, -1)[:, mask])
    numbers = (drawn.images[:, None] == images[same][None]).flatten(2).all(dim=2)
    fits(numbers.sum(dim=0).double(), p / total)
    assert drawn.nats is not None
    nats = -(p / total).log()[numbers.int().argmax(dim=1)]
    assert (drawn.nats - nats).abs().max() < 1e-4, "the likelihood is of the cells that were drawn"


def test_all_pixels_or_none_may_be_kept() -> None:
    model = model_of(levels=3)
    given = torch.randint(3, (1, 4, 6, 1))
    whole = sample_images(model, 2, given=given, keep=torch.ones(4, 6, dtype=torch.bool))
    assert torch.equal(whole.images, given.expand(2, -1, -1, -1))
    assert whole.nats is not None
    assert not whole.nats.any()
    none = sample_images(model, 2, seed=1, given=given, keep=torch.zeros(4, 6, dtype=torch.bool))
    assert torch.equal(none.images, sample_images(model, 2, seed=1).images)


@sweep("sides", ["left", "top", "corner"])
def test_a_refused_completion_names_an_order_that_works(sides: str) -> None:
    keep = torch.zeros(4, 6, dtype=torch.bool)
    keep[{"left": (slice(None), slice(3)), "top": (slice(2), slice(None)), "corner": (slice(2), slice(3))}[sides]] = True
    wrong: dict[str, Any] = {} if sides != "top" else {"layout": "2d", "query_block": (4, 2), "memory_block": (1, 1)}
    given = torch.randint(3, (1, 4, 6, 1))
    try:
        sample_images(model_of(levels=3, **wrong), given=given, keep=keep)
    except formers.FormersError as error:
        text = str(error)
    else:
        raise AssertionError("it is not refused")
    assert "do not come first in the model's order" in text
    named = text.rstrip(".").split("train with ")[1].split(" or ")
    assert named
    for words in named:
        options: dict[str, Any] = dict(word.split("=") for word in words.split())
        if "query_block" in options:
            options["query_block"] = tuple(int(n) for n in options["query_block"].strip("[]").split(","))
        found = sample_images(model_of(levels=3, **options), given=given, keep=keep).images
        assert torch.equal(found[:, keep], given[:, keep])


def test_a_completion_that_no_order_can_do_says_what_can_be_kept() -> None:
    keep = torch.zeros(4, 6, dtype=torch.bool)
    keep[1:3, 1:3] = True
    with refused("4 pixels", "row after row", "whole rows at the top"):
        sample_images(model_of(levels=3), given=torch.zeros(1, 4, 6, 1, dtype=torch.int64), keep=keep)


def test_what_is_shown_while_it_is_drawn() -> None:
    model = model_of(levels=3, channels=2)
    seen: list[tuple[int, Tensor]] = []
    drawn = sample_images(model, 2, seed=0, show=lambda done, stream: seen.append((done, stream.clone())))
    assert [done for done, _ in seen] == list(range(1, 49))
    final = cells_of(model.spec).stream(drawn.images)
    for done, stream in seen:
        assert torch.equal(stream[:, :done, 0], final[:, :done])


IMAGE = torch.zeros(1, 4, 6, 1, dtype=torch.int64)
TOP = torch.arange(4)[:, None].expand(4, 6) < 2


@sweep(
    ("arguments", "words"),
    [
        ({"label": 1}, ("label=1", "leave it out")),
        ({"source": IMAGE}, ("source", "leave it out")),
        ({"given": IMAGE}, ("both given", "keep")),
        ({"keep": TOP}, ("both given", "keep")),
        ({"given": IMAGE, "keep": TOP.long()}, ("keep is torch.int64", "(4, 6)")),
        ({"given": IMAGE, "keep": TOP[:3]}, ("(3, 6)", "(4, 6)")),
        ({"given": IMAGE, "keep": [[True] * 6] * 4}, ("keep is a list", "(4, 6)")),
        ({"given": IMAGE.float(), "keep": TOP}, ("given is torch.float32",)),
        ({"given": IMAGE[:, :3], "keep": TOP}, ("(1, 3, 6, 1)", "(images, 4, 6, 1)")),
        ({"given": IMAGE.expand(3, -1, -1, -1), "keep": TOP}, ("3 images for 2 samples",)),
        ({"given": IMAGE + 3, "keep": TOP}, ("levels from 3 to 3", "0 ... 2")),
        ({"given": IMAGE - 1, "keep": TOP}, ("levels from -1 to -1", "0 ... 2")),
        ({"temperature": -1.0}, ("temperature",)),
        ({"top_k": 0}, ("top_k",)),
        ({"batch": 0}, ("batch=0",)),
    ],
)
def test_mistakes(arguments: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        sample_images(model_of(levels=3), 2, **arguments)


@sweep(
    ("label", "words"),
    [(None, "give a label"), (3, "class 3"), (-1, "class -1"), ([0, 1, 2], "3 labels"), (1.5, "label=1.5"), ("one", "label='one'")],
)
def test_mistakes_of_labels(label: Any, words: str) -> None:
    with refused(words):
        sample_images(model_of(levels=3, condition="class", labels=3), 2, label=label)


def test_mistakes_of_sources() -> None:
    model = model_of(levels=3, condition="small")
    with refused("conditioned on a small image", "2 x 3 x 1"):
        sample_images(model, 2)
    with refused("source", "(images, 2, 3, 1)"):
        sample_images(model, 2, source=IMAGE)
    one = sample_images(model, 2, seed=1, source=torch.ones(1, 2, 3, 1, dtype=torch.int64)).images
    assert torch.equal(one, sample_images(model, 2, seed=1, source=torch.ones(2, 2, 3, 1, dtype=torch.int64)).images)


def test_models_of_text_are_refused() -> None:
    text = formers.create("decoder", vocab=5, dim=8, heads=2, layers=1)
    with refused("decoder is no model of images"):
        sample_images(text)
    with refused("a Linear"):
        sample_images(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    spec = formers.spec("image-transformer", **SMALL).replace(head=LanguageModel(tied=False))
    with refused("no model of images"):
        sample_images(formers.build(spec))
