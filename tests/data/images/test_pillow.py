"""Image files: every mode becomes 8-bit grey or RGB, and what cannot be read says why."""

from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest

from formers.data.images.pillow import BadFile, read_image
from helpers import refused

Image = pytest.importorskip("PIL.Image")


def pixels(mode, values):
    image = Image.new(mode, (len(values), 1))
    image.putdata(values)
    return image


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, data=b""):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def palette():
    image = pixels("P", [0, 1])
    image.putpalette([10, 20, 30, 200, 100, 0])
    return image


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (pixels("L", [0, 7, 255]), [[0], [7], [255]]),
        (pixels("1", [0, 255]), [[0], [255]]),
        (pixels("RGB", [(1, 2, 3), (4, 5, 6)]), [[1, 2, 3], [4, 5, 6]]),
        (palette(), [[10, 20, 30], [200, 100, 0]]),
        (pixels("RGBA", [(9, 9, 9, 0), (9, 8, 7, 255)]), [[255, 255, 255], [9, 8, 7]]),
        (pixels("LA", [(9, 0), (9, 255)]), [[255], [9]]),
        (Image.fromarray(np.array([[0x0102, 0xFFFF, 0x80FF]], np.uint16)), [[1], [255], [128]]),
    ],
    ids=["grey", "bilevel", "colour", "palette", "alpha", "grey-alpha", "16-bit"],
)
def test_modes(tmp_path, image, wanted):
    image.save(tmp_path / "it.png")
    assert read_image(tmp_path / "it.png")[0].tolist() == wanted


def test_a_transparent_colour_is_put_on_white(tmp_path):
    pixels("RGB", [(1, 2, 3), (4, 5, 6)]).save(tmp_path / "it.png", transparency=(1, 2, 3))
    assert read_image(tmp_path / "it.png")[0].tolist() == [[255, 255, 255], [4, 5, 6]]


def test_jpeg_and_webp(tmp_path):
    image = Image.new("RGB", (8, 8), (200, 100, 50))
    image.save(tmp_path / "it.webp", lossless=True)
    assert read_image(tmp_path / "it.webp")[3, 3].tolist() == [200, 100, 50]
    image.save(tmp_path / "it.jpg", quality=95)
    assert np.abs(read_image(tmp_path / "it.jpg")[3, 3].astype(int) - [200, 100, 50]).max() <= 3
    image.convert("CMYK").save(tmp_path / "it.jpeg", quality=95)
    assert np.abs(read_image(tmp_path / "it.jpeg")[3, 3].astype(int) - [200, 100, 50]).max() <= 5


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    pixels("L", [1, 2, 3]).save(tmp_path / "it.png", exif=exif)
    assert read_image(tmp_path / "it.png")[..., 0].tolist() == [[1], [2], [3]]


def test_a_size_is_filled_and_cropped(tmp_path):
    pixels("L", [0, 90, 90, 0]).resize((16, 8), Image.Resampling.NEAREST).save(tmp_path / "it.png")
    found = read_image(tmp_path / "it.png", (8, 8))
    assert found.shape == (8, 8, 1)
    assert found.mean() == 90


def broken_files():
    good = png(40, 40, b"".join(b"\x00" + bytes((7 * i + j * j) % 251 for j in range(40)) for i in range(40)))
    middle = len(good) // 2
    flipped = good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]
    return {
        "empty": (b"", "empty"),
        "text": (b"this is no image", "cannot be identified"),
        "truncated": (good[: len(good) // 2], ""),
        "corrupt": (flipped, ""),
        "large": (png(20_000, 20_000), "pixels"),
        "rather large": (png(10_000, 10_000), "pixels"),
        "other format": (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "cannot be identified"),
    }


@pytest.mark.parametrize("kind", broken_files())
def test_what_cannot_be_read_says_why(tmp_path, kind):
    content, reason = broken_files()[kind]
    (tmp_path / "it.png").write_bytes(content)
    with pytest.raises(BadFile) as caught:
        read_image(tmp_path / "it.png")
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    assert reason in str(caught.value)


def test_animations_are_refused(tmp_path):
    frames = [Image.new("L", (4, 4), shade) for shade in (0, 200)]
    for name in ("it.png", "it.webp"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        with pytest.raises(BadFile, match="animated, 2 frames"):
            read_image(tmp_path / name)


def test_without_pillow_the_fix_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refused("it.png", "pip install 'formers[images]'"):
        read_image(tmp_path / "it.png")
