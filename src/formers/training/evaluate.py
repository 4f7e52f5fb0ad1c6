"""Judging a model on held-out data: every target once, the nats summed, and the figures of score.py; of pairs also what it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from formers.core import IGNORED, FormersError, State
from formers.core.content import fixed_weights
from formers.data import Batch, Batches, Streams, Tokenizer
from formers.data.images import ImageBatches
from formers.data.spread import spread
from formers.data.tasks import Exercised
from formers.generation import answer, tokenizer_of
from formers.model import Model, Seq2Seq, evaluating
from formers.training.distributed import World
from formers.training.exact import ExactScore
from formers.training.extent import Extent
from formers.training.pondering import Pondered
from formers.training.score import Figures, Score, score_of

Stop = Callable[[], bool]
Progress = Callable[[int, "int | None"], None]
"""Takes how much is done, and of how much, where that is known."""
WRITTEN = 64
"""How many sources are answered at a time."""


class Stopped(Exception):
    """Judging was asked to stop before it was done."""


@torch.no_grad()
def evaluate(
    model: Model,
    batches: Batches,
    tokenizer: Tokenizer | None,
    size: int = 16,
    limit: int | None = None,
    part: str | None = None,
    stride: int | None = None,
    *,
    first: int | None = None,
    sample: int | None = None,
    stop: Stop | None = None,
    share: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
    pondered: Pondered | None = None,
) -> Figures:
    """Mean loss per target over a part of the data, the figures that follow from it, and the protocol in words.

    part: valid unless given, or test of data that have no other.
    tokenizer: what says which text the targets stand for; without one, nothing is counted per byte or word.
    limit: how many batches are judged at most; first: how many tokens of a text, or rows of other data. Both from the beginning.
    sample: so many batches of rows that are spread over the part, the same ones every time, and all of it where it has no more.
    stop: asked before each batch; True raises Stopped. share: (rank, world), of which each judges every world-th batch.
    pondered: what is told how long the tokens of each batch think; one of its own unless given.
    """
    part = part or held_out(batches)
    some = None if sample is None else sample * size
    score = ExactScore(model, batches.ending()) if isinstance(batches, Exercised) else score_of(model, batches, tokenizer, part, some)
    pondered = pondered or Pondered(model.spec)
    rank, world = (0, 1) if batches.continues else share  # a state is carried from each batch to the next
    device = next(model.parameters()).device
    state, done, start = None, 0, time.perf_counter()
    with evaluating(model), fixed_weights():
        read = batches.beginning(part, first) if isinstance(batches, Streams) and first is not None else batches
        cut = read.eval_batches(size, part, stride) if some is None else read.eval_batches(size, part, stride, some)
        for i, batch in enumerate(_first(islice(cut, limit), first, score)):
            _ask(stop)
            fresh, targets = batch.pop("fresh", None), batch["targets"]
            mine = i % world == rank
            if mine:
                here = {name: value.to(device) for name, value in batch.items()}
                state = _carried(model, state, fresh, device) if batches.continues else None
                further: dict[str, Any] = {} if state is None else {"state": state}
                watch = pondered.watch()
                out = model(**here, **further) if watch is None else model(**here, **further, watch=watch)
                state = out.state if batches.continues else None
                score.judge(targets, out)
                if watch is not None:
                    pondered.judge(batch, out, watch)
            score.read(batch, mine)
            done += _count(score, targets)
            if progress is not None:
                wanted = some if some is None or score.rows is not None else some * batches.length
                progress(done, _least(score.whole(batches, part), first, limit and limit * done // (i + 1), wanted))
    if world > 1 and torch.distributed.is_initialized():
        for judged in (score, pondered) if pondered.sums else (score,):
            judged.sums = dict(zip(judged.sums, World(rank, world).total(list(judged.sums.values())), strict=True))
    if score.sums["targets"] == 0:
        raise FormersError(f"the part {part!r} of the data has nothing to predict: give more data.")
    speed = score.sums["targets"] / (time.perf_counter() - start)
    figures = {**score.figures(), **pondered.figures()}
    how = {"evaluated": str(score.extent(batches, part)), "protocol": score.protocol(batches, part, stride, size, first, some)}
    return {**figures, "tokens_per_second": speed, **how}


def judge(
    model: Model,
    batches: Batches,
    tokenizer: Tokenizer | None,
    size: int = 16,
    matches: int | None = None,
    sample: int | None = None,
    part: str | None = None,
    stride: int | None = None,
    *,
    first: int | None = None,
    stop: Stop | None = None,
    share: tuple[int, int] = (0, 1),
    progress: Progress | None = None,
) -> Figures:
    """All figures: those of `evaluate`, and of pairs exact matches and BLEU of what the model writes.

    matches: for how many of the pairs it writes, spread over the part; for the first ones where `first` is given.
    """
    results = evaluate(
        model, batches, tokenizer, size, None, part, stride, first=first, sample=sample, stop=stop, share=share, progress=progress
    )
    if not isinstance(model, Seq2Seq) or isinstance(batches, Exercised | ImageBatches):  # of exercises `exact` says the same
        return results
    pairs = batches.parts[part or held_out(batches)]
    count = _least(len(pairs), matches, first, sample and sample * size) or 0
    chosen = range(count) if first is not None else spread(len(pairs), count).tolist()
    written, wanted = write(model, [pairs[i] for i in chosen], stop, progress)
    made, how = bleu(written, wanted)
    answered = Extent(count, len(pairs), "pairs")
    how = f"{results['protocol']}; {answered} written greedily; {how}"
    return {**results, "exact_match": exact_match(written, wanted), **made, "protocol": how}


@torch.no_grad()
def write(
    model: Seq2Seq, pairs: list[tuple[list[int], list[int]]], stop: Stop | None = None, progress: Progress | None = None
) -> tuple[list[str], list[str]]:
    """What the model writes for the sources of pairs, greedily, and their targets, both as text."""
    tokenizer = tokenizer_of(model)
    written: list[str] = []
    with evaluating(model), fixed_weights():
        for start in range(0, len(pairs), WRITTEN):
            _ask(stop)
            chunk = pairs[start : start + WRITTEN]
            made = answer(model, [list(a) for a, _ in chunk], max_new_tokens=2 * max(len(b) for _, b in chunk) + 8)
            written += [tokenizer.decode(row) for row in made]
            if progress is not None:
                progress(len(written), len(pairs))
    return written, [tokenizer.decode(b) for _, b in pairs]


def exact_match(written: list[str], wanted: list[str]) -> float:
    """The share of texts that are what was wanted, to the last character."""
    return sum(mine == theirs for mine, theirs in zip(written, wanted, strict=True)) / max(len(wanted), 1)


def bleu(written: list[str], wanted: list[str]) -> tuple[Figures, str]:
    """Corpus BLEU (Papineni et al., 2002) as sacrebleu counts it, and its signature; nothing where that is not installed."""
    if find_spec("sacrebleu") is None:
        return {}, "no BLEU without `pip install formers[mt]`"
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    return {"bleu": metric.corpus_score(written, [wanted]).score}, f"BLEU {metric.get_signature()}"


def held_out(batches: Batches) -> str:
    """The part that is judged unless one is named."""
    return next((part for part in ("valid", "test") if part in batches.parts), "valid")


def _carried(model: Model, state: State | None, fresh: Tensor | None, device: torch.device) -> State:
    """The state that lanes go on from: that of the batch before, but empty where a lane is fresh."""
    assert fresh is not None
    if state is None or bool(fresh.all()):
        return model.initial_state(len(fresh))
    return state.reset(fresh.to(device)) if bool(fresh.any()) else state


def _first(batches: Iterator[Batch], first: int | None, score: Score) -> Iterator[Batch]:
    """The batches up to the first so many targets of a text, or rows of other data: just these, whatever the size of a batch."""
    left = first
    for batch in batches:
        if left is not None and left <= 0:
            return
        targets = batch["targets"]
        if left is not None and _count(score, targets) > left:
            if score.rows is None:
                beyond = (targets != IGNORED).flatten().cumsum(0).view_as(targets) > left
                batch = {**batch, "targets": targets.masked_fill(beyond, IGNORED)}
            else:
                batch = {name: value[:left] for name, value in batch.items()}
        left = None if left is None else left - _count(score, targets)
        yield batch


def _count(score: Score, targets: Tensor) -> int:
    """How much of the data a batch is, in targets of a text or in rows."""
    return int((targets != IGNORED).sum()) if score.rows is None else len(targets)


def _least(*numbers: int | None) -> int | None:
    """The least of those that are known."""
    return min((n for n in numbers if n is not None), default=None)


def _ask(stop: Stop | None) -> None:
    if stop is not None and stop():
        raise Stopped
