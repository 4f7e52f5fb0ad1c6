"""What a loss comes to, whatever the tokenisation, and the words that say how it was judged.

bits per byte = nats / (bytes ln 2)       nats summed over the judged targets, bytes of the text that these stand for      E21

Bits per character divide by the UTF-8 characters of the same text. Perplexity is exp(nats / n), n the tokens, or the words for the
perplexity per word. A line end counts as a word: the published results of Penn Treebank and WikiText, whose lines end in a token of
their own, are counted so.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from formers.attention import LSH
from formers.core import IGNORED
from formers.data import Batch, Batches, Bytes, LastWord, Stories, Tokenizer
from formers.data.images import ImageBatches
from formers.data.spread import spread
from formers.heads import AdaptiveSoftmax, Classify, LanguageModel, MaskedLM, PixelHead
from formers.memory import Recurrence
from formers.model import Model, Seq2Seq, Spec
from formers.model.model import Output
from formers.score import Relative
from formers.training.extent import Extent, ways
from formers.training.protocol import same_length

Figures = dict[str, float | int | str]
FEW = 1024
"""For so many targets at a time logits are made that a head has left out."""
PASSED = 0.95
"""The share of right answers by which a task of bAbI is passed (Weston et al., 2015)."""

SPACE = np.zeros(256, dtype=bool)
SPACE[list(b" \t\n\r\v\f")] = True


def bits(nats: float, count: float) -> float:
    """Bits for each of `count` bytes or characters."""
    return nats / (count * math.log(2))  # E21


def perplexity(nats: float, count: float) -> float:
    """exp(nats / count), infinite where that is more than a float holds."""
    try:
        return math.exp(nats / count)
    except OverflowError:
        return math.inf


def live(model: Model, loss: float) -> dict[str, float]:
    """What a bar shows beside the loss of a step: bits per byte where a token is a byte that comes next, else perplexity."""
    head = model.spec.head
    if not isinstance(head, LanguageModel | AdaptiveSoftmax | PixelHead) or model.auxiliary is not None:
        return {}
    if isinstance(head, LanguageModel) and head.label_smoothing:  # a smoothed loss is no likelihood
        return {}
    if model.spec.image is not None:
        return {"bits/dim": bits(loss, 1)}
    if head.writes and not isinstance(model, Seq2Seq) and isinstance(model.tokenizer, Bytes):
        return {"bits/byte": bits(loss, 1)}
    return {"perplexity": perplexity(loss, 1)}


class Words:
    """Counts bytes, UTF-8 characters, and words and line ends of a text that comes in pieces, which may cut words and characters."""

    def __init__(self) -> None:
        self.inside = False
        """Whether the last byte stood in a word."""

    def count(self, text: bytes) -> tuple[int, int, int]:
        """Bytes, characters and words that a further piece adds."""
        if not text:
            return 0, 0, 0
        data = np.frombuffer(text, dtype=np.uint8)
        solid = ~SPACE[data]
        begins = solid & ~np.concatenate([[self.inside], solid[:-1]])
        self.inside = bool(solid[-1])
        characters = int(((data & 0xC0) != 0x80).sum())
        return len(data), characters, int(begins.sum()) + int((data == ord("\n")).sum())


class Score:
    """Sums over what was judged, which add up over processes, and the figures that follow: here the loss alone."""

    rows: ClassVar[str | None] = "examples"
    """What a row of a batch is; None where rows are cut from one long text."""
    extra: ClassVar[tuple[str, ...]] = ()
    """What is summed besides nats, targets and rows."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = dict.fromkeys(("nats", "targets", "rows", *self.extra), 0.0)

    def judge(self, targets: Tensor, out: Output) -> None:
        """Adds a batch that the model has read."""
        counted = (targets != IGNORED).flatten(1) if targets.dim() > 1 else (targets != IGNORED)[:, None]
        count = int(counted.sum())
        if count:
            self.sums["nats"] += float(out.losses["cross_entropy"]) * count
            self.sums["targets"] += count
            self.sums["rows"] += int(counted.any(dim=1).sum())

    def read(self, batch: Batch, judged: bool) -> None:
        """Takes note of the text of a batch, also of one that another process judges."""

    def figures(self) -> Figures:
        """Loss and targets, and what else there is to say."""
        return {"loss": self.sums["nats"] / self.sums["targets"], **self.further(), "targets": int(self.sums["targets"])}

    def further(self) -> Figures:
        """The figures of this kind of data."""
        return {}

    def whole(self, batches: Batches, part: str) -> int | None:
        """How much a part has to judge: targets of a text, rows of other data; None where that is not known beforehand."""
        return len(batches.parts[part])

    def extent(self, batches: Any, part: str) -> Extent:
        """How much of a part was evaluated."""
        return Extent(int(self.sums["rows"]), len(batches.parts[part]), self.rows or "rows")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        """How the figures came about: context, stride, and how much of the data was evaluated: all, the first, or a sample of rows."""
        return self.extent(batches, part).of(part, sample)


