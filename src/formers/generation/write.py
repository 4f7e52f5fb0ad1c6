"""Generation with any member: text for text, token ids for token ids, one prompt or many."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypedDict, overload

from torch import Tensor
from typing_extensions import Unpack

from formers.core import FormersError
from formers.core.content import fixed_weights
from formers.data.batches import pad
from formers.generation.beam import search
from formers.generation.compose import BATCH, batches, ends_of, lines_of, write
from formers.generation.line import Line, tokenizer_of
from formers.generation.options import Options
from formers.generation.reader import is_answering
from formers.model import Model, Seq2Seq, evaluating

FILLER = -1
"""Padding after the end of a row of ids, if the tokenizer has no end token."""


class Knobs(TypedDict, total=False):
    """The options of `generate` that do not change what it returns."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    min_p: float | None
    repetition_penalty: float
    stop: str | Sequence[str]
    beams: int | None
    length_penalty: float
    mask: Tensor | None
    batch: int


@overload
def generate(model: Model, prompt: str, *, samples: None = None, **how: Unpack[Knobs]) -> str: ...
@overload
def generate(model: Model, prompt: str, *, samples: int, **how: Unpack[Knobs]) -> list[str]: ...
@overload
def generate(model: Model, prompt: Tensor, *, samples: int | None = None, **how: Unpack[Knobs]) -> Tensor: ...
@overload
def generate(model: Model, prompt: list[str], *, samples: None = None, **how: Unpack[Knobs]) -> list[str]: ...
@overload
def generate(model: Model, prompt: list[str], *, samples: int, **how: Unpack[Knobs]) -> list[list[str]]: ...
@overload
def generate(model: Model, prompt: list[list[int]], *, samples: None = None, **how: Unpack[Knobs]) -> list[list[int]]: ...
@overload
def generate(model: Model, prompt: list[list[int]], *, samples: int, **how: Unpack[Knobs]) -> list[list[list[int]]]: ...
def generate(
    model: Model,
    prompt: Any,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    *,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
    samples: int | None = None,
    beams: int | None = None,
    length_penalty: float = 0.6,
    mask: Tensor | None = None,
    batch: int = BATCH,
) -> Any:
    """The prompt and its continuation; for an encoder-decoder, whose prompt is its source, the generated target.

    A text gives a text, token ids (batch, length) give token ids, with `mask` True at real ones; a list of texts, or of lists of ids,
    gives a list; with `samples` each prompt gives a list of that many (a tensor that many rows), or as many as a beam search finds.
    Rows of a tensor that end before others are padded with the end token, or with -1 if there is none. `temperature` 0 takes the
    most likely token; `beams` is beam search. The same seed generates the same text for a prompt, whatever else is
    in the batch of `batch` lines. A model with absolute positions never looks further back than its training length:
    beyond it the window slides, and a warning is logged.
    """
    options = Options(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop,
        repetition_penalty=repetition_penalty, samples=1 if samples is None else samples, beams=beams, length_penalty=length_penalty,
    )  # fmt: skip
    if mask is not None and not isinstance(prompt, Tensor):
        raise FormersError(f"mask says which ids of a tensor are real, and the prompt is a {type(prompt).__name__}: leave mask out.")
    if isinstance(prompt, str):
        (found,) = _texts(model, [prompt], options, batch)
        return found[0] if samples is None else found
    if isinstance(prompt, Tensor):
        return _tensor(model, prompt, mask, options, batch)
    rows = _checked_rows(prompt)
    if all(isinstance(row, str) for row in rows):
        each: Iterator[list[Any]] = _texts(model, rows, options, batch)
    else:
        each = ([_whole(model, rows[line.number], line) for line in lines] for lines in texts(model, rows, options, batch, text=False))
    return [found[0] if samples is None else found for found in each]


def stream(
    model: Model,
    prompt: str,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    *,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: str | Sequence[str] = (),
) -> Iterator[str]:
    """Yields the continuation of the prompt piece by piece as it is generated; a piece never ends within a character."""
    return stream_with(
        model,
        prompt,
        Options(
            max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop,
            repetition_penalty=repetition_penalty,
        ),
    )  # fmt: skip


def stream_with(model: Model, prompt: str, options: Options) -> Iterator[str]:
    """The same as `stream`, with options as one value."""
    if options.beams is not None:
        raise FormersError(f"beams={options.beams} cannot be streamed: use generate, or leave out beams.")
    ends = ends_of(model, options, texts=True)
    assert ends.tokenizer is not None
    if not isinstance(prompt, str):
        raise FormersError(f"the prompt is a {type(prompt).__name__}: give a text, or use generate, which takes several and token ids.")
    (line,) = lines_of(model, [ends.tokenizer.encode(prompt)], options, ends)

    def pieces() -> Iterator[str]:
        decoder, sent = codecs.getincrementaldecoder("utf-8")("replace"), 0
        for _ in _evaluating_each(model, write(model, [line], options, ends)):
            # Bytes that may begin a stop string are held back until they are known not to.
            safe = len(line.data) - (ends.held(line.data) if line.why is None else 0)
            piece = decoder.decode(line.data[sent:safe])
            sent = max(sent, safe)
            if piece:
                yield piece
        if last := decoder.decode(line.data[sent:], final=True):
            yield last

    return pieces()


