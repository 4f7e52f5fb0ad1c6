"""`formers generate` with a run of images: samples, completions and scaled-up images, on the terminal and in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from formers.cli.attention import class_number
from formers.cli.common import notice, print_json, wrote

if TYPE_CHECKING:
    from torch import Tensor

    from formers.model import Model

KEEP = ("top", "bottom", "left", "right")


def draw(
    model: Model,
    *,
    run: Path,
    samples: int,
    label: str | None,
    image: str | None,
    keep: str | None,
    source: str | None,
    nearest: bool,
    out: Path | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    batch: int,
    json: bool,
) -> None:
    """Draws images with a model and writes them: to `out` (.png, or .gif that shows them grow), else onto the terminal."""
    import torch

    from formers.core import FormersError
    from formers.data.images.single import shape_of_set
    from formers.generation import sample_images
    from formers.generation.images import cells_of, image_shape, levels_of, prefix
    from formers.inspect.draw.images import grid, rows_with_titles, save_growing, save_png
    from formers.inspect.draw.nearest import nearest_picture
    from formers.inspect.draw.terminal_images import LiveImage

    spec = model.spec
    cells, levels = cells_of(spec), levels_of(spec)
    raster = cells.raster
    shape = image_shape(spec)
    if out is not None and out.suffix.lower() not in (".png", ".gif"):
        raise FormersError(f"{out.name!r} is no name for drawn images: end it in .png, or in .gif to see them grow.")
    if (image is None) != (keep is None):
        raise FormersError("completing an image needs both --image FILE and --keep top, bottom, left, right or a number of rows.")
    if nearest and (out is None or out.suffix.lower() != ".png"):
        raise FormersError("--nearest draws a second picture below the first: give --out with a name that ends in .png.")
    if spec.labels is not None and label is None:
        raise FormersError(f"the model is conditioned on {spec.labels} classes: give one with --class.")
    if spec.encoder is not None and source is None:
        height, width, channels = image_shape(spec.encoder)
        raise FormersError(
            f"the model is conditioned on a {cells.source} image of {height} x {width} x {channels}: give one with --source FILE."
        )
    given = None if image is None else read_levels(image, shape, levels)
    mask = None if keep is None else kept(keep, raster.height, raster.width)
    small, original = None, None
    if source is not None:
        if spec.encoder is None:
            raise FormersError("--source is for models that are conditioned on an image: leave it out.")
        if shape_of_set(source) == shape:
            original = read_levels(source, shape, levels)
            small = cells.source_images(original)
        else:
            small = read_levels(source, image_shape(spec.encoder), levels)
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    with LiveImage(shape, levels, raster) as live:
        drawn = sample_images(
            model, samples, label=class_number(model, label), source=small, given=given, keep=mask,
            temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, batch=batch,
            show=lambda done, stream: live.update(stream if cells.pixels else stream[..., 0], done),
        )  # fmt: skip
    if out is None and not json:
        _on_terminal(drawn.images, levels, live.shown)
    elif out is not None and out.suffix.lower() == ".gif":
        first = 0 if mask is None else prefix(raster, mask)
        wrote(save_growing(out, drawn.images, levels, raster, first), json)
    elif out is not None and nearest:
        wrote(save_png(out, nearest_picture(drawn.images, _training_images(run, model), levels)), json)
    elif out is not None:
        rows: dict[str, Tensor] = {}
        if small is not None:
            rows["source"] = small.expand(samples, -1, -1, -1)
        if given is not None and mask is not None:
            rows["given"] = torch.where(mask[None, :, :, None], given, 0).expand(samples, -1, -1, -1)
        rows["samples"] = drawn.images
        if original is not None:
            rows["original"] = original.expand(samples, -1, -1, -1)
        picture = rows_with_titles(rows, levels) if len(rows) > 1 else grid(drawn.images, levels)
        wrote(save_png(out, picture), json)
    if json:
        dimensions = drawn.images[0].numel() if mask is None else drawn.images[0].numel() - int(mask.sum()) * shape[2]
        print_json(_facts(drawn.images, drawn.nats, dimensions, levels, seed, out))
    elif drawn.nats is not None:
        notice(f"seed {seed}: the samples have {float(drawn.nats.mean()):,.1f} nats on average under the model")


def kept(word: str, height: int, width: int) -> Tensor:
    """The mask (height, width) of the pixels that --keep names: a half of the image, or so many rows at the top."""
    import torch

    from formers.core import FormersError

    mask = torch.zeros(height, width, dtype=torch.bool)
    if word.isdecimal() and 0 < int(word) < height:
        mask[: int(word)] = True
        return mask
    halves = {
        "top": mask[: height // 2], "bottom": mask[height // 2 :], "left": mask[:, : width // 2], "right": mask[:, width // 2 :],
    }  # fmt: skip
    if word not in halves:
        raise FormersError(f"--keep {word} is no part of an image of {height} rows: give {', '.join(KEEP)}, or 1 ... {height - 1} rows.")
    halves[word][:] = True  # a view of the mask
    return mask


def read_levels(image: str, shape: tuple[int, int, int], levels: int) -> Tensor:
    """An image as integer levels (1, height, width, channels); what was done to it is said."""
    from formers.data.images.single import read_single

    found = read_single(image, shape, levels)
    for line in found.notices:
        notice(f"formers: {line}")
    return found.levels[None]


def _training_images(run: Path, model: Model) -> Tensor:
    """The images that a run was trained on."""
    import torch

    from formers.core import FormersError
    from formers.data.images import ImageBatches
    from formers.training.run import open_run

    _, task, _ = open_run(run)
    if not isinstance(task.batches, ImageBatches):
        raise FormersError(f"{run} was not trained on images that are there: leave --nearest out.")
    return task.batches.images("train", torch.arange(len(task.batches.parts["train"])))


def _on_terminal(images: Tensor, levels: int, shown: bool) -> None:
    """Prints images as characters, unless a live view has shown them; never their bytes."""
    import shutil
    import sys

    from formers.inspect.draw.terminal_images import colours_of, render

    if shown:
        return
    width, encoding = shutil.get_terminal_size().columns, sys.stdout.encoding or "ascii"
    for number, image in enumerate(images):
        if number:
            print()
        print(render(image, levels, width=width, colours=colours_of() if sys.stdout.isatty() else "none", encoding=encoding))


def _facts(images: Tensor, nats: Tensor | None, dimensions: int, levels: int, seed: int, out: Path | None) -> dict[str, Any]:
    """What is said of drawn images."""
    import math

    likelihood = {} if nats is None else {"nats": [round(n, 4) for n in nats.tolist()]}
    bits = {} if nats is None or dimensions == 0 else {"bits_per_dimension": float(nats.mean()) / (dimensions * math.log(2))}
    return {"images": images.tolist(), "levels": levels, "seed": seed, **likelihood, **bits, "out": None if out is None else str(out)}
