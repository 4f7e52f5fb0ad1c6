"""Incremental reading of rows with the KV cache: each new token costs only the keys that its pattern reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from formers.core import State
from formers.data.batches import pad
from formers.generation.static_cache import reserve
from formers.model import Model, Output, Seq2Seq

log = logging.getLogger(__name__)
_WARNED: WeakSet[Model] = WeakSet()
"""The models for which a warning about inputs longer than in training was logged."""


def limit_of(model: Model) -> int | None:
    """The number of tokens a model reads before its window slides: its trained positions, if these are absolute; else None."""
    return model.spec.position.trained_positions(model.spec.length) if model.spec.position.absolute else None


class Reader:
    """Reads rows of tokens and the tokens generated after them, with an exact cache.

    A model with absolute positions was trained only on positions below its training length, or up to its random offsets. Beyond that the
    older half of the window is dropped and the rest read again from position 0, so that half a window is generated between two re-reads;
    a warning is logged once. Windows slide together: rows that will slide must have equal lengths.

    A model with a memory reads segments of its training length, each continuing the one before, as in training: a prompt
    may have any length, and costs are linear in it.
    """

    def __init__(
        self, model: Model, rows: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None, new: int | None = None
    ) -> None:
        """new: the number of tokens that will follow each row, at most; caches are allocated once for so many. None: they grow."""
        self.model, self.rows, self.new = model, [list(row) for row in rows], new
        self.device = next(model.parameters()).device
        self.limit = limit_of(model)
        self.segment = None if model.spec.memory.limit is None else model.spec.length
        self.state: State | None = None
        self.unread: Tensor | None = None
        """(rows, 1), the last generated tokens."""
        self.sources = None if sources is None else [tuple(source) for source in sources]

    def logits(self) -> Tensor:
        """Logits (rows, vocab) of every row's next token."""
        if self.state is None or self.unread is None or (self.limit is not None and self.state.bound + 1 > self.limit):
            return self._begin()
        return self._run(self.unread, None, self.state)[:, -1]

    def push(self, tokens: Sequence[int], ids: Tensor | None = None) -> None:
        """Adds a token to every row; ids: the same tokens (rows,), if they are already on the device of the model."""
        for row, token in zip(self.rows, tokens, strict=True):
            row.append(token)
        self.new = None if self.new is None else self.new - 1
        self.unread = (self._indices(tokens) if ids is None else ids)[:, None]

    def select(self, rows: list[int]) -> None:
        """Keeps the rows with these indices, which may repeat."""
        if rows == list(range(len(self.rows))):
            return
        index = self._indices(rows)
        self.rows = [list(self.rows[i]) for i in rows]
        self.state = None if self.state is None else self._reserved(self.state.select(index))
        self.unread = None if self.unread is None else self.unread[index]
        self.sources = None if self.sources is None else [self.sources[i] for i in rows]

    def _begin(self) -> Tensor:
        """Reads the rows from position 0, or the end of rows that are longer than the model reads."""
        rows = self.rows
        if self.limit is not None and max(map(len, rows)) > self.limit:
            self._say("beyond %d tokens, the length it was trained on, the model re-reads the last half: the window slides", self.limit)
            rows = [row[-(self.limit // 2 + 1) :] for row in rows]
        # A common prefix of several rows, such as samples of one prompt, is read once.
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
        assert self.state is not None
        if len(read) < len(keys):
            index = self._indices([different[key] for key in keys])
            self.state, last = self.state.select(index), last[index]
        self.state = self._reserved(self.state)
        return last

    def _reserved(self, state: State) -> State:
        """The state with room for all tokens that follow before the window slides."""
        if self.new is None:
            return state
        return reserve(state, self.model.spec, self.new if self.limit is None else min(self.new, self.limit - state.bound))

    def _next(self, tokens: Tensor, mask: Tensor, before: Tensor | None, sources: Sequence[Sequence[int]] | None) -> Tensor:
        """Logits (rows, vocab) after the last token of each row; `tokens` are the next tokens of the rows, and rows may end early."""
        assert self.state is not None
        even = bool(mask.all())
        logits = self._run(tokens.to(self.device), None if even else mask.to(self.device), self.state, sources)
        if even:
            return logits[:, -1]
        counts = mask.sum(dim=1).to(self.device)
        last = logits[torch.arange(len(tokens), device=self.device), (counts - 1).clamp(min=0)]
        return last if before is None else torch.where(counts[:, None] > 0, last, before)

    def _indices(self, numbers: Sequence[int]) -> Tensor:
        """Integers of the host as a tensor on the device of the model, without a wait."""
        return torch.tensor(numbers, dtype=torch.int64).to(self.device, non_blocking=True)

    def _say(self, words: str, length: int) -> None:
        """Warns once per model that the input is longer than in training."""
        if self.model not in _WARNED:
            _WARNED.add(self.model)
            log.warning(words, length)

    def _run(self, tokens: Tensor, mask: Tensor | None, state: State, sources: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Logits (rows, length, vocab) of tokens that continue a state; stores the new state."""
        if self.sources is None:
            out: Output = self.model(tokens, state=state, mask=mask)
        else:
            source, real = (None, None) if sources is None else (t.to(self.device) for t in pad(sources))
            out = self.model(source, tokens, source_mask=real, mask=mask, state=state)
        self.state = out.state
        assert out.logits is not None
        return out.logits


def is_answering(model: Model) -> bool:
    """Whether a model's prompt is the source of an encoder-decoder."""
    return isinstance(model, Seq2Seq)
