"""Image generation: cell by cell in the generation order of a model, with the KV cache, in batches.

A cell is drawn from the model's exact distribution over levels and rounded to a level before it is read, so the log-likelihood of an
image in one pass is the sum of the conditionals it was drawn from. A pixel of a mixture is drawn channel by channel, from the exact
conditional of each channel. A temperature divides the logits of levels; of a mixture it divides the logits of the components and
multiplies their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from formers.core import FormersError, Raster
from formers.core.content import fixed_weights
from formers.core.devices import on_host, widest_float
from formers.core.random import generator
from formers.data.images.batches import Cells
from formers.generation.choose import probabilities, refuse_diverged, sample, to_device
from formers.generation.options import Options
from formers.heads import PixelHead, PixelMixture
from formers.inputs.base import INTEGERS
from formers.model import Model, Seq2Seq, Spec, evaluating

BATCH = 64
"""How many images are drawn together, unless a number is given."""
Show = Callable[[int, Tensor], None]
"""What is called after each position: how many positions are known, and the streams (rows, positions, channels) so far."""


class Drawn(NamedTuple):
    """Images that were drawn."""

    images: Tensor
    """(n, height, width, channels), integer levels."""
    nats: Tensor | None
    """-log p (n,) of the cells that were drawn; None where temperature, top_k or top_p changed the distribution."""


def cells_of(spec: Spec) -> Cells:
    """How the model of a spec is given images."""
    if spec.image is None or not isinstance(spec.head, PixelHead):
        raise FormersError(
            f"{spec.name or 'this model'} is no model of images: use one that was trained on images, or `generate` for text."
        )
    source = None if spec.encoder is None else spec.encoder.image
    small = source is not None and (source.height, source.width) != (spec.image.height, spec.image.width)
    return Cells(
        raster=spec.image, levels=levels_of(spec), pixels=isinstance(spec.head, PixelMixture), label=spec.labels is not None,
        source=None if source is None else "small" if small else "grey", source_raster=source,
    )  # fmt: skip


def levels_of(spec: Spec) -> int:
    """The levels that a model of images predicts."""
    levels = spec.head.levels if isinstance(spec.head, PixelMixture) else spec.vocab
    assert levels is not None
    return levels


def image_shape(spec: Spec) -> tuple[int, int, int]:
    """Height, width and channels of the images of a spec: those that a model predicts, or those that its encoder reads."""
    assert spec.image is not None
    return spec.image.height, spec.image.width, spec.features or spec.image.channels


def sample_images(
    model: Model,
    samples: int = 1,
    *,
    label: int | Sequence[int] | Tensor | None = None,
    source: Tensor | None = None,
    given: Tensor | None = None,
    keep: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    batch: int = BATCH,
    show: Show | None = None,
) -> Drawn:
    """Draws images from a model that was trained on images: (samples, height, width, channels) of integer levels.

    label: the class of all images, or of each, where the model is conditioned on classes. source: the small or grey images (samples or 1,
    height, width, channels) of levels that it is conditioned on. given, keep: images (samples or 1, height, width, channels) of levels,
    and a mask (height, width), True at the pixels of them that are kept; these must come first in the generation order. The same seed
    draws the same images, whatever the batch.
    """
    if not isinstance(model, Model):
        raise FormersError(f"the model is a {type(model).__name__}: give what formers.load, formers.create or formers.build returns.")
    options = Options(max_new_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, samples=samples)
    if batch < 1:
        raise FormersError(f"batch={batch} draws nothing: give 1 or more.")
    job = _Job(model, cells_of(model.spec), options)
    labels = job.classes(label, samples)
    sources = job.sources(source, samples)
    known = job.known(given, keep, samples)
    first = int(torch.randint(2**62, ())) if seed is None else seed
    found: list[Drawn] = []
    with evaluating(model), fixed_weights(), torch.inference_mode():
        for start in range(0, samples, batch):
            rows = slice(start, min(start + batch, samples))
            label, source, given = (None if each is None else each[rows] for each in (labels, sources, known))
            found.append(job.run([_uniforms(first, n, job) for n in range(samples)[rows]], label, source, given, show))
    nats = [each.nats for each in found if each.nats is not None]
    return Drawn(torch.cat([each.images for each in found]), torch.cat(nats) if nats else None)


@dataclass(frozen=True)
class _Job:
    """One call: the model, how it is given images, and the options."""

    model: Model
    cells: Cells
    options: Options

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def channels(self) -> int:
        """Channel values that are drawn at each position."""
        return image_shape(self.model.spec)[2] if self.cells.pixels else 1

    def run(self, uniforms: list[Tensor], labels: Tensor | None, sources: Tensor | None, known: Tensor | None, show: Show | None) -> Drawn:
        """Draws as many images as there are rows of random numbers."""
        model, cells, rows = self.model, self.cells, len(uniforms)
        n, device, head = cells.raster.cells, self.device, model.spec.head
        assert isinstance(head, PixelHead)
        draws = to_device(torch.stack(uniforms), device)
        stream = torch.zeros(rows, n, self.channels, dtype=torch.int64, device=device)
        first = 0 if known is None else known.shape[1]
        if known is not None:
            stream[:, :first] = known.to(device)
        further: dict[str, Any] = {} if labels is None else {"label": labels.to(device)}
        plain = self.options.temperature == 1 and self.options.top_k is None and self.options.top_p is None
        nats = torch.zeros(rows, dtype=widest_float(device), device=device) if plain else None
        largest = torch.zeros(rows, device=device)
        state, dtype = model.initial_state(rows), next(model.parameters()).dtype
        source = None if sources is None else sources.to(device)
        begin = 0
        for t in range(first, n):
            given = self._given(stream, begin, t + 1, dtype)
            out = model(source, given, state=state, **further) if isinstance(model, Seq2Seq) else model(given, state=state, **further)
            state, source, begin = out.state, None, t + 1
            logits = out.logits[:, -1]
            for channel in range(self.channels):
                chosen, cost, best = self._choose(head, logits, stream[:, t, :channel], draws[:, t, channel], plain)
                stream[:, t, channel] = chosen
                if on_host(best):
                    refuse_diverged(best)
                else:  # read at the end: a sum with a number that is not finite is not finite
                    largest = largest + best
                if nats is not None:
                    nats += cost
            if show is not None:
                show(t + 1, stream)
        refuse_diverged(largest)
        whole = stream if self.cells.pixels else stream[..., 0]
        return Drawn(cells.raster.to_images(whole).cpu(), None if nats is None else nats.cpu())

    def _given(self, stream: Tensor, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        """What the model is given at positions begin ... end-1: the cells before them."""
        before = stream[:, begin - 1 : end - 1] if begin else torch.cat([torch.zeros_like(stream[:, :1]), stream[:, : end - 1]], dim=1)
        return self.cells.given(before).to(dtype) if self.cells.pixels else before[..., 0]

    def _choose(self, head: PixelHead, logits: Tensor, before: Tensor, u: Tensor, plain: bool) -> tuple[Tensor, Tensor, Tensor]:
        """A level (rows,) from logits, by random numbers u (rows,), -log p of it, and a number (rows,) that is finite if they are."""
        temperature = self.options.temperature
        mixture = isinstance(head, PixelMixture)
        if temperature == 0:
            scores = head.conditional(logits, before, 1.0)
            best, chosen = scores.max(dim=-1)
            return chosen, best, best
        scores = head.conditional(logits, before, temperature if mixture else 1.0)
        if plain:
            scores = scores.to(widest_float(scores.device)).log_softmax(dim=-1)
            p = scores.exp()
        else:
            p = probabilities(scores, self.options.replace(temperature=1.0) if mixture else self.options)
        chosen = sample(p, u[:, None])
        return chosen, -scores.gather(1, chosen[:, None])[:, 0], p.sum(dim=-1)

    def classes(self, label: int | Sequence[int] | Tensor | None, samples: int) -> Tensor | None:
        """The class (samples,) of each image."""
        wanted = self.model.spec.labels
        if label is None:
            if wanted is not None:
                raise FormersError(f"the model is conditioned on {wanted} classes: give a label from 0 to {wanted - 1}.")
            return None
        if wanted is None:
            raise FormersError(f"label={label} was given, and the model is not conditioned on classes: leave it out.")
        try:
            given = torch.as_tensor(label).reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            given = torch.empty(0)
        if given.dtype not in INTEGERS:
            raise FormersError(f"label={label!r} is no class: give an integer from 0 to {wanted - 1}, or one for each image.")
        found = given.long().cpu()
        if len(found) not in (1, samples):
            raise FormersError(f"{len(found)} labels were given for {samples} images: give one label, or one for each.")
        wrong = found[(found < 0) | (found >= wanted)]
        if len(wrong):
            raise FormersError(f"class {int(wrong[0])} does not exist: give a label from 0 to {wanted - 1}.")
        return found.expand(samples)

    def sources(self, source: Tensor | None, samples: int) -> Tensor | None:
        """What the encoder is given for each image."""
        raster = self.cells.source_raster
        if raster is None:
            if source is not None:
                raise FormersError("a source image was given, and the model is not conditioned on one: leave it out.")
            return None
        encoder = self.model.spec.encoder
        assert encoder is not None
        shape = image_shape(encoder)
        if source is None:
            raise FormersError(
                f"the model is conditioned on a {self.cells.source} image: give source of {shape[0]} x {shape[1]} x {shape[2]}."
            )
        checked = self._images("source", source, shape, samples)
        given = self.cells.given(self.cells.stream(checked, raster)).expand(samples, *[-1] * (2 if self.cells.pixels else 1))
        return given.to(next(self.model.parameters()).dtype) if self.cells.pixels else given

    def known(self, given: Tensor | None, keep: Tensor | None, samples: int) -> Tensor | None:
        """The first cells (samples, positions, channels) of each stream that are given."""
        if given is None and keep is None:
            return None
        if given is None or keep is None:
            raise FormersError("completing an image needs both given, the image, and keep, the mask of the pixels that are kept.")
        raster, spec = self.cells.raster, self.model.spec
        images = self._images("given", given, image_shape(spec), samples)
        if not isinstance(keep, Tensor) or tuple(keep.shape) != (raster.height, raster.width) or keep.dtype != torch.bool:
            got = f"{keep.dtype} of shape {tuple(keep.shape)}" if isinstance(keep, Tensor) else f"a {type(keep).__name__}"
            raise FormersError(f"keep is {got}: give bool of shape ({raster.height}, {raster.width}), True = kept.")
        count = prefix(raster, keep)
        stream = self.cells.stream(images)
        stream = stream if self.cells.pixels else stream[..., None]
        return stream[:, :count].expand(samples, -1, -1)

    def _images(self, name: str, images: Tensor, shape: tuple[int, int, int], samples: int) -> Tensor:
        """Integer images (samples or 1, height, width, channels) whose levels the model knows."""
        if not isinstance(images, Tensor) or images.is_floating_point() or images.dim() != 4 or tuple(images.shape[1:]) != shape:
            got = f"{images.dtype} of shape {tuple(images.shape)}" if isinstance(images, Tensor) else f"a {type(images).__name__}"
            raise FormersError(f"{name} is {got}: give integers of shape (images, {', '.join(map(str, shape))}).")
        if len(images) not in (1, samples):
            raise FormersError(f"{name} has {len(images)} images for {samples} samples: give one, or one for each.")
        if int(images.min()) < 0 or int(images.max()) >= self.cells.levels:
            raise FormersError(
                f"{name} has levels from {int(images.min())} to {int(images.max())}: the model has 0 ... {self.cells.levels - 1}."
            )
        return images.long()


def prefix(raster: Raster, keep: Tensor) -> int:
    """How many positions of the stream are kept by a mask (height, width); they must come first in the order."""
    order = raster.order() // raster.channels
    kept = keep.flatten()[order]
    count = int(kept.sum())
    if bool(kept[:count].all()):
        return count
    others = list(_orders(raster, keep))
    fix = f"train with {' or '.join(others[:3])}" if others else "keep pixels that come first, such as whole rows at the top"
    raise FormersError(
        f"the {count // raster.channels} pixels that are kept do not come first in the model's order "
        f"({'row after row' if raster.block is None else f'blocks of {raster.block[0]} x {raster.block[1]}'}), "
        f"so the others cannot be drawn exactly: {fix}."
    )


def _orders(raster: Raster, keep: Tensor) -> Iterator[str]:
    """The orders, as options of image-transformer, in which the pixels of a mask come first: fewest blocks first."""
    flat, pixels = keep.flatten(), raster.replace(channels=1, block=None)
    sides = [(h, w) for h in range(raster.height, 0, -1) for w in range(raster.width, 0, -1)]
    for h, w in sorted(sides, key=lambda side: -(-raster.height // side[0]) * -(-raster.width // side[1])):
        kept = flat[pixels.replace(block=(h, w)).order()]
        if bool(kept[: int(kept.sum())].all()):
            yield "layout=1d" if (h, w) == (raster.height, raster.width) else f"layout=2d query_block=[{h},{w}]"


def _uniforms(seed: int, number: int, job: _Job) -> Tensor:
    """The random numbers (positions, channels) in [0, 1) of an image, a function of the seed and its number."""
    return torch.rand(job.cells.raster.cells, job.channels, dtype=torch.float64, generator=generator(seed, "image", number))
