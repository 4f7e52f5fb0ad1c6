"""The Sparse Transformer's recipe: its sizes are the paper's, its parts are spread as asked, and it starts as the authors' code does."""

from __future__ import annotations

import math

import torch

import formers
from formers.inspect.measure.parameters import weightless
from formers.patterns import Alternate, Blocks, Column, Fixed, Local, PerHead, Strided, Summary
from formers.position import Grid
from helpers import close, refused, sweep

TINY = {"vocab": 11, "dim": 16, "heads": 4, "layers": 2, "length": 64}


@sweep(("preset", "millions"), [("base", 95), ("cifar10", 59), ("imagenet64", 152)])
def test_presets_have_the_papers_number_of_parameters(preset, millions):
    model = weightless(formers.spec("sparse-transformer", preset=preset, vocab=256))
    assert round(model.parameter_count() / 1e6) == millions


def test_parts_are_spread_by_layers_merged_or_by_heads():
    def pattern(**options):
        return formers.spec("sparse-transformer", **{**TINY, "stride": 8, **options}).pattern

    local, column = Local(window=8), Column(stride=8)
    assert pattern(pattern="strided", use="merged") == Strided(stride=8)
    assert pattern(pattern="strided", use="interleaved") == Alternate(local, column)
    assert pattern(pattern="strided", use="heads") == PerHead(local, local, column, column)
    assert pattern(pattern="strided", use="heads", heads=3, head_dim=4) == PerHead(local, local, column)
    assert pattern(use="merged", summary=2) == Fixed(stride=8, summary=2, subblocks=4)
    assert pattern(use="merged", summary=3) == Fixed(stride=8, summary=3, subblocks=2)
    assert pattern(use="merged", summary=2, subblocks=1) == Fixed(stride=8, summary=2)
    own, summaries = Blocks(query=8, memory=0), Summary(stride=8, summary=1, subblocks=4)
    assert pattern(use="interleaved") == Alternate(own, summaries), "in the order that connects"
    assert pattern(use="heads") == PerHead(own, own, *[summaries.replace(subblocks=2)] * 2)


def test_heads_of_summaries_look_at_sub_blocks_of_their_own():
    mask = formers.spec("sparse-transformer", **{**TINY, "heads": 8}, stride=8, summary=1, use="heads").pattern.mask(16, heads=8)
    seen = [mask[head, 15, :8].nonzero().flatten().tolist() for head in range(8)]
    assert seen[:4] == [[]] * 4
    assert sorted(seen[4:]) == [[4], [5], [6], [7]]


def test_text_is_fixed_and_laid_out_by_the_stride_and_images_are_strided_by_their_rows():
    text = formers.spec("sparse-transformer", **TINY)
    assert isinstance(text.pattern, Fixed)
    assert text.position == Grid(width=text.pattern.stride)
    image = formers.spec("sparse-transformer", **{**TINY, "length": 96}, height=4, width=8, channels=3)
    assert image.pattern == Strided(stride=24)
    assert image.position == Grid(height=4, width=8, channels=3)
    assert formers.spec("sparse-transformer", **{**TINY, "length": 12_288}).pattern.stride == 128


def test_a_stride_longer_than_the_row_is_dense():
    for pattern in ("strided", "fixed"):
        spec = formers.spec("sparse-transformer", **TINY, pattern=pattern, stride=1000)
        assert spec.pattern.mask(64, heads=4).equal(torch.ones(64, 64, dtype=torch.bool).tril().expand(spec.pattern.mask(64, 4).shape))
        formers.build(spec)(torch.zeros(1, 64, dtype=torch.long))


def test_bad_sizes_are_refused():
    def create(**options):
        formers.create("sparse-transformer", **{**TINY, **options})

    for stride in (0, -4):
        with refused(f"stride={stride}", "greater than 0"):
            create(stride=stride)
    with refused("summary=9", "stride=8"):
        create(stride=8, summary=9)
    with refused("subblocks=5", "stride=8"):
        create(stride=8, summary=2, subblocks=5)
    with refused("heads=1", "2 parts"):
        create(heads=1, use="heads")
    with refused("height=4, width=4, channels=3", "48 positions", "length=64"):
        create(height=4, width=4, channels=3)
    with refused("height=4", "give width"):
        create(height=4)
    with refused("summary=2", "pattern=strided"):
        create(pattern="strided", summary=2)
    with refused("pattern='local'"):
        create(pattern="local")
    with refused("use='both'"):
        create(use="both")


@sweep("use", ["interleaved", "merged", "heads"])
def test_the_first_loss_is_that_of_guessing(use):
    model = formers.create("sparse-transformer", **TINY, use=use).double()
    tokens = torch.randint(11, (2, 65))
    close(model(tokens[:, :-1], targets=tokens[:, 1:]).loss, torch.tensor(math.log(11), dtype=torch.float64), 1e-12)


def test_weights_start_with_the_spread_of_the_authors_code():
    torch.manual_seed(0)
    model = formers.create("sparse-transformer", vocab=256, dim=256, heads=4, layers=8, length=1024)
    block = model.stack.depth.blocks[3]
    wanted = {
        block.attention.qkv.weight: (0.125 / 256) ** 0.5,
        block.feedforward.into.weight: (0.125 / 256) ** 0.5,
        block.attention.out.weight: (0.125 / 256 / 16) ** 0.5,
        block.feedforward.out.weight: (0.125 / 1024 / 16) ** 0.5,
        model.embedding.weight: 0.125 / 16,
        model.stack.position.row: 0.125 / 16 / 2**0.5,
    }
    for weight, spread in wanted.items():
        assert abs(weight.std().item() / spread - 1) < 0.03
    assert not model.head.weight.any()
    assert not block.attention.qkv.bias.any()


def growth(layers, gain=True):
    """How much the variance of the stream grows from the first block's input to the last one's output."""
    torch.manual_seed(1)
    spec = formers.spec("sparse-transformer", vocab=64, dim=32, heads=2, layers=layers, length=64)
    model = formers.build(spec)
    if not gain:
        for block in model.stack.depth.blocks:
            for out in (block.attention.out, block.feedforward.out):
                out.weight.data.mul_((2 * layers) ** 0.5)
    ends = []
    model.stack.depth.blocks[0].register_forward_pre_hook(lambda _, inputs: ends.append(inputs[0]))
    model.stack.depth.blocks[-1].register_forward_hook(lambda _, inputs, out: ends.append(out[0]))
    with torch.no_grad():
        model(torch.randint(64, (4, 64)))
    return (ends[1].var() / ends[0].var()).item()


def test_the_stream_grows_as_much_whatever_the_depth():
    grown = [growth(layers) for layers in (4, 16, 64)]
    assert max(grown) < 1.5 * min(grown)
    without = [growth(layers, gain=False) for layers in (4, 64)]
    assert without[1] > 4 * without[0], "which the factor 1/sqrt(2N) does"
