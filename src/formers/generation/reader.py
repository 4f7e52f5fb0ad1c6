"""Rows of a model's stream while it writes: what has been read stays read, and every token costs what the pattern reads of the past."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from formers.core import State
from formers.data.batches import pad
from formers.model import Model, Output, Seq2Seq

log = logging.getLogger(__name__)
TOLD: WeakSet[Model] = WeakSet()
"""The models of which the log has said that they read more than they were trained on."""


def limit_of(model: Model) -> int | None:
    """How many tokens a model reads at the most before its window slides: the positions it has met, if these are absolute."""
    return model.spec.position.trained_positions(model.spec.length) if model.spec.position.absolute else None


class Reader:
    """Reads rows of tokens and what is written behind them, with the exact cache.

    A model with absolute positions has only seen those below its training length, or as far as random starts reached. Beyond that the
    older half of the window is forgotten and the rest read again from position 0, so that half a window is written between two readings;
    the log says so once. Rows slide together: those that will must have equal lengths.

    A model with a memory reads as it was trained to, in segments of its training length that each go on from the one before: a prompt
    may be as long as one likes, and costs no more than its length.
    """

    def __init__(self, model: Model, rows: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None) -> None:
        self.model, self.rows = model, [list(row) for row in rows]
        self.device = next(model.parameters()).device
        self.limit = limit_of(model)
        self.segment = None if model.spec.memory.limit is None else model.spec.length
        self.state: State | None = None
        self.unread: Tensor | None = None
        """(rows, 1), the tokens written last."""
        self.sources = None if sources is None else [tuple(source) for source in sources]

    def logits(self) -> Tensor:
        """Logits (rows, vocab) of every row's next token."""
        if self.state is None or self.unread is None or (self.limit is not None and self.state.bound + 1 > self.limit):
            return self._begin()
        return self._run(self.unread, None, self.state)[:, -1]

    def push(self, tokens: Sequence[int]) -> None:
        """Adds a token to every row."""
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        self.unread = torch.tensor(tokens, device=self.device)[:, None]

    def select(self, rows: list[int]) -> None:
        """Goes on with some of its rows, each as often as it is named."""
        if rows == list(range(len(self.rows))):
            return
        index = torch.tensor(rows, device=self.device)
        self.rows = [list(self.rows[i]) for i in rows]
        self.state = None if self.state is None else self.state.select(index)
        self.unread = None if self.unread is None else self.unread[index]
        self.sources = None if self.sources is None else [self.sources[i] for i in rows]

    def _begin(self) -> Tensor:
        """Reads the rows, or what is left of them where they are longer than the model reads, from position 0."""
        rows = self.rows
        if self.limit is not None and max(map(len, rows)) > self.limit:
            self._say("beyond %d tokens, the length it was trained on, the model re-reads the last half: the window slides", self.limit)
            rows = [row[-(self.limit // 2 + 1) :] for row in rows]
        # What several rows begin with, as the samples of one prompt do, is read once.
        keys = [(tuple(row), None if self.sources is None else self.sources[i]) for i, row in enumerate(rows)]
        different = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        read = [row for row, _ in different]
        sources = None if self.sources is None else [source for _, source in different if source is not None]
        reader = self.model.spec.encoder
        if sources and reader is not None and reader.position.absolute:
            met = reader.position.trained_positions(reader.length)
            if max(map(len, sources)) > met:
                self._say("the source is longer than %d tokens, the length the model was trained on: it may not be understood", met)
        tokens, mask = pad(read)
        self.state, last = self.model.initial_state(len(read)), None
        width = self.segment or tokens.shape[1]
        for piece, real in zip(torch.split(tokens, width, dim=1), torch.split(mask, width, dim=1), strict=True):
            last = self._next(piece, real, last, sources)
        assert last is not None
        if len(read) == len(keys):
            return last
        assert self.state is not None
        index = torch.tensor([different[key] for key in keys], device=self.device)
        self.state = self.state.select(index)
        return last[index]

    def _next(self, tokens: Tensor, mask: Tensor, before: Tensor | None, sources: Sequence[Sequence[int]] | None) -> Tensor:
        """Logits (rows, vocab) behind the last token of every row so far, of which these are the next; a row may have ended before."""
        assert self.state is not None
        even = bool(mask.all())
        logits = self._run(tokens.to(self.device), None if even else mask.to(self.device), self.state, sources)
        if even:
            return logits[:, -1]
        counts = mask.sum(dim=1).to(self.device)
        last = logits[torch.arange(len(tokens), device=self.device), (counts - 1).clamp(min=0)]
        return last if before is None else torch.where(counts[:, None] > 0, last, before)

    def _say(self, words: str, length: int) -> None:
        """Says once of a model that it reads more than it was trained on."""
        if self.model not in TOLD:
            TOLD.add(self.model)
            log.warning(words, length)

    def _run(self, tokens: Tensor, mask: Tensor | None, state: State, sources: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Logits (rows, length, vocab) of tokens behind a state, which is replaced by the one behind them."""
        if self.sources is None:
            out: Output = self.model(tokens, state=state, mask=mask)
        else:
            source, real = (None, None) if sources is None else (t.to(self.device) for t in pad(sources))
            out = self.model(source, tokens, source_mask=real, mask=mask, state=state)
        self.state = out.state
        assert out.logits is not None
        return out.logits


def is_answering(model: Model) -> bool:
    """Whether a model's prompt is a source, which it reads beside what it writes."""
    return isinstance(model, Seq2Seq)
