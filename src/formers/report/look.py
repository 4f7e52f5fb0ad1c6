"""Inside the model of a run, as it has them: attention maps, spans, ponder times, buckets, images, episodes."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from formers.core import FormersError
from formers.depth.halting import STEPS
from formers.generation import sample_images
from formers.model import Model, load
from formers.report.pixels import coloured, png, shaded
from formers.report.read import Recorded
from formers.score import Span

TOKENS = 48
"""Tokens that are looked at."""
MAPS = 4
"""Layers, and heads of each, whose attention is drawn."""
VALUES = 1024
"""Images of more values are not drawn: it takes long."""
IMAGES = 8
FRAMES = 12
"""Steps of an episode that are shown."""
EMBEDDED = ("tmaze", "corridor", "recall")
"""Environments of this library; others would have to be imported."""


def looked(run: Recorded) -> list[tuple[str, str]]:
    """Titles and HTML of what there is to see in a run's model; what fails is a sentence."""
    try:
        model = load(run.folder)
    except FormersError as error:
        return [("Weights", f"<p>{html.escape(str(error))}</p>")]
    if run.is_agent:
        return _tried("Episode", lambda: _episode(run))
    if model.spec.image is not None:
        return _tried("Images", lambda: _images(model))
    if model.tokenizer is None or model.spec.encoder is not None or model.spec.features is not None:
        return []
    ids = _read(run, model)
    if len(ids) < 2:
        return []
    return _tried("Inside", lambda: _inside(model, ids))


def _tried(title: str, make: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    try:
        return make()
    except FormersError as error:
        return [(title, f"<p>{html.escape(str(error))}</p>")]


def _read(run: Recorded, model: Model) -> list[int]:
    """The tokens that are looked at: the beginning of the newest sample, else a sentence."""
    text = next(
        (line["sample"] for line in reversed(run.samples) if len(line["sample"]) > 8), "The quick brown fox jumps over the lazy dog."
    )
    assert model.tokenizer is not None
    return model.tokenizer.encode(text)[: min(TOKENS, model.spec.length)]


def _inside(model: Model, ids: list[int]) -> list[tuple[str, str]]:
    """Attention maps, spans, ponder times and buckets of a text."""
    seen: Any = model.inspect(torch.tensor([ids]))  # type: ignore[operator]
    assert model.tokenizer is not None
    words = [model.tokenizer.decode([i]) for i in ids]
    text = f'<p class="note">Over the text <code>{html.escape("".join(words))}</code></p>'
    found: list[tuple[str, str]] = []
    if seen.attention:
        pictures = []
        for layer in _some(len(seen.attention)):
            weights = seen.attention[layer][0].float().numpy()
            for head in range(min(MAPS, len(weights))):
                name = f"layer {layer + 1}, head {head + 1}"
                pictures.append(_picture(png(shaded(weights[head].astype(np.float64))), name))
        maps = f'{text}<div class="maps">{"".join(pictures)}</div>'
        found.append(("Attention", f'{maps}<p class="note">Rows are queries, columns keys; dark is 1.</p>'))
    if isinstance(model.spec.score, Span):
        found.append(("Spans", _spans(model)))
    steps = seen.notes.get(STEPS)
    if steps:
        counts = steps[-1][0].float().tolist()
        marks = "".join(f"<td>{html.escape(_shown(word))}<br><b>{count:g}</b></td>" for word, count in zip(words, counts, strict=False))
        table = f'{text}<div class="wide"><table><tr>{marks}</tr></table></div>'
        found.append(("Ponder times", f'{table}<p class="note">Steps that each token takes.</p>'))
    buckets = seen.notes.get("buckets")
    if buckets:
        rows = buckets[0][0].reshape(-1, buckets[0].shape[-1]).numpy()
        name = "layer 1, a row for each head and round"
        strip = f'{text}<div class="maps strip">{_picture(png(coloured(rows)), name)}</div>'
        found.append(("Buckets", f'{strip}<p class="note">Tokens of a colour share a bucket.</p>'))
    return found


def _spans(model: Model) -> str:
    """The learned span of each head."""
    from formers.inspect.measure.spans import spans_of

    found = spans_of(model)
    rows = "".join(
        f"<tr><th>layer {i + 1}</th>{''.join(f'<td>{span:,.0f}</td>' for span in layer)}</tr>"
        for i, layer in enumerate(found.mean.tolist())
    )
    return f'<div class="wide"><table>{rows}</table></div><p class="note">Places that each head looks back; at most {found.most:,}.</p>'


def _images(model: Model) -> list[tuple[str, str]]:
    """Images that the model draws."""
    from formers.generation.images import image_shape, levels_of

    height, width, channels = image_shape(model.spec)
    if height * width * channels > VALUES:
        return [("Images", f"<p>Not drawn here: an image has {height * width * channels:,} values. Use <code>formers generate</code>.</p>")]
    label = 0 if model.spec.labels is not None else None
    drawn = sample_images(model, IMAGES, label=label, seed=0).images
    levels = (drawn.double() * 255 / (levels_of(model.spec) - 1)).round().clamp(0, 255).to(torch.uint8).numpy()
    images = [image[..., 0] if channels == 1 else image for image in levels]
    pictures = "".join(_picture(png(np.ascontiguousarray(image)), f"sample {i + 1}") for i, image in enumerate(images))
    return [("Images", f'<div class="maps">{pictures}</div><p class="note">Drawn with seed 0.</p>')]


def _episode(run: Recorded) -> list[tuple[str, str]]:
    """An episode that the agent plays, in an environment of this library."""
    env = str(run.facts["env"])
    if env.split(":")[0] not in EMBEDDED:
        return [("Episode", f"<p>Not played here: {html.escape(env)} is another package's. Use <code>formers play</code>.</p>")]
    from formers.rl import open_agent
    from formers.rl.play import play

    model, environments = open_agent(run.folder, 1)
    try:
        played = play(model, environments, seed=0)
    finally:
        environments.close()
    steps = len(played.rewards)
    cells = [
        f"<figure><pre>{html.escape(chr(10).join(played.frames[t]))}</pre><figcaption>step {t}: action {html.escape(played.actions[t])}, "
        f"reward {played.rewards[t]:g}</figcaption></figure>"
        for t in range(min(steps, FRAMES))
    ]
    summary = f"{steps} steps, return {sum(played.rewards):.3f}, {'success' if played.success else 'no success'}"
    return [("Episode", f'<p>{summary}; the first {min(steps, FRAMES)} steps:</p><div class="maps">{"".join(cells)}</div>')]


def _some(count: int) -> list[int]:
    """Numbers of layers, spread evenly."""
    return sorted({round(i * (count - 1) / max(1, MAPS - 1)) for i in range(MAPS)}) if count > 1 else [0]


def _picture(source: str, name: str) -> str:
    return f'<figure><img src="{source}" alt="{html.escape(name)}"><figcaption>{html.escape(name)}</figcaption></figure>'


def _shown(word: str) -> str:
    return word.replace("\n", "⏎").replace(" ", "␣") or "∅"
