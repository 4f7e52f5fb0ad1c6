"""The Image Transformer as a whole, against a dense model of its own under order and mask; its options, states and files."""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch
from torch import Tensor

import formers
from family import image_oracle as oracle
from formers import Model, Spec
from formers.heads import PixelMixture
from formers.model import check
from formers.patterns import Blocks, Causal, OrderedGrid
from helpers import close, refused, sweep

TINY: dict[str, Any] = {"dim": 8, "heads": 2, "layers": 2, "hidden": 12, "dropout": 0.0, "norm_epsilon": 1e-6}
HEADS = sweep("head", ["categorical", "mixture"])
LEVELS = 7


def model_of(**options: Any) -> Model:
    """A model in float64 whose weights are all far from their starting values."""
    model = formers.create("image-transformer", **{**TINY, "levels": LEVELS, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def streams(model: Model, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Random images as targets in generation order, and what the model is given for them: shifted by one."""
    image, head = model.spec.image, model.spec.head
    assert image is not None
    if not isinstance(head, PixelMixture):
        stream = torch.randint(LEVELS, (batch, image.cells))
        return stream, torch.cat([torch.zeros_like(stream[:, :1]), stream[:, :-1]], dim=1)
    stream = torch.randint(head.levels, (batch, image.cells, head.channels))
    pixels = stream.double() * 2 / (head.levels - 1) - 1
    return stream, torch.cat([torch.zeros_like(pixels[:, :1]), pixels[:, :-1]], dim=1)


def by_oracle(model: Model, stream: Tensor, order: list[oracle.Place], mask: Tensor, cells: int) -> Tensor:
    """What the oracle computes with the weights of a model, image after image."""
    spec = model.spec
    whole = stream if stream.dim() == 2 else stream.double() * 2 / (LEVELS - 1) - 1
    weights = model.state_dict()
    return torch.stack(
        [
            oracle.model_output(
                weights, each, order, mask, cells=cells, levels=LEVELS, heads=spec.heads, layers=spec.depth.steps, epsilon=1e-6
            )
            for each in whole
        ]
    )


@HEADS
@sweep(
    ("height", "width", "channels", "query", "memory"),
    [(4, 4, 3, 4, 4), (3, 5, 1, 4, 6), (2, 3, 2, 5, 1), (1, 4, 3, 4, 0), (5, 1, 1, 2, 9)],
)
def test_one_dimension_is_the_dense_model_under_its_mask(
    head: str, height: int, width: int, channels: int, query: int, memory: int
) -> None:
    model = model_of(height=height, width=width, channels=channels, head=head, query_block=query, memory_block=memory)
    cells = 1 if head == "mixture" else channels
    order = oracle.places(height, width, cells, None)
    mask = oracle.mask_1d(len(order), query * cells, memory * cells)
    stream, given = streams(model)
    with torch.no_grad():
        close(model(given).logits, by_oracle(model, stream, order, mask, cells))


@HEADS
@sweep(
    ("height", "width", "channels", "query", "memory"),
    [(4, 4, 3, (2, 2), (1, 1)), (3, 5, 1, (2, 3), (2, 1)), (5, 3, 2, (2, 2), (0, 1)), (2, 4, 3, (2, 4), (1, 1)), (4, 3, 1, (1, 1), (2, 1))],
)
def test_two_dimensions_are_the_dense_model_under_order_and_mask(
    head: str, height: int, width: int, channels: int, query: tuple[int, int], memory: tuple[int, int]
) -> None:
    model = model_of(
        height=height, width=width, channels=channels, head=head, layout="2d", query_block=query, memory_block=memory
    )  # fmt: skip
    cells = 1 if head == "mixture" else channels
    order = oracle.places(height, width, cells, query)
    mask = oracle.mask_2d(order, query, memory)
    stream, given = streams(model)
    with torch.no_grad():
        close(model(given).logits, by_oracle(model, stream, order, mask, cells))


@HEADS
def test_the_recorded_public_model_is_expressible(head: str) -> None:
    """4 x 4 x 3, post-norm, own block and previous block in cells, norm epsilon 1e-6, no biases of attention."""
    block, cells = (8, 3) if head == "categorical" else (4, 1)
    spec = formers.spec("image-transformer", height=4, width=4, channels=3, levels=LEVELS, head=head, **TINY)
    model = formers.build(spec.replace(pattern=Blocks(query=block, memory=block))).double().eval()
    order = oracle.places(4, 4, cells, None)
    mask = torch.tensor([[i // block - j // block in (0, 1) and j <= i for j in range(len(order))] for i in range(len(order))])
    stream, given = streams(model)
    with torch.no_grad():
        out = model(given, targets=stream)
        wanted = by_oracle(model, stream, order, mask, cells)
    close(out.logits, wanted)
    if head == "categorical":
        nats = -wanted.log_softmax(dim=-1).gather(-1, stream[..., None])
        close(out.loss, nats.mean())


CASES: list[dict[str, Any]] = [
    {"head": head, "channels": channels, **layout}
    for head, channels, layout in itertools.product(
        ("categorical", "mixture"),
        (1, 3),
        (
            {"query_block": 3, "memory_block": 4},
            {"layout": "2d", "query_block": (2, 2), "memory_block": (1, 1)},
            {"layout": "2d", "query_block": (1, 3), "memory_block": (0, 2)},
        ),
    )
]


@sweep("case", CASES)
def test_nothing_leaks_in_generation_order(case: dict[str, Any]) -> None:
    model = model_of(height=3, width=4, **case)
    _, given = streams(model, 1)
    with torch.no_grad():
        whole = model(given).logits
        for t in range(given.shape[1]):
            other = given.clone()
            other[:, t] = 0.123 if other.is_floating_point() else (other[:, t] + 1) % LEVELS
            found = model(other).logits
            assert torch.equal(found[:, :t], whole[:, :t]), t
            if t:
                assert not torch.equal(found[:, t], whole[:, t]), t
            else:
                assert torch.equal(found, whole), "what is given at position 0 counts"


@sweep("case", CASES)
def test_decoding_with_the_cache_equals_one_pass(case: dict[str, Any]) -> None:
    model = model_of(height=3, width=4, **case)
    _, given = streams(model)
    with torch.no_grad():
        whole = model(given).logits
        for step in (1, 5):
            state, found = model.initial_state(2), []
            for piece in given.split(step, dim=1):
                out = model(piece, state=state)
                state = out.state
                found.append(out.logits)
            close(torch.cat(found, dim=1), whole)


@HEADS
@sweep("layout", ["1d", "2d"])
def test_a_memory_over_the_image_is_dense(head: str, layout: str) -> None:
    blocks = {"query_block": 2, "memory_block": 12} if layout == "1d" else {"query_block": (2, 2), "memory_block": (3, 4)}
    model = model_of(height=3, width=4, channels=2, head=head, layout=layout, **blocks)
    dense = formers.build(model.spec.replace(pattern=Causal())).double().eval()
    dense.load_state_dict(model.state_dict())
    _, given = streams(model)
    with torch.no_grad():
        close(model(given).logits, dense(given).logits)


@sweep("condition", ["small", "grey"])
@HEADS
def test_the_encoder_sees_all_of_its_image(condition: str, head: str) -> None:
    """The source is not shifted: each of its cells, the first and the last too, moves the first output."""
    model = model_of(height=2, width=4, channels=3, head=head, condition=condition)
    encoder = model.spec.encoder
    assert encoder is not None
    assert encoder.image is not None
    assert (encoder.image.height, encoder.image.width) == ((1, 2) if condition == "small" else (2, 4))
    _, given = streams(model, 1)
    n = encoder.length
    source = torch.zeros(1, n, encoder.features, dtype=torch.float64) if head == "mixture" else torch.randint(LEVELS, (1, n))
    with torch.no_grad():
        whole = model(source, given).logits
        for t in range(n):
            other = source.clone()
            other[:, t] = 0.7 if head == "mixture" else (other[:, t] + 1) % LEVELS
            assert not torch.equal(model(other, given).logits[:, 0], whole[:, 0]), t


def test_presets() -> None:
    base = formers.spec("image-transformer", preset="base")
    mixture = formers.spec("image-transformer", preset="mixture")
    large = formers.spec("image-transformer", preset="superresolution")
    assert (base.length, mixture.length, large.length) == (3072, 1024, 3072)
    assert base.pattern == Blocks(query=255, memory=255)
    assert mixture.sizes.head_dim * mixture.heads == 512
    assert large.encoder is not None
    assert (large.encoder.length, large.encoder.depth.steps, large.depth.steps) == (192, 4, 12)
    with torch.device("meta"):
        for spec in (base, mixture, large):
            check(spec)
            assert formers.build(spec).parameter_count() > 1e6


def test_defaults_of_blocks() -> None:
    assert formers.spec("image-transformer").pattern == Blocks(query=64, memory=64)
    wide = formers.spec("image-transformer", height=32, width=32, channels=3)
    assert wide.pattern == Blocks(query=2 * 96, memory=4 * 96)
    two = formers.spec("image-transformer", height=32, width=32, channels=3, layout="2d").pattern
    assert isinstance(two, OrderedGrid)
    assert (two.grid.query, two.grid.memory, two.channels) == ((8, 8), (8, 8), 3)
    small = formers.spec("image-transformer", height=4, width=5, layout="2d").pattern
    assert isinstance(small, OrderedGrid)
    assert small.grid.query == (4, 5)


@sweep(
    ("options", "words"),
    [
        ({"query_block": 65}, ("query_block=65", "64 pixels")),
        ({"query_block": (2, 2)}, ("layout=1d", "layout=2d")),
        ({"memory_block": (2, 2)}, ("layout=1d", "layout=2d")),
        ({"layout": "2d", "query_block": 4}, ("query_block=4", "[4, 4]")),
        ({"layout": "2d", "memory_block": 4}, ("memory_block=4", "[4, 4]")),
        ({"layout": "2d", "query_block": (9, 8)}, ("[9, 8]", "8 x 8")),
        ({"layout": "2d", "query_block": (8, 9)}, ("[8, 9]", "8 x 8")),
        ({"layout": "2d", "query_block": (0, 2)}, ("query_block",)),
        ({"layout": "3d"}, ("layout",)),
        ({"levels": 1}, ("levels",)),
        ({"levels": 4, "vocab": 5}, ("levels=4", "vocab=5")),
        ({"condition": "class"}, ("condition=class", "labels=None")),
        ({"labels": 3}, ("condition=none", "labels=3")),
        ({"condition": "small", "labels": 3}, ("condition=small", "labels=3")),
        ({"condition": "small", "factor": 3}, ("factor=3", "8 x 8")),
        ({"condition": "small", "factor": 1}, ("factor=1",)),
        ({"factor": 2}, ("factor=2", "condition=none")),
        ({"condition": "grey"}, ("condition=grey", "channels=1")),
        ({"length": 63}, ("length=63", "64 positions")),
        ({"head": "softmax"}, ("head",)),
        ({"mixtures": 0, "head": "mixture"}, ("mixtures",)),
        ({"height": 0}, ("height",)),
        ({"norm": "middle"}, ("middle",)),
        ({"embedding_scale": "both"}, ("embedding_scale",)),
    ],
)
def test_mistakes(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words):
        formers.spec("image-transformer", **options)


def test_levels_may_be_called_vocab() -> None:
    assert formers.spec("image-transformer", vocab=17) == formers.spec("image-transformer", levels=17)
    assert formers.spec("image-transformer", levels=17).vocab == 17
    mixture = formers.spec("image-transformer", levels=17, head="mixture")
    assert isinstance(mixture.head, PixelMixture)
    assert (mixture.vocab, mixture.features, mixture.head.levels) == (None, 1, 17)


def test_norms_by_name() -> None:
    assert type(formers.spec("image-transformer").residual).__name__ == "PostNorm"
    assert type(formers.spec("image-transformer", norm="pre").residual).__name__ == "PreNorm"


@sweep(
    "options",
    [
        {},
        {"layout": "2d"},
        {"head": "mixture", "channels": 3},
        {"condition": "class", "labels": 3, "position": "learned"},
        {"condition": "small"},
        {"condition": "grey", "channels": 3, "head": "mixture"},
    ],
)
def test_a_spec_survives_json(options: dict[str, Any]) -> None:
    spec = formers.spec("image-transformer", **options)
    check(spec)
    assert Spec(**json.loads(spec.model_dump_json())) == spec


def test_files_of_older_versions_with_fact_are_read() -> None:
    spec = formers.spec("encoder", vocab=11, dim=8, heads=2, layers=1, classes=3, fact=5)
    fields = json.loads(spec.model_dump_json())
    del fields["input"], fields["labels"], fields["image"]
    for words in (5, None):
        read = Spec(**{**fields, "fact": words})
        assert read == (spec if words else formers.spec("encoder", vocab=11, dim=8, heads=2, layers=1, classes=3))
        assert read.fact == words


@sweep("channels", [1, 3])
@HEADS
def test_the_order_of_positions_and_patterns_is_that_of_the_images(channels: int, head: str) -> None:
    spec = formers.spec("image-transformer", height=5, width=6, channels=channels, head=head, layout="2d", query_block=(2, 4))
    assert spec.image is not None
    assert spec.image.block == (2, 4)
    assert spec.image.channels == (1 if head == "mixture" else channels)
    with refused("another order"):
        formers.build(spec.replace(image=spec.image.replace(block=None)))
