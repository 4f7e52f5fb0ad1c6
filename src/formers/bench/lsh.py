"""LSH attention beside others: a forward and a backward pass of a reversible model, what longer rows cost, and from where on it pays.

- a training pass of `reformer` with LSH layers, beside the Reformers of `transformers` and `reformer-pytorch` of the same sizes, with the
  same chunk and rounds; ours as the paper has it (pairs once, own bucket only), by chunks and by whole buckets, and by the conventions of
  the others (across buckets, pairs as often as they meet);
- LSH attention alone at 16,384 and 32,768 tokens;
- the length from which on it is faster than causal attention over all pairs, fused, with the same projections apart.

Peak memory is that of a first pass in a separate process. tests/parity checks that all compute the same.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.lsh.hashing import factors, fitting, hashes, in_order, rotations
from formers.attention.lsh.kernel import RULES, attend
from formers.attention.lsh.reference import Rules
from formers.bench.memory import extra_memory
from formers.bench.progress import working
from formers.bench.timing import alternate, ratio
from formers.core.allocator import release_memory
from formers.family import create
from formers.inspect.draw.tables import add_row, new_table

SIZES = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024, length=8192)
CHUNK, ROUNDS = 64, 2
OURS: dict[str, dict[str, Any]] = {
    "ours": {"reach": "chunk"},
    "ours_whole_buckets": {"reach": "bucket"},
    "ours_as_theirs": {"reach": "chunk", "across_buckets": True, "duplicates": True, "wrap": "rounds"},
}
PEERS = {"transformers": "transformers", "reformer_pytorch": "reformer-pytorch"}
GROWTH = (16_384, 32_768)
CROSSING = (512, 1024, 2048, 4096, 8192)
LIMITS = {
    "speedup_transformers": (2.0, math.inf), "speedup_reformer_pytorch": (2.0, math.inf),
    "memory_transformers": (0.0, 1.0), "memory_reformer_pytorch": (0.0, 1.0), "growth": (0.0, 2.4),
}  # fmt: skip
"""At least so many times faster than theirs, with no more memory; at most so many times the cost when the length doubles."""
Pass = Callable[[], object]


def bench_lsh(rounds: int) -> dict[str, Any]:
    """Seconds of a pass of each, how much faster ours is, bytes at the peak, the growth with the length, and where it begins to pay."""
    peers = [name for name, package in PEERS.items() if _installed(package)]
    names = [*OURS, *peers]
    with working("timing", (rounds + 2) * len(names)) as advance:
        times = alternate({name: pass_of(name) for name in names}, rounds, tick=partial(advance, 1))
    made: dict[str, Any] = {f"{name}_seconds": statistics.median(each) for name, each in times.items()}
    peaks = {name: extra_memory(fresh_pass, name) for name in ("ours", *peers)}
    made |= {f"{name}_peak_bytes": peak for name, peak in peaks.items()}
    for name in PEERS:
        there = name in peers
        made[f"speedup_{name}"] = ratio(times, name, "ours") if there else None
        made[f"speedup_as_{name}"] = ratio(times, name, "ours_as_theirs") if there else None
        ours, theirs = peaks["ours"], peaks.get(name)
        made[f"memory_{name}"] = ours / theirs if ours and theirs else None
    made["growth"] = growth(rounds)
    crossing = costs_by_length(CROSSING, rounds)
    made["lengths"] = crossing
    made["pays_from"] = crossover(crossing)
    return {**made, "peers": {name: version(PEERS[name]) for name in peers}}


def growth(rounds: int) -> float:
    """The factor by which the cost of LSH attention, forward and backward, grows when the length doubles."""
    short, long = GROWTH
    with working("timing", (rounds + 2) * 2) as advance:
        times = alternate({"short": alone(short, "lsh"), "long": alone(long, "lsh")}, rounds, tick=partial(advance, 1))
    return ratio(times, "long", "short")


def costs_by_length(lengths: Sequence[int], rounds: int) -> dict[int, dict[str, float]]:
    """Seconds of attention, forward and backward, by hashing and over all pairs, for each length."""
    found = {}
    with working("timing", (rounds + 2) * 2 * len(lengths)) as advance:
        for n in lengths:
            times = alternate({kind: alone(n, kind) for kind in ("lsh", "all_pairs")}, rounds, tick=partial(advance, 1))
            found[n] = {kind: statistics.median(each) for kind, each in times.items()}
    return found


def crossover(costs: dict[int, dict[str, float]]) -> int | None:
    """The length at which both cost the same, between those that were timed, on straight lines of logarithms; None where there is none."""
    points = [(math.log(n), math.log(cost["all_pairs"] / cost["lsh"])) for n, cost in sorted(costs.items())]
    if points[0][1] >= 0:
        return round(math.exp(points[0][0]))
    for (x0, y0), (x1, y1) in pairwise(points):
        if y0 < 0 <= y1:
            return round(math.exp(x0 + (x1 - x0) * -y0 / (y1 - y0)))
    return None


def alone(n: int, kind: str) -> Pass:
    """Attention of one row, forward and backward, from its projections on: by hashing, or over all pairs by the fused kernel."""
    heads, width = SIZES["heads"], SIZES["dim"] // SIZES["heads"]
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, width, requires_grad=True) for _ in range(3))
    g = torch.randn(1, heads, n, width)
    factor = factors(fitting(n, CHUNK))
    rules = RULES.number(Rules(causal=True, chunk=CHUNK, reach="chunk"))

    def by_hashing() -> Tensor:
        directions = rotations(heads, width, ROUNDS, sum(factor) // 2, 0, 0)
        return attend(q, v, in_order(hashes(q.detach(), directions, factor)), rules, width**-0.5, None, 0.0)

    def over_all() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both_ways() -> None:
        for x in (q, k, v):
            x.grad = None
        (by_hashing() if kind == "lsh" else over_all()).backward(g)  # type: ignore[no-untyped-call]

    return both_ways


def pass_of(name: str) -> Pass:
    """A forward pass with its loss and a backward pass of ours or of theirs."""
    torch.manual_seed(0)
    tokens, targets = (torch.randint(SIZES["vocab"], (1, SIZES["length"])) for _ in range(2))
    model: nn.Module
    if name in OURS:
        model = create("reformer", preset=None, **SIZES, chunk=CHUNK, rounds=ROUNDS, **OURS[name]).train()
        return partial(_pass, model, lambda: model(tokens, targets=targets).loss)
    model = their_reformer() if name == "transformers" else lucid_reformer()
    logits: Callable[[], Tensor] = (lambda: model(tokens).logits) if name == "transformers" else (lambda: model(tokens))
    return partial(_pass, model, lambda: F.cross_entropy(logits().view(-1, SIZES["vocab"]), targets.view(-1)))


def fresh_pass(name: str) -> Pass:
    """The first pass in a separate process."""
    torch.set_num_threads(1)
    run = pass_of(name)
    gc.collect()
    release_memory()
    return run


def their_reformer() -> nn.Module:
    """The Reformer of the library `transformers` with SIZES: LSH layers, axial positions, no dropout."""
    from transformers import ReformerConfig, ReformerModelWithLMHead

    logging.getLogger("transformers").setLevel(logging.ERROR)
    n, dim = SIZES["length"], SIZES["dim"]
    config = ReformerConfig(
        vocab_size=SIZES["vocab"], hidden_size=dim, attn_layers=["lsh"] * SIZES["layers"], num_attention_heads=SIZES["heads"],
        attention_head_size=dim // SIZES["heads"], feed_forward_size=SIZES["hidden"], is_decoder=True, max_position_embeddings=n,
        axial_pos_shape=(64, n // 64), axial_pos_embds_dim=(dim // 2, dim // 2), lsh_attn_chunk_length=CHUNK, num_hashes=ROUNDS,
        num_buckets=list(factors(fitting(n, CHUNK))), hidden_dropout_prob=0.0, lsh_attention_probs_dropout_prob=0.0, hidden_act="gelu",
    )  # fmt: skip
    make: Any = ReformerModelWithLMHead  # which some versions give types and some do not
    made: nn.Module = make(config)
    return made.train()


def lucid_reformer() -> nn.Module:
    """The ReformerLM of reformer-pytorch of these sizes; its buckets are as many as its chunks."""
    from reformer_pytorch import ReformerLM

    made: nn.Module = ReformerLM(
        num_tokens=SIZES["vocab"], dim=SIZES["dim"], depth=SIZES["layers"], heads=SIZES["heads"], max_seq_len=SIZES["length"],
        bucket_size=CHUNK, n_hashes=ROUNDS, causal=True,
    )  # fmt: skip
    return made.train()


def _pass(model: nn.Module, loss: Callable[[], Tensor]) -> None:
    model.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def tables(results: Mapping[str, Any]) -> tuple[Table | str, ...]:
    """What is printed of the results: the time of attention at each length."""
    table = new_table("tokens", "by hashing, s", "all pairs, s")
    for length, cost in results["lengths"].items():
        add_row(table, f"{length:,}", f"{cost['lsh']:.4f}", f"{cost['all_pairs']:.4f}")
    for column in table.columns:
        column.justify = "right"
    return table, "Attention of one row with 4 heads of 64, forward and backward: 2 rounds, chunks of 64, beside causal SDPA."


def figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """All figures but those of the table."""
    return {name: value for name, value in results.items() if name != "lengths"}
