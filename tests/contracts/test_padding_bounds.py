"""Length limits of positions, patterns and projections count real tokens, not padding; the mask is read only if it matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import formers
from contracts.specimens import Subject, subject
from formers import Spec
from formers.attention import ByLayer, LowRank
from formers.heads import Classify
from formers.patterns import Alternate, Full, LocalGrid
from formers.position import Axial, Grid, Learned, PerLayer
from helpers import close, gradients, refused

ROOM, PLACES = 8, 12
SIZES: dict[str, Any] = {"vocab": 11, "dim": 16, "heads": 2, "layers": 2, "hidden": 24, "length": ROOM, "dropout": 0.0}
DECODER, ENCODER, PAIR = (formers.spec(name, **SIZES) for name in ("decoder", "encoder", "transformer"))
LOW = formers.spec("linformer", rank=4, **SIZES)
IMAGE = LocalGrid(height=2, width=4, query=(1, 2), memory=(1, 1))
ENDING: dict[str, Spec] = {
    "learned": DECODER.replace(position=Learned()),
    "learned, reversible": formers.spec("decoder", position="learned", norm="reversible", **SIZES),
    "axial": DECODER.replace(position=Axial()),
    "per layer": DECODER.replace(position=PerLayer()),
    "grid": DECODER.replace(position=Grid(width=4)),
    "image, causal": DECODER.replace(pattern=IMAGE),
    "image": ENCODER.replace(pattern=Alternate(Full(), LocalGrid(height=2, width=4, query=(2, 2), memory=(1, 1)))),
    "auxiliary losses": formers.spec("character-transformer", **SIZES),
    "classes": formers.spec("encoder", position="learned", classes=3, pool="first", **SIZES),
    "linformer": LOW,
    "linformer, convolution": LOW.replace(attention=LowRank(rank=4, projection="conv")),
    "linformer, mean": LOW.replace(attention=ByLayer(LowRank(rank=4, projection="mean"))),
    "bigbird": formers.spec("bigbird", block=2, window=1, extra=2, position="learned", **SIZES),
    "reformer": formers.spec("reformer", chunk=2, buckets=2, position="learned", **SIZES),
    "halting": formers.spec("encoder", position="learned", **SIZES).replace(depth=formers.depth.Adaptive(layers=3)),
    "pair": formers.spec("transformer", position="learned", **SIZES),
    "pair, linformer": PAIR.replace(encoder=PAIR.encoder.replace(attention=LowRank(rank=4))),
}
STREAMS = {name: spec for name, spec in ENDING.items() if spec.is_causal and spec.max_length is not None}
EACH = pytest.mark.parametrize("spec", ENDING.values(), ids=ENDING)
# Six real tokens on the left, on the right and scattered; as many as fit; few; one.
MASK = torch.tensor(
    [
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
        [1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1],
        [1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 1],
        [0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ],
    dtype=torch.bool,
)
ROWS = range(len(MASK))


def padded(spec: Spec) -> Subject:
    """A subject whose source, where it reads one, is padded in other places than its target."""
    read = subject(spec, batch=len(MASK), source_length=PLACES)
    return read if read.source is None else replace(read, source_mask=MASK.flip(0))


def real(read: Subject, logits: Tensor, mask: Tensor) -> Tensor:
    """The logits of real tokens; all of a classifier's."""
    return logits if isinstance(read.model.spec.head, Classify) else logits[mask]


def inputs(read: Subject, x: Tensor) -> list[Tensor]:
    """What `inspect` is given."""
    return [x] if read.source is None else [read.source, x]


@EACH
def test_rows_that_fit_without_their_padding_equal_the_rows_alone(spec: Spec) -> None:
    read = padded(spec)
    x, weights = read.input(PLACES), list(read.model.parameters())
    out, alone = read(x, mask=MASK), [read.alone(row)(x[row : row + 1, MASK[row]]) for row in ROWS]
    assert out.hidden.shape[:2] == MASK.shape
    assert not out.hidden[~MASK].any(), "padding is 0, as where it fits"
    found = real(read, out.logits, MASK)
    wanted = torch.cat([real(read, one.logits, MASK[row][None, MASK[row]]) for row, one in enumerate(alone)])
    close(found, wanted)
    for slope, other in zip(gradients(found, weights), gradients(wanted, weights), strict=True):
        close(slope, other)


