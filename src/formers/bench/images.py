"""The Image Transformer beside the fused kernel with a mask, beside drawing without a cache, and beside ImageGPT of `transformers`.

Everything runs on one thread, alternating in one process, in CPU time. Drawing without a cache is one pass over the prefix for every
cell; the passes of a few prefixes are timed, and the time of all follows by the trapezoidal rule.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from formers.attention import attend
from formers.attention.attend import only
from formers.bench.timing import alternate, both_ways, one_thread, ratio
from formers.core import Context, Range
from formers.family import create
from formers.generation.images import sample_images
from formers.model import Model
from formers.patterns import LocalGrid, OrderedGrid

SIZES: dict[str, Any] = dict(height=32, width=32, channels=3, dim=128, heads=4, layers=4, dropout=0.0)
GRID: dict[str, Any] = dict(layout="2d", query_block=(8, 8), memory_block=(4, 4))
PEER: dict[str, Any] = dict(height=28, width=28, channels=1, dim=128, heads=4, layers=4, dropout=0.0)
SMALL: dict[str, Any] = dict(query_block=56, memory_block=112)
"""The blocks that docs/image-transformer.md trains on MNIST; without them a block has 252 pixels and a memory of 504."""
BATCH = 16
PREFIXES = 9
LIMITS = {
    "attention_speedup": (5.0, float("inf")),
    "layer_speedup": (3.0, float("inf")),
    "sample_seconds": (0.0, 4.0),
    "cache_speedup": (50.0, float("inf")),
    "imagegpt_sampling_speedup": (4.0, float("inf")),
}


def bench_images(rounds: int) -> dict[str, float]:
    """Speedups of 2-D local attention, of drawing with the cache, and over ImageGPT; seconds of one 32 x 32 x 3 image."""
    torch.manual_seed(0)
    with one_thread():
        found = {**_local(rounds), **_drawing()}
    return {**found, **_peer(rounds)} if find_spec("transformers") is not None else found


def _local(rounds: int) -> dict[str, float]:
    """2-D local attention of 3,072 cells, and a whole block with it, forward and backward, beside the fused kernel with a mask."""
    grid = LocalGrid(height=32, width=32, query=GRID["query_block"], memory=GRID["memory_block"])
    pattern = OrderedGrid(grid=grid, channels=3)
    q, k, v = (torch.randn(1, 4, pattern.max_length, 32, requires_grad=True) for _ in range(3))
    weight = torch.randn_like(q)
    block: Any = next(create("image-transformer", **SIZES, **GRID).train().get_submodule("stack.depth.blocks").children())
    x = torch.randn(1, pattern.max_length, SIZES["dim"], requires_grad=True)
    ahead = torch.randn_like(x)

    def layer() -> object:
        return both_ways(lambda: block(x, Context(Range(0, pattern.max_length)), None, 0)[0], (x, *block.parameters()), ahead)

    def masked(thing: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with only("sdpa"):
                return thing()

        return run

    times = alternate(
        {
            "attention": lambda: both_ways(lambda: attend(q, k, v, pattern), (q, k, v), weight),
            "masked attention": lambda: both_ways(lambda: attend(q, k, v, pattern, how="sdpa"), (q, k, v), weight),
            "layer": layer,
            "masked layer": masked(layer),
        },
        rounds,
        warmup=1,
    )
    return {
        **{f"{name.replace(' ', '_')}_seconds": statistics.median(seconds) for name, seconds in times.items()},
        "attention_speedup": ratio(times, "masked attention", "attention"),
        "layer_speedup": ratio(times, "masked layer", "layer"),
    }


def _drawing() -> dict[str, float]:
    """CPU seconds of one image with the cache, and how many times longer it takes without."""
    model = create("image-transformer", **SIZES, **GRID).eval()
    start = time.process_time()
    sample_images(model, 1, seed=0)
    with_cache = time.process_time() - start
    cells = model.spec.length
    prefixes = [max(1, round(cells * i / (PREFIXES - 1))) for i in range(PREFIXES)]
    tokens = torch.randint(256, (1, cells))
    seconds = []
    with torch.no_grad():
        for n in prefixes:
            model(tokens[:, :n])
            start = time.process_time()
            model(tokens[:, :n])
            seconds.append(time.process_time() - start)
    without = sum((b - a) * (s + t) / 2 for a, b, s, t in zip(prefixes, prefixes[1:], seconds, seconds[1:], strict=False))
    return {"sample_seconds": with_cache, "sample_seconds_without_cache": without, "cache_speedup": without / with_cache}


def _peer(rounds: int) -> dict[str, float]:
    """A training step, and drawing, of 16 images of 784 cells, beside ImageGPT with the same sizes, with the default and small blocks."""
    import transformers

    ours = create("image-transformer", **PEER, norm="pre", activation="gelu")
    small = create("image-transformer", **PEER, **SMALL, norm="pre", activation="gelu")
    theirs = transformers.ImageGPTForCausalImageModeling(
        transformers.ImageGPTConfig(
            vocab_size=257,
            n_positions=784,
            n_embd=PEER["dim"],
            n_layer=PEER["layers"],
            n_head=PEER["heads"],
            n_inner=4 * PEER["dim"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=256,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    cells = torch.randint(256, (BATCH, 784))
    shifted = torch.cat([torch.full_like(cells[:, :1], 256), cells[:, :-1]], dim=1)

    def step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            model.train().zero_grad()
            torch.autograd.backward(loss())

        return run

    times = alternate(
        {
            "ours": step(ours, lambda: ours(cells, targets=cells).loss),
            "small": step(small, lambda: small(cells, targets=cells).loss),
            "theirs": step(theirs, lambda: theirs(input_ids=shifted, labels=cells).loss),
        },
        max(1, rounds // 2),
        warmup=1,
    )
    drawn = alternate(
        {
            "ours": lambda: sample_images(ours, BATCH, seed=0),
            "small": lambda: sample_images(small, BATCH, seed=0),
            "theirs": lambda: _imagegpt_samples(theirs),
        },
        max(1, rounds // 2),
        warmup=0,
    )
    seconds = {name: statistics.median(each) for name, each in drawn.items()}
    return {
        "keys": _keys(ours),
        "small_block_keys": _keys(small),
        "step_seconds": statistics.median(times["ours"]),
        "imagegpt_step_seconds": statistics.median(times["theirs"]),
        "imagegpt_step_speedup": ratio(times, "theirs", "ours"),
        "small_block_imagegpt_step_speedup": ratio(times, "theirs", "small"),
        "images_per_second": BATCH / seconds["ours"],
        "small_block_images_per_second": BATCH / seconds["small"],
        "imagegpt_images_per_second": BATCH / seconds["theirs"],
        "imagegpt_sampling_speedup": ratio(drawn, "theirs", "ours"),
        "small_block_imagegpt_sampling_speedup": ratio(drawn, "theirs", "small"),
    }


def _keys(model: Model) -> float:
    """How many keys a query of a model sees on average; of ImageGPT (n + 1) / 2."""
    n = model.spec.length
    return float(model.spec.pattern.mask(n).sum()) / n


@torch.no_grad()
def _imagegpt_samples(model: Any) -> Tensor:
    """Images of ImageGPT, drawn as its documentation does, with its cache."""
    begin = torch.full((BATCH, 1), 256)
    made: Tensor = model.eval().generate(input_ids=begin, max_new_tokens=784, do_sample=True, temperature=1.0, top_k=0)
    return made
