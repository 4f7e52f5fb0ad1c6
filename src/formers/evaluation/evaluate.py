"""Evaluates a model on held-out data: every target once. Metrics are in metrics.py; for pairs, generated targets are scored too."""

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
from formers.core.devices import capabilities
from formers.core.host import to_device, to_host
from formers.core.precision import Precision, evaluation_precision
from formers.data import Batch, Batches, Streams, Tokenizer
from formers.data.images import ImageBatches
from formers.data.spread import spread
from formers.data.tasks import Exercised
from formers.evaluation.coverage import Coverage
from formers.evaluation.exact_match import ExactMatchMetrics
from formers.evaluation.metrics import Metrics, Results, metrics_for
from formers.evaluation.ponder import PonderMetrics
from formers.generation import answer, tokenizer_of
from formers.model import Model, Seq2Seq, evaluating

Stop = Callable[[], bool]
Total = Callable[[list[float]], list[float]]
"""Sums each value over all processes."""
Progress = Callable[[int, "int | None"], None]
"""Called with the amount done, and the total where it is known."""
GENERATE_BATCH = 64
"""Targets are generated for this many sources at a time."""


class Stopped(Exception):
    """The evaluation was stopped before its end."""


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
    total: Total | None = None,
    progress: Progress | None = None,
    ponder: PonderMetrics | None = None,
    precision: Precision = "float32",
) -> Results:
    """Mean loss per target over a part of the data, the metrics derived from it, and the protocol in words.

    part: default valid, or test if the data have no valid part.
    tokenizer: converts targets to text; without it there are no metrics per byte or word.
    limit: maximum number of batches; first: maximum number of tokens of a text, or rows of other data. Both count from the beginning.
    sample: number of batches, whose rows are spread evenly over the part and are the same every time.
    stop: called before each batch; if it returns True, Stopped is raised.
    share: (rank, world): this process evaluates every world-th batch, beginning at rank. total: sums over these processes.
    ponder: collects the ponder times; a new PonderMetrics by default.
    precision: of the products; float32 is without TF32.
    """
    part = part or default_part(batches)
    some = None if sample is None else sample * size
    metrics = (
        ExactMatchMetrics(model, batches.ending()) if isinstance(batches, Exercised) else metrics_for(model, batches, tokenizer, part, some)
    )
    ponder = ponder or PonderMetrics(model.spec)
    rank, world = (0, 1) if batches.continues else share  # a state is carried from each batch to the next
    device = next(model.parameters()).device
    state, done, start = None, 0, time.perf_counter()
    with evaluating(model), fixed_weights(), evaluation_precision(precision, device):
        read = batches.beginning(part, first) if isinstance(batches, Streams) and first is not None else batches
        cut = read.eval_batches(size, part, stride) if some is None else read.eval_batches(size, part, stride, some)
        for i, batch in enumerate(_take_first(islice(cut, limit), first, metrics)):
            _check_stop(stop)
            fresh, targets = batch.pop("fresh", None), batch["targets"]
            mine = i % world == rank
            if mine:
                if not capabilities(device).host:  # on the host the forward pass checks them itself
                    model.check_ids(batch)
                here = to_device(batch, device)
                state = _carried(model, state, fresh, device) if batches.continues else None
                further: dict[str, Any] = {} if state is None else {"state": state}
                watch = ponder.watch()
                out = model(**here, **further) if watch is None else model(**here, **further, watch=watch)
                state = out.state if batches.continues else None
                figures = to_host({**metrics.figures(targets, out), **ponder.figures(watch)})  # the only wait for the device
                metrics.add(targets, figures)
                if watch is not None:
                    ponder.update(batch, out, watch, figures)
            metrics.observe(batch, mine)
            done += _count(metrics, targets)
            if progress is not None:
                wanted = some if some is None or metrics.rows is not None else some * batches.length
                progress(done, _smallest(metrics.whole(batches, part), first, limit and limit * done // (i + 1), wanted))
    if world > 1 and total is not None:
        for summed in (metrics, ponder) if ponder.sums else (metrics,):
            summed.sums = dict(zip(summed.sums, total(list(summed.sums.values())), strict=True))
    if metrics.sums["targets"] == 0:
        raise FormersError(f"the part {part!r} of the data has no targets: give more data.")
    speed = metrics.sums["targets"] / (time.perf_counter() - start)
    results: Results = {**metrics.results(), **ponder.results()}
    how = {"evaluated": str(metrics.coverage(batches, part)), "protocol": metrics.protocol(batches, part, stride, size, first, some)}
    return {**results, "tokens_per_second": speed, **how}


def evaluate_all(
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
    precision: Precision = "float32",
) -> Results:
    """The results of `evaluate`; for pairs also the exact-match rate and BLEU of generated targets.

    matches: number of pairs to generate targets for, spread over the part; the first ones if `first` is given.
    """
    results = evaluate(
        model, batches, tokenizer, size, None, part, stride, first=first, sample=sample, stop=stop, share=share, progress=progress,
        precision=precision,
    )  # fmt: skip
    if not isinstance(model, Seq2Seq) or isinstance(batches, Exercised | ImageBatches):  # for exercises `exact` is the same
        return results
    pairs = batches.parts[part or default_part(batches)]
    count = _smallest(len(pairs), matches, first, sample and sample * size) or 0
    chosen = range(count) if first is not None else spread(len(pairs), count).tolist()
    with evaluation_precision(precision, next(model.parameters()).device):
        written, wanted = generate_targets(model, [pairs[i] for i in chosen], stop, progress)
    made, how = bleu(written, wanted)
    answered = Coverage(count, len(pairs), "pairs")
    how = f"{results['protocol']}; {answered} written greedily; {how}"
    return {**results, "exact_match": exact_match(written, wanted), **made, "protocol": how}


@torch.no_grad()
def generate_targets(
    model: Seq2Seq, pairs: list[tuple[list[int], list[int]]], stop: Stop | None = None, progress: Progress | None = None
) -> tuple[list[str], list[str]]:
    """Greedily generated targets for the sources of pairs, and the reference targets, both as text."""
    tokenizer = tokenizer_of(model)
    written: list[str] = []
    with evaluating(model), fixed_weights():
        for start in range(0, len(pairs), GENERATE_BATCH):
            _check_stop(stop)
            chunk = pairs[start : start + GENERATE_BATCH]
            made = answer(model, [list(a) for a, _ in chunk], max_new_tokens=2 * max(len(b) for _, b in chunk) + 8)
            written += [tokenizer.decode(row) for row in made]
            if progress is not None:
                progress(len(written), len(pairs))
    return written, [tokenizer.decode(b) for _, b in pairs]


def exact_match(written: list[str], wanted: list[str]) -> float:
    """The share of texts that equal their reference."""
    return sum(mine == theirs for mine, theirs in zip(written, wanted, strict=True)) / max(len(wanted), 1)


def bleu(written: list[str], wanted: list[str]) -> tuple[Results, str]:
    """Corpus BLEU (Papineni et al., 2002) by sacrebleu, and its signature; no score if sacrebleu is not installed."""
    if find_spec("sacrebleu") is None:
        return {}, "no BLEU without `pip install formers[mt]`"
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    return {"bleu": metric.corpus_score(written, [wanted]).score}, f"BLEU {metric.get_signature()}"


def default_part(batches: Batches) -> str:
    """The part that is evaluated by default."""
    return next((part for part in ("valid", "test") if part in batches.parts), "valid")


def _carried(model: Model, state: State | None, fresh: Tensor | None, device: torch.device) -> State:
    """The state for the next batch: that of the batch before, reset in rows where a new text begins."""
    assert fresh is not None
    if state is None or bool(fresh.all()):
        return model.initial_state(len(fresh))
    return state.reset(fresh.to(device, non_blocking=True)) if bool(fresh.any()) else state


def _take_first(batches: Iterator[Batch], first: int | None, metrics: Metrics) -> Iterator[Batch]:
    """The batches cut to exactly the first targets of a text, or the first rows of other data, for any batch size."""
    left = first
    for batch in batches:
        if left is not None and left <= 0:
            return
        targets = batch["targets"]
        if left is not None and _count(metrics, targets) > left:
            if metrics.rows is None:
                beyond = (targets != IGNORED).flatten().cumsum(0).view_as(targets) > left
                batch = {**batch, "targets": targets.masked_fill(beyond, IGNORED)}
            else:
                batch = {name: value[:left] for name, value in batch.items()}
        left = None if left is None else left - _count(metrics, targets)
        yield batch


def _count(metrics: Metrics, targets: Tensor) -> int:
    """The size of a batch, in targets of a text or in rows."""
    return int((targets != IGNORED).sum()) if metrics.rows is None else len(targets)


def _smallest(*numbers: int | None) -> int | None:
    """The smallest of the numbers that are not None."""
    return min((n for n in numbers if n is not None), default=None)


def _check_stop(stop: Stop | None) -> None:
    if stop is not None and stop():
        raise Stopped
