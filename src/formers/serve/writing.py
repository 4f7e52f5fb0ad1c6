"""A completion in the worker's thread: prompts are scored if their echo is wanted, and texts are written, a token of each at a step.

What is told of a text are pieces, each with its tokens. A piece never ends within a character, and nothing is told that may turn out to
be the beginning of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from formers.core import FormersError
from formers.data import Tokenizer
from formers.generation import Line, Options, texts
from formers.generation.compose import batches, ends_of, lines_of, start_of, write
from formers.generation.line import Ends
from formers.generation.reader import is_answering, limit_of
from formers.model import Model, evaluating
from formers.serve.errors import ApiError
from formers.serve.limits import Limits
from formers.serve.models import Models
from formers.serve.scoring import Scored, score, scored

REASONS = {"end": "stop", "stop": "stop", "length": "length"}
"""Why a text ended, in the API's words."""


@dataclass(frozen=True)
class Ask:
    """What a completion is asked for."""

    model: str
    prompts: list[str] | list[list[int]]
    options: Options
    echo: bool = False
    logprobs: int | None = None


class Token(NamedTuple):
    """A token of an answer: its text, its log-probability, others at its place, and where its text begins, in characters."""

    text: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int


@dataclass
class TextChunk:
    """What has been written of a text since the last piece."""

    index: int
    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    reason: str | None = None
    """Why it ended; None where it goes on."""


class Usage(NamedTuple):
    """How many tokens were read and written."""

    prompt: int
    completion: int


class Note(NamedTuple):
    """A sentence for the user beside the answer."""

    text: str


def complete(models: Models, ask: Ask, limits: Limits) -> Iterator[TextChunk | Usage | Note | None]:
    """The pieces of all texts as they are written; None after steps that tell nothing."""
    model = models.get(ask.model)
    yield None
    # A model of bytes without a tokenizer writes text, too, also where it is given token ids.
    wants_text = any(isinstance(prompt, str) for prompt in ask.prompts) or model.tokenizer is not None or model.spec.vocab == 256
    ends = ends_of(model, ask.options, texts=wants_text)
    ids = _encoded(model, ask, ends)
    total = sum(map(len, ids))
    if total > limits.prompt_tokens:
        raise ApiError(400, f"the prompts have {total:,} tokens, more than {limits.prompt_tokens:,}: send fewer at once.", param="prompt")
    if is_answering(model) and ask.echo:
        raise ApiError(400, f"echo is not for {ask.model}, whose prompt is a source and no part of its text: leave echo out.", param="echo")
    limit = limit_of(model)
    longest = max((len(row) for row in ids), default=0) + ask.options.max_new_tokens
    if limit is not None and not is_answering(model) and longest > limit:
        yield Note(f"{ask.model} was trained on {limit} tokens: beyond them its window slides, and it forgets what came first.")
    outlets = [
        _Outlet(number * ask.options.samples + sample, ends, ask.logprobs, ids[number] if ask.echo else None)
        for number in range(len(ids))
        for sample in range(ask.options.samples)
    ]
    if ask.echo:
        scores: list[list[Scored]] | None = None
        if ask.logprobs is not None:
            for found_scores in score(model, ids, ask.logprobs):
                scores = found_scores
                yield None
            assert scores is not None
        for outlet in outlets:
            number = outlet.index // ask.options.samples
            for place, token in enumerate(ids[number]):
                outlet.add(Scored(token, None, []) if scores is None else scores[number][place])
    written = 0
    if ask.options.beams is not None:
        for number, found in enumerate(texts(model, ids, ask.options, text=wants_text)):
            for line in found:
                written += len(line.ids)
                yield outlets[number * ask.options.samples + line.sample].whole(line)
    elif ask.options.max_new_tokens == 0:
        yield from (outlet.piece(b"", "length") for outlet in outlets)
    else:
        for group in batches(model, lines_of(model, ids, ask.options, ends), ask.options):
            yield from _write(model, group, ask, ends, [outlets[line.number * ask.options.samples + line.sample] for line in group])
            written += sum(len(line.ids) for line in group)
    yield Usage(total, written)


def _encoded(model: Model, ask: Ask, ends: Ends) -> list[list[int]]:
    """The token ids of the prompts; a prompt of nothing is what a text begins with."""
    rows: list[list[int]] = []
    for prompt in ask.prompts:
        if isinstance(prompt, str):
            assert ends.tokenizer is not None
            rows.append(ends.tokenizer.encode(prompt))
        else:
            _check_ids(model, prompt)
            rows.append(prompt)
    if is_answering(model):
        if not all(rows):
            raise FormersError("the source is empty, so that there is nothing to answer: give at least one token.")
        return rows
    return [row or start_of(ends.tokenizer) for row in rows]


