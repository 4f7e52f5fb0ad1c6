"""Beam search: the likeliest texts, searched breadth first, keeping at each step the best `beams` of all one-token continuations.

score(y) = log P(y) / ((5 + |y|) / 6)^a        |y| counts the end token, a is the length penalty       E151

Continuations of one length are ranked by log P. A finished one leaves the beam with its score; an unfinished one is scored when the
token limit is reached. The search ends when no unfinished text can still score better than a finished one:
log P only falls, and the penalty of the longest text is known. With one beam this is greedy decoding, whatever the penalty; with as
many beams as there are texts it is the exact maximum. From Wu et al., 2016 (section 7), and Vaswani et al., 2017 (section 6.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor

from formers.core.devices import widest_float
from formers.generation.choose import diverged
from formers.generation.compose import reader_of
from formers.generation.line import Ends, Line
from formers.generation.options import Options
from formers.model import Model


@dataclass
class _Beam:
    """An unfinished text of one prompt: its line, its log-probability, and its row in the reader."""

    line: Line
    chance: float
    row: int


class _Search:
    """The search for the texts of one prompt."""

    def __init__(self, line: Line, row: int, options: Options) -> None:
        self.options = options
        self.going = [_Beam(line, 0.0, row)]
        self.ended: list[Line] = []

    def score(self, chance: float, length: int) -> float:
        """The score of a text with this log-probability and number of tokens."""
        return chance / ((5 + length) / 6) ** self.options.length_penalty  # E151

    def end(self, line: Line, chance: float, length: int) -> None:
        """Adds a finished text; only the best `samples` are kept."""
        line.score = self.score(chance, length)
        self.ended = sorted([*self.ended, line], key=lambda text: -text.score)[: self.options.samples]

    def extend(self, found: Sequence[tuple[float, int, int]], ends: Ends) -> list[_Beam]:
        """Takes the best continuations (log-probability, index of the beam, token): finished ones leave the beam, the others continue."""
        new = []
        for chance, which, token in found:
            parent = self.going[which]
            line = replace(parent.line, ids=list(parent.line.ids))
            line.add(token, ends)
            if line.why is None:
                new.append(_Beam(line, chance, parent.row))
            else:
                self.end(line, chance, len(parent.line.ids) + 1)
        return new

    @property
    def done(self) -> bool:
        """Whether no unfinished text can still change the result."""
        if not self.going:
            return True
        best = max(self.score(beam.chance, self.options.max_new_tokens) for beam in self.going)
        return len(self.ended) == self.options.samples and self.ended[-1].score >= best


@torch.inference_mode()
def search(model: Model, lines: list[Line], options: Options, ends: Ends) -> Iterator[list[Line]]:
    """The best texts of each line's prompt, best first; yields prompt by prompt as they finish."""
    assert options.beams is not None
    reader = reader_of(model, lines)  # every step selects rows, which copies the caches: nothing is reserved
    searches = [_Search(line, row, options) for row, line in enumerate(lines)]
    for _ in range(options.max_new_tokens):
        found = best_continuations(reader.logits(), [[beam.chance for beam in one.going] for one in searches], options.beams)
        open_searches = []
        for one, best in zip(searches, found, strict=True):
            one.going = one.extend([f for f in best if f[0] > float("-inf")], ends)
            if one.done:
                yield one.ended
            else:
                open_searches.append(one)
        searches = open_searches
        if not searches:
            return
        going = [beam for one in searches for beam in one.going]
        reader.select([beam.row for beam in going])
        reader.push([beam.line.ids[-1] for beam in going])
        for row, beam in enumerate(going):
            beam.row = row
    for one in searches:
        for beam in one.going:
            beam.line.why = "length"
            one.end(beam.line, beam.chance, len(beam.line.ids))
        yield one.ended


def best_continuations(logits: Tensor, chances: Sequence[Sequence[float]], beams: int) -> list[list[tuple[float, int, int]]]:
    """For each search, the best (log-probability, index of the beam, token) of its continuations, best first.

    chances: the log-probability of each beam of each search; the rows of logits (rows, vocab) are all beams in order. The host reads the
    result once. Searches with equally many beams are ranked together.
    """
    dtype, vocab = widest_float(logits.device), logits.shape[1]
    so_far = torch.tensor([chance for each in chances for chance in each], dtype=dtype).to(logits.device, non_blocking=True)
    total = so_far[:, None] + logits.to(dtype).log_softmax(dim=-1)
    sizes = [len(each) for each in chances]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    groups = {size: [i for i, other in enumerate(sizes) if other == size] for size in dict.fromkeys(sizes)}
    values, places = [], []
    for size, members in groups.items():
        index = torch.tensor([starts[i] + beam for i in members for beam in range(size)]).to(logits.device, non_blocking=True)
        best = total.index_select(0, index).view(len(members), size * vocab).topk(min(beams, size * vocab), dim=1)
        values.append(best.values.flatten())
        places.append(best.indices.flatten())
    read = iter(zip(*read_together(torch.cat(values), torch.cat(places)), strict=True))
    found: list[list[tuple[float, int, int]]] = [[] for _ in chances]
    for size, members in groups.items():
        for i in members:
            found[i] = [(c, place // vocab, place % vocab) for c, place in islice(read, min(beams, size * vocab))]
    if any(math.isnan(c) for best in found for c, _, _ in best):
        raise diverged()
    return found


def read_together(floats: Tensor, integers: Tensor) -> tuple[list[float], list[int]]:
    """Floats (n,) and int64 integers (n,) as lists, after one wait: the bits of the floats are read as integers."""
    bits = torch.int64 if floats.dtype == torch.float64 else torch.int32
    read = torch.stack([floats.view(bits).long(), integers]).cpu()
    return read[0].to(bits).view(floats.dtype).tolist(), read[1].tolist()