class TextScore(Score):
    """Of a model that predicts the next token of a text."""

    rows = None
    extra = ("bytes", "characters", "words")

    def __init__(self, tokenizer: Tokenizer | None, spec: Spec | None = None) -> None:
        super().__init__()
        self.tokenizer, self.spec, self.begun = tokenizer, spec, False

    def read(self, batch: Batch, judged: bool) -> None:
        """Counts the text of each row by itself: its own tokens say whether it begins within a word, so rows may come from anywhere.

        The very first row is the beginning of the part, before which nothing is known: it begins with a word.
        """
        if self.tokenizer is None:
            return
        for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
            counted = targets != IGNORED
            if not bool(counted.any()):
                continue
            words = Words()
            if self.begun:
                words.count(self.tokenizer.to_bytes(tokens[: int(counted.int().argmax()) + 1].tolist()))
            self.begun = True
            counts = words.count(self.tokenizer.to_bytes(targets[counted].tolist()))
            if judged:
                for name, count in zip(self.extra, counts, strict=True):
                    self.sums[name] += count

    def further(self) -> Figures:
        nats, made = self.sums["nats"], Figures()
        if self.sums["bytes"]:
            made["bits_per_byte"] = bits(nats, self.sums["bytes"])
        if self.sums["characters"]:
            made["bits_per_character"] = bits(nats, self.sums["characters"])
        made["perplexity"] = perplexity(nats, self.sums["targets"])
        if self.sums["words"]:
            made["word_perplexity"] = perplexity(nats, self.sums["words"])
        return {**made, **{name: int(self.sums[name]) for name in self.extra if self.tokenizer is not None}}

    def whole(self, batches: Batches, part: str) -> int:
        return len(batches.parts[part]) - 1  # nothing foretells the first token

    def extent(self, batches: Any, part: str) -> Extent:
        return Extent(int(self.sums["targets"]), self.whole(batches, part), "tokens")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        extent = self.extent(batches, part)
        width = min(batches.length, extent.whole)
        step = min(stride or width, width)
        seen = [] if self.spec is None else sight(self.spec, batches.continues)
        if batches.continues:
            more = f" ({', '.join(seen)})" if seen else ""
            share = extent.of(part, sample, beginning=first is not None)  # a limit of batches is of every lane
            return f"{ways(batches, extent.whole, size, sample)}, each with the state of the one before{more}, {share}"
        how = "side by side" if step == width else "one every token" if step == 1 else f"one every {step:,}"
        seen = [f"context {width:,}", f"stride {step:,}", *seen]
        return f"windows of {width:,} tokens {how} ({', '.join(seen)}), {extent.of(part, sample)}"


class ImageScore(Score):
    """Of a model that predicts images: bits per channel value, and of binary images nats per image, too."""

    rows = "images"

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.levels = levels

    def further(self) -> Figures:
        nats = self.sums["nats"]
        whole: Figures = {"nats_per_image": nats / self.sums["rows"]} if self.levels == 2 else {}
        return {"bits_per_dimension": bits(nats, self.sums["targets"]), **whole}


class PairScore(Score):
    """Of an encoder-decoder."""

    rows = "pairs"

    def further(self) -> Figures:
        return {"perplexity": perplexity(self.sums["nats"], self.sums["targets"])}


class HitScore(Score):
    """Of a classifier: how often the likeliest class is the right one."""

    extra: ClassVar[tuple[str, ...]] = ("right",)

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def judge(self, targets: Tensor, out: Output) -> None:
        super().judge(targets, out)
        counted = targets != IGNORED
        self.sums["right"] += int((likeliest(self.model, out, counted) == targets[counted]).sum())

    def further(self) -> Figures:
        return {"accuracy": self.sums["right"] / self.sums["targets"]}


class StoryScore(HitScore):
    """Of answers about stories: also by task, and how many tasks are failed, which have more than 5 % of their answers wrong."""

    rows = "questions"

    def __init__(self, model: Model, batches: Stories, part: str, sample: int | None = None) -> None:
        super().__init__(model)
        tasks = batches.tasks(part)
        self.tasks, self.place = [tasks[i] for i in spread(len(tasks), sample).tolist()], 0
        self.right = torch.zeros(0, dtype=torch.bool)
        """Which rows of the last batch were answered rightly."""
        self.known = sorted(set(self.tasks))
        for task in self.known:
            self.sums |= {f"right {task}": 0.0, f"rows {task}": 0.0}

    def judge(self, targets: Tensor, out: Output) -> None:
        super().judge(targets, out)
        assert out.logits is not None
        self.right = out.logits.argmax(dim=-1).cpu() == targets

    def read(self, batch: Batch, judged: bool) -> None:
        """Counts on: rows come in the order of the part."""
        here = self.tasks[self.place : self.place + len(batch["targets"])]
        self.place += len(here)
        if judged:
            for task, right in zip(here, self.right.tolist(), strict=True):
                self.sums[f"right {task}"] += right
                self.sums[f"rows {task}"] += 1

    def further(self) -> Figures:
        shares = {task: self.sums[f"right {task}"] / self.sums[f"rows {task}"] for task in self.known if self.sums[f"rows {task}"]}
        named = {f"accuracy_task_{task}": share for task, share in shares.items()} if len(shares) > 1 else {}
        return {**super().further(), **named, "failed_tasks": sum(share < PASSED for share in shares.values())}


