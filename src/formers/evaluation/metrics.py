"""Metrics of a loss that do not depend on the tokenizer, and the text that describes the evaluation.

bits per byte = nats / (bytes ln 2)       nats summed over the evaluated targets, bytes of their text      E21

Bits per character divide by the UTF-8 characters of the same text. Perplexity is exp(nats / n), n the tokens, or the words for the
perplexity per word. A line end counts as a word, as in the published results of Penn Treebank and WikiText, whose lines end in a
separate token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from formers.core import IGNORED
from formers.core.host import to_host
from formers.data import Batch, Batches, Bytes, LastWord, Stories, Tokenizer
from formers.data.images import ImageBatches
from formers.data.spread import spread
from formers.evaluation.coverage import Coverage, context_words, segment_words
from formers.evaluation.word_counter import WordCounter
from formers.heads import AdaptiveSoftmax, Classify, LanguageModel, MaskedLM, PixelHead
from formers.model import Model, Seq2Seq, Spec
from formers.model.model import Output

Results = dict[str, float | int | str]
LOGITS_CHUNK = 1024
"""Logits that a chunked head did not return are computed for this many targets at a time."""
PASSED = 0.95
"""The share of right answers at which a bAbI task is passed (Weston et al., 2015)."""


def bits(nats: float, count: float) -> float:
    """Bits for each of `count` bytes or characters."""
    return nats / (count * math.log(2))  # E21


def perplexity(nats: float, count: float) -> float:
    """exp(nats / count), infinity on overflow."""
    try:
        return math.exp(nats / count)
    except OverflowError:
        return math.inf


def live_metrics(model: Model, loss: float) -> dict[str, float]:
    """What the progress bar shows beside the training loss: bits per byte for byte tokens, else perplexity."""
    head = model.spec.head
    if not isinstance(head, LanguageModel | AdaptiveSoftmax | PixelHead) or model.auxiliary is not None:
        return {}
    if isinstance(head, LanguageModel) and head.label_smoothing:  # a smoothed loss is not a likelihood
        return {}
    if model.spec.image is not None:
        return {"bits/dim": bits(loss, 1)}
    if head.generates and not isinstance(model, Seq2Seq) and isinstance(model.tokenizer, Bytes):
        return {"bits/byte": bits(loss, 1)}
    return {"perplexity": perplexity(loss, 1)}


class Metrics:
    """Sums over the evaluated batches, which can be added over processes, and the metrics derived from them: here only the loss."""

    rows: ClassVar[str | None] = "examples"
    """The unit of a row of a batch; None if rows are windows of one long text."""
    extra: ClassVar[tuple[str, ...]] = ()
    """Names of further sums besides nats, targets and rows."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = dict.fromkeys(("nats", "targets", "rows", *self.extra), 0.0)

    def update(self, targets: Tensor, out: Output) -> None:
        """Adds the output of a forward pass for targets on the host; the host waits for the device once."""
        self.add(targets, to_host(self.figures(targets, out)))

    def figures(self, targets: Tensor, out: Output) -> dict[str, Tensor]:
        """The tensors of an output that `add` needs on the host, by name."""
        return {"loss": out.losses["cross_entropy"]}

    def add(self, targets: Tensor, figures: Mapping[str, Tensor]) -> None:
        """Adds the figures of an output, on the host."""
        counted = (targets != IGNORED).flatten(1) if targets.dim() > 1 else (targets != IGNORED)[:, None]
        count = int(counted.sum())
        if count:
            self.sums["nats"] += float(figures["loss"]) * count
            self.sums["targets"] += count
            self.sums["rows"] += int(counted.any(dim=1).sum())

    def observe(self, batch: Batch, mine: bool) -> None:
        """Reads the text of a batch, also of one that another process evaluates (mine=False)."""

    def results(self) -> Results:
        """Loss, number of targets, and the metrics of this kind of data."""
        return {"loss": self.sums["nats"] / self.sums["targets"], **self.extra_results(), "targets": int(self.sums["targets"])}

    def extra_results(self) -> Results:
        """The metrics of this kind of data."""
        return {}

    def whole(self, batches: Batches, part: str) -> int | None:
        """The size of a part: targets of a text, rows of other data; None if it is not known beforehand."""
        return len(batches.parts[part])

    def coverage(self, batches: Any, part: str) -> Coverage:
        """How much of a part was evaluated."""
        return Coverage(int(self.sums["rows"]), len(batches.parts[part]), self.rows or "rows")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        """A description of the evaluation: context, stride, and how much of the data was evaluated."""
        return self.coverage(batches, part).of(part, sample)