@EACH
def test_losses_of_training_count_real_tokens(spec: Spec) -> None:
    read = padded(spec)
    x, targets = read.input(PLACES), read.targets(PLACES)
    read.model.train()
    for row in (0, 2, 3):
        goal = targets[[row]] if targets.dim() == 1 else targets[[row]][:, MASK[row]]
        torch.manual_seed(5)  # hashes are drawn
        found = read.rows([row])(x[[row]], mask=MASK[[row]], targets=targets[[row]])
        torch.manual_seed(5)
        wanted = read.alone(row)(x[[row]][:, MASK[row]], targets=goal)
        assert found.losses.keys() == wanted.losses.keys()
        for name, loss in wanted.losses.items():
            close(found.losses[name], loss)


@EACH
@torch.no_grad()
def test_what_is_seen_is_in_the_order_of_the_tokens(spec: Spec) -> None:
    read = padded(spec)
    x, extra = read.input(PLACES), spec.extra
    sides = {} if read.source is None else {"source_mask": read.source_mask}
    seen = read.model.inspect(*inputs(read, x), mask=MASK, **sides)
    queries = torch.cat([torch.ones(extra, dtype=torch.bool), MASK[2]])
    alone = read.alone(2)
    wanted = alone.model.inspect(*inputs(alone, x[2:3, MASK[2]]))
    for maps, others in ((seen.attention, wanted.attention), (seen.cross, wanted.cross)):
        assert len(maps) == len(others)
        for found, other in zip(maps, others, strict=True):
            here = found[2][:, queries]
            assert found.shape[2] == extra + PLACES
            if maps is seen.attention and spec.attention.key_count(spec.sizes, 1) is not None:
                close(here[..., : other.shape[3]], other[0])  # keys of windows without tokens are behind them
            else:
                close(here[..., queries if maps is seen.attention else read.source_mask[2]], other[0])
    close(seen.norms["stream"][:, 2, queries], wanted.norms["stream"][:, 0])


@pytest.mark.parametrize("spec", STREAMS.values(), ids=STREAMS)
@torch.no_grad()
def test_padded_chunks_equal_the_stream_alone(spec: Spec) -> None:
    """Chunks whose places are twice as many as fit, then a chunk without padding up to the end, then one token too many."""
    read = padded(spec)
    tokens = read.input(ROOM)
    state = read.model.initial_state(len(MASK))
    place = [0] * len(MASK)
    found: list[list[Tensor]] = [[] for _ in ROWS]
    for chunk in (MASK[:, :5], MASK.flip(0)[:, 5:9], MASK[:, 9:]):
        mask = chunk.clone()
        for row in ROWS:
            mask[row] &= mask[row].cumsum(0) <= ROOM - 2 - place[row]  # two more tokens fit behind all chunks
        x = torch.zeros(mask.shape, dtype=torch.long)
        for row in ROWS:
            count = int(mask[row].sum())
            x[row, mask[row]] = tokens[row, place[row] : place[row] + count]
            place[row] += count
        out = read(x, state=state, mask=mask)
        state = out.state
        for row in ROWS:
            found[row].append(out.logits[row, mask[row]])
    assert max(place) == ROOM - 2
    x = torch.stack([tokens[row, place[row] : place[row] + 2] for row in ROWS])
    out = read(x, state=state)
    for row in ROWS:
        wanted = read.alone(row)(tokens[row : row + 1, : place[row] + 2]).logits[0]
        close(torch.cat([*found[row], out.logits[row]]), wanted)
    assert out.state.bound == ROOM
    with refused(f"{ROOM + 1} "):
        read(x[:, :1], state=out.state)


