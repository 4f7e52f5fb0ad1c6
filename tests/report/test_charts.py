"""Charts: gaps where a figure was not finite, round ticks, few points."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest

from formers.report.charts import ChartLine, chart, pieces, short, thinned, ticks
from formers.report.costs import cross_over
from formers.report.pixels import png


def test_a_figure_that_is_not_finite_is_a_gap():
    points = [(1, 1.0), (2, None), (3, 2.0), (4, 3.0)]
    assert pieces(points) == [[(1, 1.0)], [(3, 2.0), (4, 3.0)]]
    drawn = chart([ChartLine("a <b>", points, 0)], "x", "y")
    assert drawn.count("<polyline") == 1
    assert drawn.count("<circle") == 1
    assert "a &lt;b&gt;" in drawn
    assert chart([ChartLine("a", [(1, None)], 0)], "x", "y") == ""


def test_many_points_become_means_and_keep_their_gaps():
    thin = thinned([(i, float(i % 2)) for i in range(10_000)], 100)
    assert len(thin) == 100
    assert all(value == pytest.approx(0.5) for _, value in thin)
    assert thinned([(i, None if i == 500 else 1.0) for i in range(1000)], 10)[5][1] is None


def test_ticks_are_round_and_within():
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3.0, 3.0) == [3.0]
    assert ticks(10.0, 10_000.0, log=True) == [10.0, 100.0, 1000.0, 10_000.0]
    assert [short(v) for v in (0.25, 1200, 3.4e6, 2e12)] == ["0.25", "1.2k", "3.4M", "2T"]


def test_curves_that_cross_say_where():
    flat, steep = ChartLine("flat", [(100, 10.0), (1000, 10.0)], 0), ChartLine("steep", [(100, 5.0), (1000, 50.0)], 1)
    assert cross_over(flat, steep) == "Above about 200 tokens a row, flat takes fewer FLOPs a token than steep."
    assert cross_over(flat, ChartLine("less", [(100, 1.0), (1000, 2.0)], 2)) is None


def test_a_png_holds_its_pixels():
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = base64.b64decode(png(image).partition(",")[2])
    assert struct.unpack(">II", data[16:24]) == (4, 2)
    start = data.index(b"IDAT") + 4
    length = struct.unpack(">I", data[start - 8 : start - 4])[0]
    rows = np.frombuffer(zlib.decompress(data[start : start + length]), np.uint8).reshape(2, 13)
    assert (rows[:, 1:].reshape(2, 4, 3) == image).all()