class TextMetrics(Metrics):
    """Of a model that predicts the next token of a text."""

    rows = None
    extra = ("bytes", "characters", "words")

    def __init__(self, tokenizer: Tokenizer | None, spec: Spec | None = None) -> None:
        super().__init__()
        self.tokenizer, self.spec, self.begun = tokenizer, spec, False

    def observe(self, batch: Batch, mine: bool) -> None:
        """Counts the text of each row separately: its input tokens show whether its targets begin inside a word.

        The first row is the beginning of the part, which begins with a word.
        """
        if self.tokenizer is None:
            return
        for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
            counted = targets != IGNORED
            if not bool(counted.any()):
                continue
            words = WordCounter()
            if self.begun:
                words.count(self.tokenizer.to_bytes(tokens[: int(counted.int().argmax()) + 1].tolist()))
            self.begun = True
            counts = words.count(self.tokenizer.to_bytes(targets[counted].tolist()))
            if mine:
                for name, count in zip(self.extra, counts, strict=True):
                    self.sums[name] += count

    def extra_results(self) -> Results:
        nats, made = self.sums["nats"], Results()
        if self.sums["bytes"]:
            made["bits_per_byte"] = bits(nats, self.sums["bytes"])
        if self.sums["characters"]:
            made["bits_per_character"] = bits(nats, self.sums["characters"])
        made["perplexity"] = perplexity(nats, self.sums["targets"])
        if self.sums["words"]:
            made["word_perplexity"] = perplexity(nats, self.sums["words"])
        return {**made, **{name: int(self.sums[name]) for name in self.extra if self.tokenizer is not None}}

    def whole(self, batches: Batches, part: str) -> int:
        return len(batches.parts[part]) - 1  # the first token is not predicted

    def coverage(self, batches: Any, part: str) -> Coverage:
        return Coverage(int(self.sums["targets"]), self.whole(batches, part), "tokens")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        coverage = self.coverage(batches, part)
        width = min(batches.length, coverage.whole)
        step = min(stride or width, width)
        seen = [] if self.spec is None else context_words(self.spec, batches.continues)
        if batches.continues:
            more = f" ({', '.join(seen)})" if seen else ""
            share = coverage.of(part, sample, beginning=first is not None)  # a limit of batches cuts every lane
            return f"{segment_words(batches, coverage.whole, size, sample)}, each with the state of the one before{more}, {share}"
        how = "side by side" if step == width else "one every token" if step == 1 else f"one every {step:,}"
        seen = [f"context {width:,}", f"stride {step:,}", *seen]
        return f"windows of {width:,} tokens {how} ({', '.join(seen)}), {coverage.of(part, sample)}"


class ImageMetrics(Metrics):
    """Of a model of images: bits per channel value, and nats per image if they are binary."""

    rows = "images"

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def extra_results(self) -> Results:
        nats = self.sums["nats"]
        whole: Results = {"nats_per_image": nats / self.sums["rows"]} if self.levels == 2 else {}
        return {"bits_per_dimension": bits(nats, self.sums["targets"]), **whole}


class PairMetrics(Metrics):
    """Of an encoder-decoder."""

    rows = "pairs"

    def extra_results(self) -> Results:
        return {"perplexity": perplexity(self.sums["nats"], self.sums["targets"])}


class ClassMetrics(Metrics):
    """Of a classifier: its accuracy."""

    extra: ClassVar[tuple[str, ...]] = ("right",)

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def figures(self, targets: Tensor, out: Output) -> dict[str, Tensor]:
        return {**super().figures(targets, out), "top": top_class(self.model, out, targets != IGNORED)}

    def add(self, targets: Tensor, figures: Mapping[str, Tensor]) -> None:
        super().add(targets, figures)
        self.sums["right"] += int((figures["top"] == targets[targets != IGNORED]).sum())

    def extra_results(self) -> Results:
        return {"accuracy": self.sums["right"] / self.sums["targets"]}