SENTENCES = {
    "axial": "9 tokens do not fit the axial positions, 2 x 4 = 8",
    "grid": "9 tokens do not fit the position grid of length=8",
    "image, causal": "a row of 9 positions does not fit an image of height=2, width=4",
    "image": "a row of 9 positions does not fit an image of height=2, width=4",
    **dict.fromkeys(("linformer", "linformer, convolution", "linformer, mean"), "9 tokens do not fit the low-rank attention"),
}


def test_too_many_real_tokens_are_refused() -> None:
    for name, spec in ENDING.items():
        assert spec.max_length == ROOM or name == "pair, linformer"
        word = SENTENCES.get(name, "9 tokens do not fit the learned position table of length=8")
        mask = MASK.clone()
        mask[1] = torch.arange(PLACES) % 4 > 0  # nine real tokens
        read = subject(spec, batch=len(MASK), source_length=PLACES)
        if read.source is not None:
            with refused("9 tokens do not fit the l"):
                replace(read, source_mask=mask)(read.input(3))
            read = replace(read, source_mask=MASK)
        if spec.max_length is not None:
            with refused(word):
                read(read.input(PLACES), mask=mask)
            with refused(word):
                read(read.input(9))


@torch.no_grad()
def test_rows_of_padding_alone_fit() -> None:
    for name, spec in ENDING.items():
        read = padded(spec)
        nothing = torch.zeros_like(MASK)
        assert read(read.input(PLACES), mask=nothing).logits.isfinite().all()
        if name in STREAMS:
            first = read(read.input(PLACES), mask=nothing, state=read.model.initial_state(len(MASK)))
            again = read(read.input(PLACES), mask=nothing, state=first.state)
            assert again.logits.isfinite().all()
            assert again.state.bound <= 1
            assert not again.state.next.any()


class Reads(TorchFunctionMode):
    """Notes every call that takes a number out of a tensor, for which a device would be waited for."""

    TAKING = (Tensor.item, Tensor.tolist, Tensor.__int__, Tensor.__bool__, Tensor.__index__, Tensor.numpy, Tensor.nonzero)

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in self.TAKING:
            self.calls.append(function.__name__)
        return function(*args, **(kwargs or {}))


@contextmanager
def reading(none: bool) -> Iterator[None]:
    """Fails unless its body takes no number out of a tensor, or, as it is asked, some."""
    with Reads() as reads:
        yield
    assert bool(reads.calls) != none, reads.calls


@torch.no_grad()
def test_no_mask_is_read_where_all_places_fit() -> None:
    few = MASK[:, 2 : 2 + ROOM]
    for name, spec in ENDING.items():
        if name in ("halting", "reformer"):
            continue  # they read other tensors: which tokens have halted, and how large buckets are
        read = subject(spec, batch=len(MASK), source_length=ROOM)
        if read.source is not None:
            read = replace(read, source_mask=few)
        x = read.input(ROOM)
        read(x, mask=few)  # tables are made once
        with reading(none=True):
            read(x, mask=few)
            if spec.is_causal:
                state = read(x[:, :4], mask=few[:, :4]).state
                read(x[:, :4], mask=few[:, 4:], state=state)
        if spec.max_length is not None:
            with reading(none=False):
                read(read.input(PLACES), mask=MASK)
    plain = subject(DECODER, batch=len(MASK))
    with reading(none=True):
        plain(plain.input(PLACES), mask=MASK)


def test_nothing_is_read_while_a_graph_is_compiled_or_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/contracts/test_compile.py compiles members with bounded positions over padded rows."""
    read = padded(ENDING["learned"])
    x = read.input(PLACES)
    with torch.device("meta"):
        bare = formers.build(ENDING["learned"])
    rows = x.to("meta"), MASK.to("meta")
    assert bare(rows[0][:, :ROOM], mask=rows[1][:, :ROOM]).logits.shape == (len(MASK), ROOM, 11)
    with refused("12 tokens do not fit"):
        bare(rows[0], mask=rows[1])
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with reading(none=True), refused("12 tokens do not fit"):
        read(x, mask=MASK)
