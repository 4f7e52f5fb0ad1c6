"""Other libraries compared with formers: the same mask and shapes, alternating in one process, forward and backward.

`local-attention` looks at blocks. As it comes, a query sees its own block causally and the one before it: Blocks(query=w, memory=w). With
`exact_windowsize` it sees w places back and itself: Local(window=w+1). Its rotary positions are off. That both compute the same is
checked before they are timed.

`transformers` has BigBird as a model. Its random blocks are others than ours, but as many, so that both compute as much.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from formers.attention import attend
from formers.bench.progress import working
from formers.bench.timing import alternate, both_ways, ratio
from formers.core import FormersError
from formers.family import spec
from formers.heads import NoHead
from formers.inspect.draw.tables import add_row, new_table
from formers.inspect.measure.part_text import spell
from formers.model import Model, build
from formers.patterns import Blocks, Local, Pattern

PEERS = {"local_attention": "local-attention", "transformers": "transformers"}
"""The packages as they are imported, and as they are installed."""
HEADS, WIDTH = 4, 64
LENGTH, WINDOW = 8192, 128
SIZES = dict(vocab=256, dim=256, heads=4, layers=4, hidden=1024, length=4096)
BLOCK, RANDOM = 64, 3
NEAR = 1e-5
"""How far the same attention, computed in float32 by two, may be apart."""
LIMITS = {"local_speedup": (2.0, float("inf")), "blocks_speedup": (2.0, float("inf")), "bigbird_speedup": (1.3, float("inf"))}
NOTE = "transformers draws other random blocks than we do; there are as many, of the same size. It has one more norm, after the embedding."

COLUMNS = (
    "CPU seconds of forward and backward passes, ours and theirs; how many times faster ours is; and how far apart the results of the same "
    "attention are."
)


def bench_peers(rounds: int) -> dict[str, Any]:
    """The speedup over each library, and the times as rows."""
    for module, package in PEERS.items():
        if find_spec(module) is None:
            raise FormersError(f"this bench compares with {package}, which is not installed: pip install {package}.")
    with working("timing beside others", 6 * rounds + 12) as advance:
        tick = partial(advance, 1)
        local = _beside_local_attention("local", Local(window=WINDOW + 1), True, rounds, tick)
        blocks = _beside_local_attention("blocks", Blocks(query=WINDOW, memory=WINDOW), False, rounds, tick)
        rows = [local, blocks, _beside_transformers(rounds, tick)]
    return {"rows": rows, "note": NOTE, **{f"{row['name']}_speedup": row["speedup"] for row in rows}}


def _beside_local_attention(name: str, pattern: Pattern, exact: bool, rounds: int, tick: Callable[[], None]) -> dict[str, Any]:
    """Attention alone, over a causal pattern that local-attention can compute too."""
    from local_attention import LocalAttention

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3))
    g = torch.randn(1, HEADS, LENGTH, WIDTH)
    peer = LocalAttention(
        window_size=WINDOW, causal=True, look_backward=1, exact_windowsize=exact, dropout=0.0, use_rotary_pos_emb=False
    ).train()
    ways: dict[str, Callable[[], Tensor]] = {"ours": partial(attend, q, k, v, pattern), "theirs": partial(peer, q, k, v)}
    difference = float((ways["ours"]() - ways["theirs"]()).detach().abs().max())
    if not difference <= NEAR:
        raise FormersError(
            f"local-attention {version('local-attention')} computes something else than {spell(pattern)}, {difference:.2g} apart, "
            "so times cannot be compared: install another version of it."
        )
    times = alternate({who: partial(both_ways, way, (q, k, v), g) for who, way in ways.items()}, rounds, tick=tick)
    setting = f"LocalAttention(window_size={WINDOW}, causal=True{', exact_windowsize=True' if exact else ''})"
    return {"name": name, "pattern": spell(pattern), "length": LENGTH, **_row("local-attention", setting, times), "difference": difference}


def _beside_transformers(rounds: int, tick: Callable[[], None]) -> dict[str, Any]:
    """Whole models of the same sizes, without heads and without dropout, in training mode."""
    torch.manual_seed(0)
    tokens = torch.randint(SIZES["vocab"], (1, SIZES["length"]))
    g = torch.randn(1, SIZES["length"], SIZES["dim"])
    ours, theirs = our_bigbird(), their_bigbird()

    def hidden(model: torch.nn.Module, name: str) -> Tensor:
        return getattr(model(tokens), name)

    ways = {"ours": partial(hidden, ours, "hidden"), "theirs": partial(hidden, theirs, "last_hidden_state")}
    weights = {"ours": tuple(ours.parameters()), "theirs": tuple(theirs.parameters())}
    times = alternate({who: partial(both_ways, ways[who], weights[who], g) for who in ways}, rounds, tick=tick)
    if theirs.attention_type != "block_sparse":
        raise FormersError(f"transformers' BigBird computes all pairs of {SIZES['length']} tokens in blocks of {BLOCK}: take more tokens.")
    setting = f"BigBirdModel, {SIZES['layers']} layers of {SIZES['dim']}, block_sparse, blocks of {BLOCK}"
    counts = {f"{who}_parameters": sum(p.numel() for p in each) for who, each in weights.items()}
    row = _row("transformers", setting, times)
    return {"name": "bigbird", "pattern": spell(ours.spec.pattern), "length": SIZES["length"], **row, **counts}


def our_bigbird() -> Model:
    """Ours of these sizes: the paper's, without its head and dropout."""
    made = spec("bigbird", preset="base", **SIZES, block=BLOCK, random_blocks=RANDOM, dropout=0.0, attention_dropout=0.0)
    return build(made.replace(head=NoHead())).train()


def their_bigbird() -> Any:
    """The BigBird of transformers, of these sizes."""
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(
        vocab_size=SIZES["vocab"], hidden_size=SIZES["dim"], num_hidden_layers=SIZES["layers"], num_attention_heads=SIZES["heads"],
        intermediate_size=SIZES["hidden"], max_position_embeddings=SIZES["length"], hidden_act="gelu", hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attention_type="block_sparse", block_size=BLOCK, num_random_blocks=RANDOM,
    )  # fmt: skip
    model: Callable[..., Any] = BigBirdModel
    return model(config, add_pooling_layer=False).train()


def _row(package: str, setting: str, times: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "peer": f"{package} {version(package)}",
        "setting": setting,
        "our_seconds": statistics.median(times["ours"]),
        "their_seconds": statistics.median(times["theirs"]),
        "speedup": ratio(times, "theirs", "ours"),
    }


def tables(results: Mapping[str, Any]) -> tuple[Table | str, ...]:
    """What is printed of the results: the times, how theirs are set up, and what the columns are."""
    table = new_table("ours", "theirs", "tokens", "our s", "their s", "faster", "apart")
    for row in results["rows"]:
        seconds = [f"{row[f'{who}_seconds']:.4f}" for who in ("our", "their")]
        apart = "" if row.get("difference") is None else f"{row['difference']:.0e}"
        add_row(table, row["pattern"], row["peer"], f"{row['length']:,}", *seconds, f"{row['speedup']:.2f}", apart)
    for column in range(2, 7):
        table.columns[column].justify = "right"
    settings = new_table("theirs", "set up as")
    for row in results["rows"]:
        add_row(settings, row["peer"], row["setting"])
    return table, settings, f"{COLUMNS} {results['note']}"


def figures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The figures that limits are of."""
    return {name: results[name] for name in LIMITS}