class StoryMetrics(ClassMetrics):
    """Of answers about stories: also by task, and the number of failed tasks, with more than 5 % wrong answers."""

    rows = "questions"

    def __init__(self, model: Model, batches: Stories, part: str, sample: int | None = None) -> None:
        super().__init__(model)
        tasks = batches.tasks(part)
        self.tasks, self.place = [tasks[i] for i in spread(len(tasks), sample).tolist()], 0
        self.right = torch.zeros(0, dtype=torch.bool)
        """Which rows of the last batch have the right answer."""
        self.known = sorted(set(self.tasks))
        for task in self.known:
            self.sums |= {f"right {task}": 0.0, f"rows {task}": 0.0}

    def figures(self, targets: Tensor, out: Output) -> dict[str, Tensor]:
        assert out.logits is not None
        return {**super().figures(targets, out), "answers": out.logits.argmax(dim=-1)}

    def add(self, targets: Tensor, figures: Mapping[str, Tensor]) -> None:
        super().add(targets, figures)
        self.right = figures["answers"] == targets

    def observe(self, batch: Batch, mine: bool) -> None:
        """Rows come in the order of the part."""
        here = self.tasks[self.place : self.place + len(batch["targets"])]
        self.place += len(here)
        if mine:
            for task, right in zip(here, self.right.tolist(), strict=True):
                self.sums[f"right {task}"] += right
                self.sums[f"rows {task}"] += 1

    def extra_results(self) -> Results:
        shares = {task: self.sums[f"right {task}"] / self.sums[f"rows {task}"] for task in self.known if self.sums[f"rows {task}"]}
        named = {f"accuracy_task_{task}": share for task, share in shares.items()} if len(shares) > 1 else {}
        return {**super().extra_results(), **named, "failed_tasks": sum(share < PASSED for share in shares.values())}


class MaskedMetrics(ClassMetrics):
    """Of a masked language model, over the masked tokens."""

    rows = None
    extra = ("right", "read")

    def __init__(self, model: Model, tokenizer: Tokenizer | None) -> None:
        super().__init__(model)
        self.bytes = isinstance(tokenizer, Bytes)

    def add(self, targets: Tensor, figures: Mapping[str, Tensor]) -> None:
        super().add(targets, figures)
        self.sums["read"] += targets.numel()

    def extra_results(self) -> Results:
        nats, hidden = self.sums["nats"], self.sums["targets"]
        made: Results = {"masked_bits_per_byte": bits(nats, hidden)} if self.bytes else {}
        return {**made, "masked_perplexity": perplexity(nats, hidden), "masked_accuracy": self.sums["right"] / hidden}

    def whole(self, batches: Batches, part: str) -> None:
        return None

    def coverage(self, batches: Any, part: str) -> Coverage:
        return Coverage(int(self.sums["read"]), len(batches.parts[part]), "tokens")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        coverage, hidden = self.coverage(batches, part), int(self.sums["targets"])
        width = min(batches.length, coverage.whole)
        return f"windows of {width:,} tokens side by side, {hidden:,} hidden ones among {coverage.of(part, sample)}"


class LastWordMetrics(Metrics):
    """Of the last words of passages (Paperno et al., 2016): a word is right if all its tokens are; perplexity is per word."""

    rows = "passages"
    extra = ("right",)

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def figures(self, targets: Tensor, out: Output) -> dict[str, Tensor]:
        return {**super().figures(targets, out), "top": top_class(self.model, out, targets != IGNORED)}

    def add(self, targets: Tensor, figures: Mapping[str, Tensor]) -> None:
        super().add(targets, figures)
        counted = targets != IGNORED
        right = ~counted
        right[counted] = figures["top"] == targets[counted]
        right = right.all(dim=1)
        self.sums["right"] += int((right & counted.any(dim=1)).sum())

    def extra_results(self) -> Results:
        passages = self.sums["rows"]
        return {
            "last_word_accuracy": self.sums["right"] / passages,
            "last_word_perplexity": perplexity(self.sums["nats"], passages),
            "passages": int(passages),
        }


def metrics_for(model: Model, batches: Batches, tokenizer: Tokenizer | None, part: str = "valid", sample: int | None = None) -> Metrics:
    """The metrics for a model and a part of its data, or for a sample of its rows."""
    head = model.spec.head
    if isinstance(batches, ImageBatches):
        return ImageMetrics(batches.cells.levels)
    if isinstance(model, Seq2Seq):
        return PairMetrics()
    if isinstance(batches, LastWord):
        return LastWordMetrics(model)
    if isinstance(head, MaskedLM):
        return MaskedMetrics(model, tokenizer)
    if isinstance(batches, Stories):
        return StoryMetrics(model, batches, part, sample)
    if isinstance(head, Classify):
        return ClassMetrics(model)
    return TextMetrics(tokenizer, model.spec) if head.generates else Metrics()


def top_class(model: Model, out: Output, counted: Tensor) -> Tensor:
    """The most likely class (n,) of each of the n targets that are counted, a mask on the host; logits that the head left out are
    computed in chunks."""
    index = counted.flatten().nonzero().view(-1)
    if out.logits is not None:
        flat = out.logits.flatten(0, -2)
        return flat[index.to(flat.device, non_blocking=True)].argmax(dim=-1)
    assert out.hidden is not None
    flat = out.hidden.flatten(0, -2)
    few = torch.split(flat[index.to(flat.device, non_blocking=True)], LOGITS_CHUNK)
    return torch.cat([model.head(hidden[None], model.embedding, None, None)[0][0].argmax(dim=-1) for hidden in few])