class MaskedScore(HitScore):
    """Of a masked language model, over the hidden tokens."""

    rows = None
    extra = ("right", "read")

    def __init__(self, model: Model, tokenizer: Tokenizer | None) -> None:
        super().__init__(model)
        self.bytes = isinstance(tokenizer, Bytes)

    def judge(self, targets: Tensor, out: Output) -> None:
        super().judge(targets, out)
        self.sums["read"] += targets.numel()

    def further(self) -> Figures:
        nats, hidden = self.sums["nats"], self.sums["targets"]
        made: Figures = {"masked_bits_per_byte": bits(nats, hidden)} if self.bytes else {}
        return {**made, "masked_perplexity": perplexity(nats, hidden), "masked_accuracy": self.sums["right"] / hidden}

    def whole(self, batches: Batches, part: str) -> None:
        return None

    def extent(self, batches: Any, part: str) -> Extent:
        return Extent(int(self.sums["read"]), len(batches.parts[part]), "tokens")

    def protocol(self, batches: Any, part: str, stride: int | None, size: int, first: int | None = None, sample: int | None = None) -> str:
        extent, hidden = self.extent(batches, part), int(self.sums["targets"])
        width = min(batches.length, extent.whole)
        return f"windows of {width:,} tokens side by side, {hidden:,} hidden ones among {extent.of(part, sample)}"


class LastWordScore(Score):
    """Of passages whose last word is judged (Paperno et al., 2016): a word is right if all its tokens are; perplexity is per word."""

    rows = "passages"
    extra = ("right",)

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def judge(self, targets: Tensor, out: Output) -> None:
        super().judge(targets, out)
        counted = targets != IGNORED
        right = ~counted
        right[counted] = likeliest(self.model, out, counted) == targets[counted]
        right = right.all(dim=1)
        self.sums["right"] += int((right & counted.any(dim=1)).sum())

    def further(self) -> Figures:
        passages = self.sums["rows"]
        return {
            "last_word_accuracy": self.sums["right"] / passages,
            "last_word_perplexity": perplexity(self.sums["nats"], passages),
            "passages": int(passages),
        }


def score_of(model: Model, batches: Batches, tokenizer: Tokenizer | None, part: str = "valid", sample: int | None = None) -> Score:
    """The score that fits a model and a part of its data, or a sample of so many rows of it."""
    head = model.spec.head
    if isinstance(batches, ImageBatches):
        return ImageScore(batches.cells.levels)
    if isinstance(model, Seq2Seq):
        return PairScore()
    if isinstance(batches, LastWord):
        return LastWordScore(model)
    if isinstance(head, MaskedLM):
        return MaskedScore(model, tokenizer)
    if isinstance(batches, Stories):
        return StoryScore(model, batches, part, sample)
    if isinstance(head, Classify):
        return HitScore(model)
    return TextScore(tokenizer, model.spec) if head.writes else Score()


def likeliest(model: Model, out: Output, counted: Tensor) -> Tensor:
    """The likeliest class (n,) of each of the n targets that count, on the CPU; logits that a head has not made, a few at a time."""
    if out.logits is not None:
        return out.logits[counted.to(out.logits.device)].argmax(dim=-1).cpu()
    assert out.hidden is not None
    few = torch.split(out.hidden[counted.to(out.hidden.device)], FEW)
    return torch.cat([model.head(hidden[None], model.embedding, None, None)[0][0].argmax(dim=-1) for hidden in few]).cpu()


def sight(spec: Spec, continues: bool) -> list[str]:
    """What else decides how far back a model looks, in words: its memory where it goes on from one, its clamp, and its hashing rounds."""
    words = [f"rounds {part.evaluation_rounds or part.rounds}" for part in spec.attention.kinds if isinstance(part, LSH)][:1]
    if continues and isinstance(spec.memory, Recurrence):
        words.append(f"memory {spec.memory.length:,}")
        words += ["same length"] if same_length(spec) else []
    return [*words, f"clamp {spec.score.clamp:,}"] if isinstance(spec.score, Relative) and spec.score.clamp is not None else words