def _check_ids(model: Model, ids: Sequence[int]) -> None:
    spec = model.spec
    vocab = (spec.encoder.vocab if spec.encoder is not None else None) or spec.vocab or 0
    wrong = next((token for token in ids if not 0 <= token < vocab), None)
    if wrong is not None:
        shown = wrong if abs(wrong) < 10**20 else "a very large number"
        raise ApiError(400, f"token id {shown} is out of range: this model has ids 0 ... {vocab - 1}.", param="prompt")


def _write(model: Model, group: list[Line], ask: Ask, ends: Ends, outlets: list[_Outlet]) -> Iterator[TextChunk | None]:
    """Writes lines, and gives the pieces of those that have something new."""
    place = {id(line): outlet for line, outlet in zip(group, outlets, strict=True)}
    told: set[int] = set()

    def look(lines: Sequence[Line], logits: Tensor, tokens: Sequence[int]) -> None:
        new = scored(logits, logits.new_tensor(tokens).long(), ask.logprobs or 0) if ask.logprobs is not None else None
        for i, (line, token) in enumerate(zip(lines, tokens, strict=True)):
            if line.why is None and token != ends.token:
                place[id(line)].add(Scored(token, None, []) if new is None else new[i])

    steps = write(model, group, ask.options, ends, look)
    while True:
        with evaluating(model):
            if next(steps, steps) is steps:
                break
        for line, outlet in zip(group, outlets, strict=True):
            if outlet.index in told:
                continue
            ended = line.why is not None or len(line.ids) >= ask.options.max_new_tokens
            safe = len(line.data) - (0 if ended else ends.held(line.data))
            piece = outlet.piece(line.data[:safe], REASONS[line.why or "length"] if ended else None)
            if ended:
                told.add(outlet.index)
            yield piece if piece.text or piece.tokens or piece.reason else None


class _Outlet:
    """The text of one answer on its way out: bytes become characters, and tokens wait for the text they belong to."""

    def __init__(self, index: int, ends: Ends, logprobs: int | None, echo: Sequence[int] | None) -> None:
        self.index, self.tokenizer, self.logprobs = index, ends.tokenizer, logprobs
        self.echo = b"" if echo is None or ends.tokenizer is None else ends.tokenizer.to_bytes(echo)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offsets = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = self._sent = self._reached = 0
        self._waiting: list[tuple[int, Token]] = []

    def add(self, token: Scored) -> None:
        """Takes a token that was read or chosen; its text is told when it is safe to."""
        data = b"" if self.tokenizer is None else self.tokenizer.to_bytes([token.token])
        if self.logprobs is not None:
            top = None
            if token.logprob is not None:
                pairs = dict(token.top) | {token.token: token.logprob}
                top = {name_of(self.tokenizer, other): value for other, value in pairs.items()}
            self._waiting.append((self._reached, Token(name_of(self.tokenizer, token.token), token.logprob, top, self._characters)))
        self._characters += len(self._offsets.decode(data))
        self._reached += len(data)

    def piece(self, data: bytes, reason: str | None) -> TextChunk:
        """The next piece, when this much has been written for certain; with a reason it is the last one."""
        whole = self.echo + data
        text = self._decoder.decode(whole[self._sent :], final=reason is not None)
        self._sent = len(whole)
        # Behind a stop string tokens are not told; one without a text, at the end of the last piece, is.
        ready = [token for start, token in self._waiting if start < len(whole) or self.tokenizer is None or reason == "length"]
        self._waiting = [] if reason is not None else self._waiting[len(ready) :]
        return TextChunk(self.index, text, ready, reason)

    def whole(self, line: Line) -> TextChunk:
        """A text that is told at once, when it is complete."""
        return self.piece(line.data, REASONS[line.why or "length"])


def name_of(tokenizer: Tokenizer | None, token: int) -> str:
    """A token as text, another for every token: its text, its bytes where they are no text, or its name or number."""
    if tokenizer is None or token >= tokenizer.vocab:
        return f"<{token}>"
    if token >= tokenizer.plain:
        return f"<{tokenizer.specials[token - tokenizer.plain]}>"
    data = tokenizer.to_bytes([token])
    try:
        return data.decode("utf-8") or f"<{token}>"
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