def _evaluating_each(model: Model, steps: Iterator[None]) -> Iterator[None]:
    """The steps, each in evaluation mode: between two steps the caller may train the model or start another stream."""
    while True:
        with evaluating(model):
            try:
                next(steps)
            except StopIteration:
                return
        yield


def answer(model: Seq2Seq, sources: Sequence[list[int]], max_new_tokens: int) -> list[list[int]]:
    """The greedy targets of an encoder-decoder for sources of different lengths, each up to its end token."""
    options = Options(max_new_tokens=max_new_tokens, temperature=0.0)
    return [lines[0].ids for lines in texts(model, sources, options, text=False)]


def texts(
    model: Model,
    prompts: Iterable[Sequence[int]],
    options: Options,
    batch: int = BATCH,
    text: bool = True,
) -> Iterator[list[Line]]:
    """The generated lines of each prompt of token ids, samples in order or best first, in the order of the prompts.

    `text`: the result is text, so the model must have a tokenizer.
    """
    if batch < 1:
        raise FormersError(f"batch={batch} generates nothing: give 1 or more.")
    ends = ends_of(model, options, text)
    waiting: dict[int, list[Line]] = {}
    number = 0
    for group in batches(model, lines_of(model, prompts, options, ends), options, batch):
        with evaluating(model), fixed_weights():  # not while a caller handles the result
            if options.beams is not None:
                for found in search(model, group, options, ends):
                    waiting[found[0].number] = [replace(line, sample=i) for i, line in enumerate(found)]
            else:
                for _ in write(model, group, options, ends):
                    pass
                for line in group:
                    waiting.setdefault(line.number, []).append(line)
        # A beam search yields all texts of a prompt at once; samples of a prompt may be spread over batches.
        while number in waiting and (options.beams is not None or len(waiting[number]) == options.samples):
            yield sorted(waiting.pop(number), key=lambda line: line.sample)
            number += 1


def _texts(model: Model, prompts: Sequence[str], options: Options, batch: int) -> Iterator[list[str]]:
    """The texts of prompts: prompt and continuation, or an encoder-decoder's target."""
    tokenizer = ends_of(model, options, texts=True).tokenizer
    assert tokenizer is not None
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    for lines in texts(model, ids, options, batch):
        yield [whole_text(model, ids[line.number], line) for line in lines]


def whole_text(model: Model, prompt: Sequence[int], line: Line) -> str:
    """Prompt and continuation as one text, decoded together because a character may span both; or an encoder-decoder's target."""
    tokenizer = tokenizer_of(model)
    before = b"" if is_answering(model) else tokenizer.to_bytes(prompt)
    return tokenizer.text(before + line.data)


def _tensor(model: Model, prompt: Tensor, mask: Tensor | None, options: Options, batch: int) -> Tensor:
    """Token ids (rows, length) of a tensor of prompts: each prompt and its continuation, or an encoder-decoder's target."""
    if prompt.dim() != 2 or prompt.is_floating_point() or 0 in prompt.shape:
        raise FormersError(
            f"the prompt is {prompt.dtype} of shape {tuple(prompt.shape)}: give int64 of shape (batch, length), both 1 or more."
        )
    if mask is not None and mask.shape != prompt.shape:
        raise FormersError(f"mask has shape {tuple(mask.shape)} and the prompt {tuple(prompt.shape)}: give one bool a token.")
    given = prompt.tolist()
    real = given if mask is None else [row[m].tolist() for row, m in zip(prompt, mask.bool(), strict=True)]
    end = ends_of(model, options, texts=False).token
    rows = [_whole(model, given[line.number], line) for lines in texts(model, real, options, batch, text=False) for line in lines]
    filled, _ = pad(rows, FILLER if end is None else end)
    return filled[:, : max(map(len, rows))].to(prompt.device)


def _whole(model: Model, prompt: Sequence[int], line: Line) -> list[int]:
    """The ids of a prompt and its continuation, or of an encoder-decoder's target."""
    return line.ids if is_answering(model) else [*prompt, *line.ids]


def _checked_rows(prompts: Any) -> list[Any]:
    """Prompts as a list; raises for anything but texts or lists of ids."""
    if isinstance(prompts, (list, tuple)):
        if not prompts:
            raise FormersError("the list of prompts is empty: give at least one text or one list of token ids.")
        kinds = {
            str if isinstance(p, str) else list if isinstance(p, (list, tuple)) and all(isinstance(i, int) for i in p) else None
            for p in prompts
        }
        if kinds in ({str}, {list}):
            return list(prompts)
    raise FormersError(
        f"the prompt is a {type(prompts).__name__}: give a text, a list of texts, a list of lists of token ids, "
        "or token ids as a tensor of shape (batch, length)."
    )
