"""What the memory of a block is for: pixels that copy one above, which only a memory that holds it can predict. Seconds each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import formers
from formers.generation import sample_images
from formers.generation.images import cells_of
from learn.fitting import Batch, fit

SIDE, LEVELS = 6, 4
BIG: dict[str, Any] = {
    "height": SIDE, "width": SIDE, "levels": LEVELS, "dim": 32, "heads": 2, "layers": 2, "hidden": 64, "dropout": 0.0, "norm": "pre",
}  # fmt: skip


def copies(n: int, back: int) -> Tensor:
    """Images whose first `back` rows are random, and whose every other pixel is the one `back` rows above."""
    first = torch.randint(LEVELS, (n, back, SIDE, 1))
    return first.repeat(1, SIDE // back, 1, 1)


def loss(back: int, steps: int, **options: Any) -> tuple[float, formers.Model]:
    """Nats of a pixel below the random rows, after training, and the model."""
    torch.manual_seed(0)
    model = formers.create("image-transformer", **{**BIG, **options})
    cells = cells_of(model.spec)
    raster = cells.raster
    rows = torch.as_tensor(raster.cell(torch.arange(raster.cells)).row)

    def batch(n: int = 32) -> Batch:
        made = cells.batch(copies(n, back), None)
        ignored = (rows < back).view(1, -1, *[1] * (made["targets"].dim() - 2))  # nothing predicts these
        return {**made, "targets": made["targets"].masked_fill(ignored, -100)}

    fit(model, batch, steps=steps, rate=5e-3)
    with torch.no_grad():
        return model(**batch(200)).loss.item(), model


# A position holds the pixel before it in the order: the last pixel of a block is held by the first position of the next block, so that a
# memory must have columns beside the block.
ONE_ROW = {"query_block": 1, "memory_block": SIDE}
ABOVE = {"layout": "2d", "query_block": (2, 3), "memory_block": (1, 3)}
TWO_ROWS = {"query_block": 1, "memory_block": 2 * SIDE}
TWO_ABOVE = {"layout": "2d", "query_block": (2, 3), "memory_block": (2, 3)}
NONE_ABOVE = {"layout": "2d", "query_block": (1, 3), "memory_block": (0, 2)}


@pytest.mark.parametrize("head", ["categorical", "mixture"])
@pytest.mark.parametrize(("back", "options"), [(1, ONE_ROW), (1, ABOVE), (2, TWO_ROWS), (2, TWO_ABOVE)])
def test_a_memory_that_holds_the_pixel_copies_it(head: str, back: int, options: dict[str, Any]) -> None:
    found, model = loss(back, 350 if head == "categorical" else 600, head=head, **options)
    assert found < 0.1, found
    wanted = copies(8, back)
    keep = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    keep[:back] = True
    if model.spec.image is not None and model.spec.image.block is None:
        drawn = sample_images(model, 8, seed=0, given=wanted, keep=keep).images
        assert (drawn == wanted).double().mean() > 0.97
    drawn = sample_images(model, 16, seed=0).images
    assert (drawn[:, back:] == drawn[:, :-back]).double().mean() > 0.95, "what is drawn does not follow the rule that was learned"


@pytest.mark.parametrize("head", ["categorical", "mixture"])
@pytest.mark.parametrize(
    ("back", "options"),
    [(1, {"query_block": 1, "memory_block": SIDE - 2}), (1, NONE_ABOVE), (2, {**ABOVE, "query_block": (1, 3)})],
)
def test_a_memory_that_does_not_hold_it_cannot(head: str, back: int, options: dict[str, Any]) -> None:
    found, _ = loss(back, 120, head=head, layers=1, **options)
    assert found > 0.9 * math.log(LEVELS), found
