"""Losses by position: what evaluating every token by hand gives, with a memory and without."""

from __future__ import annotations

import math

import pytest
import torch

import formers
from formers.data import Language, Streams
from formers.inspect import draw_curves, losses_facts, losses_panel, save_panels
from formers.inspect.draw.curves import Curve, Panel
from formers.inspect.draw.losses import binned
from formers.inspect.measure.losses import Losses, losses_by_position
from helpers import close, refused

STREAM = torch.randint(64, (83,), generator=torch.Generator().manual_seed(0))
SIZES = dict(vocab=64, dim=16, heads=2, layers=2, length=8)


def nats(model, row):
    """The loss of each token of a row but the first, in one pass."""
    with torch.no_grad():
        return model(row[None, :-1]).logits[0].log_softmax(-1).gather(1, row[1:, None]).neg()[:, 0]


def by_place(rows, length):
    """The means of losses (number of the token behind the first, loss) by the place in the segment."""
    return torch.stack([torch.stack([loss for place, loss in rows if place % length == p]).mean() for p in range(length)])


def test_windows_are_evaluated_alone():
    model = formers.create("decoder", **SIZES).double().eval()
    found, counts = losses_by_position(model, Language({"valid": STREAM}, 8), "valid", size=3)
    rows = [(i + k, loss) for i in range(0, 82, 8) for k, loss in enumerate(nats(model, STREAM[i : i + 9]))]
    close(found, by_place(rows, 8))
    assert counts.sum() == 82


def test_a_memory_is_evaluated_with_it_and_without_on_the_same_tokens():
    model = formers.create("transformer-xl", memory=1000, **SIZES).double().eval()
    batches = Streams({"valid": STREAM}, 8)
    found, counts = losses_by_position(model, batches, "valid", size=1)
    rows = [(i, loss) for i, loss in enumerate(nats(model, STREAM)) if i >= 8]  # a memory of everything is one long pass
    close(found, by_place(rows, 8))
    alone, again = losses_by_position(model, batches, "valid", size=1, remembers=False)
    rows = [(i + k, loss) for i in range(8, 82, 8) for k, loss in enumerate(nats(model, STREAM[i : i + 9]))]
    close(alone, by_place(rows, 8))
    assert counts.equal(again)
    assert counts.sum() == 82 - 8


def test_a_limit_ends_it():
    model = formers.create("decoder", **SIZES).eval()
    _, counts = losses_by_position(model, Language({"valid": STREAM}, 8), "valid", size=2, limit=20)
    assert counts.sum() == 32


def test_bins_hold_the_mean_of_their_tokens():
    counts = torch.full((100,), 3.0)
    counts[90:] = 1.0
    losses = Losses("x", torch.arange(100.0).double(), counts.double(), bytes=False)
    curve = binned(losses)
    assert curve.x[:4] == [1, 2, 3, 4]
    assert curve.y[:4] == [0, 1, 2, 3]
    assert len(curve.x) < 30
    assert curve.x == sorted(curve.x)
    assert losses.mean() == pytest.approx(float((losses.nats * counts).sum() / counts.sum()))
    single = Losses("y", torch.tensor([math.log(2)]).double(), torch.ones(1).double(), bytes=True)
    assert binned(single) == Curve("y", [1.0], [pytest.approx(1.0)])
    assert losses_facts([single])[0]["unit"] == "bits per byte"
    assert losses_facts([single])[0]["by_position"] == [pytest.approx(1.0)]
    with refused("bytes", "alike"):
        losses_panel([losses, single])


def test_curves_are_drawn_where_they_are(tmp_path):
    panel = Panel([Curve("down", [1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 1.0, 0.0]), Curve("flat", [1.0, 8.0], [1.5, 1.5])], "position", "nats")
    for encoding in ("utf-8", "ascii"):
        lines = draw_curves(panel, 60, encoding).splitlines()
        assert all(len(line) <= 60 for line in lines)
        rows = [line.split("│" if encoding == "utf-8" else "|")[1] for line in lines[1:17]]
        assert rows[0].startswith("a")
        assert rows[-1].rstrip().endswith("a")
        assert sum("b" in row for row in rows) == 1
        assert "b  flat" in lines[-1]
        assert "\n".join(lines).encode(encoding)
    assert save_panels([panel, panel._replace(level=1.0)], tmp_path / "a.svg", "words").read_text().count("<svg") == 1


def test_a_band_is_shaded_and_panels_stand_in_rows(tmp_path):
    line = Curve("a", [1.0, 2.0], [1.0, 2.0])
    plain = Panel([line], "x", "y")
    banded = plain._replace(curves=[line._replace(band=([0.5, 1.5], [1.5, 2.5]))], title="of the second")
    without = save_panels([plain], tmp_path / "a.svg", "words").read_text()
    shaded = save_panels([plain, plain, banded], tmp_path / "b.svg", "words", columns=2).read_text()
    assert "opacity: 0.16" not in without
    assert shaded.count("opacity: 0.16") == 1
    assert "axes_3" in shaded


def test_what_is_not_a_number_is_not_drawn():
    panel = Panel([Curve("a", [1.0, 2.0], [math.nan, math.inf])], "x", "y")
    assert "a  a" in draw_curves(panel)
