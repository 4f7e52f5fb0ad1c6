"""Decoding: the KV cache compared with recomputation and with a minimal cached decoder, and the cost per token by context."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from formers.bench.plain import PlainDecoder
from formers.bench.timing import alternate, ratio
from formers.core import State
from formers.family import spec
from formers.generation import generate
from formers.model import Model, build
from formers.patterns import Local, Pattern

SIZES = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024)
SLIM = dict(vocab=256, dim=128, heads=2, layers=2, hidden=128)
"""Sizes of the sweep over contexts: so small that the cache, not the weights, dominates the cost of a token."""
TOKENS = 32
"""How many tokens are written one after the other from the same context."""
CONTEXTS = (2048, 4096, 8192, 16384)
WINDOW = 256
WRITTEN = (128, 1024)
"""Number of tokens generated after a prompt of PROMPT tokens."""
PROMPT = 16
LIMITS = {
    "speedup": (10.0, float("inf")),
    "largest_difference": (0.0, 1e-4),
    "local_growth": (0.0, 1.25),
    "causal_bend": (0.6, 1.5),
    f"generate_{WRITTEN[-1]}_to_plain": (0.0, 1.0),
    "token_to_plain": (0.0, 1.0),
}


@torch.inference_mode()
def bench_decode(context: int, rounds: int) -> dict[str, float]:
    """Seconds per token, with and without the cache, ours and the plainest, and how they grow with the context."""
    torch.manual_seed(0)
    return {**_against_recomputing(context, rounds), **_against_plain(context, rounds), **_against_context(rounds)}


def _against_recomputing(context: int, rounds: int) -> dict[str, float]:
    """A cached token compared with reading the whole context, and the largest difference of their logits."""
    model = _model(context + 1)
    tokens = torch.randint(256, (1, context + 1))
    read = model(tokens[:, :context]).state
    cached, whole = model(tokens[:, context:], state=read).logits, model(tokens).logits[:, -1:]
    times = alternate({"cached": _write(model, read), "recomputed": lambda: model(tokens)}, rounds)
    return {
        "context": context,
        "cached_seconds": statistics.median(times["cached"]) / TOKENS,
        "recomputed_seconds": statistics.median(times["recomputed"]),
        "speedup": TOKENS * ratio(times, "recomputed", "cached"),
        "largest_difference": float((cached - whole).abs().max()),
    }


def _against_plain(context: int, rounds: int) -> dict[str, float]:
    """A token after so much context, and whole greedy generations from a short prompt, beside the plainest decoder's."""
    length = max(context + TOKENS, PROMPT + max(WRITTEN))
    ours, plain = _model(length), PlainDecoder(**SIZES, length=length).eval()
    tokens = torch.randint(256, (1, context))
    read, (_, past) = ours(tokens).state, plain.read(tokens)

    def write_plainly() -> None:
        caches = past
        for _ in range(TOKENS):
            _, caches = plain.read(tokens[:, :1], caches)

    times = alternate({"ours": _write(ours, read), "plain": write_plainly}, rounds)
    figures = {"token_to_plain": ratio(times, "ours", "plain")}
    prompt = tokens[:, :PROMPT]
    for new in WRITTEN:
        both = {
            "ours": lambda new=new: generate(ours, prompt, max_new_tokens=new, temperature=0),
            "plain": lambda new=new: plain.write(prompt, new),
        }
        figures[f"generate_{new}_to_plain"] = ratio(alternate(both, max(3, rounds // 3), warmup=1), "ours", "plain")
    return figures


def _against_context(rounds: int) -> dict[str, float]:
    """Seconds per token at each context, causal and local; the growth of the local one, and how straight the causal line is."""
    things: dict[str, Callable[[], None]] = {}
    for name, pattern in (("causal", None), ("local", Local(window=WINDOW))):
        model = _model(max(CONTEXTS) + TOKENS, pattern, SLIM)
        for n in CONTEXTS:
            things[f"{name}_{n}"] = _write(model, _read(model, n))
    times = alternate(things, rounds, warmup=1)
    each = {name: statistics.median(t) / TOKENS for name, t in times.items()}
    first, _, third, last = (each[f"causal_{n}"] for n in CONTEXTS)
    return {
        **{f"{name}_seconds": seconds for name, seconds in each.items()},
        "local_growth": ratio(times, f"local_{CONTEXTS[-1]}", f"local_{CONTEXTS[0]}"),
        # 1 on a line; 0 if the price did not grow any more, 2.4 on a parabola.
        "causal_bend": (last - third) / (third - first) * (CONTEXTS[2] - CONTEXTS[0]) / (CONTEXTS[3] - CONTEXTS[2]),
    }


def _model(length: int, pattern: Pattern | None = None, sizes: dict[str, int] | None = None) -> Model:
    made = spec("decoder", preset=None, **(sizes or SIZES), length=length, dropout=0.0)
    return build(made if pattern is None else made.replace(pattern=pattern)).eval()


def _read(model: Model, n: int) -> State:
    """The state after n random tokens, read in chunks, so that no n x n mask is needed."""
    state = model.initial_state(1)
    for piece in torch.split(torch.randint(256, (1, n)), 512, dim=1):
        state = model(piece, state=state).state
    return state


def _write(model: Model, read: State) -> Callable[[], None]:
    """Generates TOKENS tokens from a state."""
    token = torch.zeros(1, 1, dtype=torch.int64)

    def write() -> None:
        state = read
        for _ in range(TOKENS):
            state = model(token, state=state).state

    return write
