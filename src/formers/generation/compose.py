"""Batched generation: prompts become lines, lines are read in batches, and every step adds a token to each.

A line does not depend on the others: it reads no padding, has its own random numbers, and its window slides when it is full. So
lines whose windows will slide are batched with lines of the same length only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice

import torch
from torch import Tensor

from formers.core import FormersError
from formers.data import Tokenizer
from formers.data.tokenize import to_utf8
from formers.generation.choose import Draws, choose, uniforms
from formers.generation.line import Ends, Line, tokenizer_of
from formers.generation.options import Options
from formers.generation.reader import Reader, is_answering, limit_of
from formers.model import Model

Look = Callable[[Sequence[Line], Tensor, Sequence[int]], None]
"""What is called at each step before tokens are added: the lines that go on, their logits (lines, vocab) and the tokens chosen."""
BATCH = 64
"""Default number of lines per batch."""


def ends_of(model: Model, options: Options, texts: bool) -> Ends:
    """The end conditions of a model's texts; `texts`: the result is text, so a tokenizer is needed."""
    if not hasattr(model, "spec"):
        raise FormersError(f"the model is a {type(model).__name__}: give what formers.load, formers.create or formers.build returns.")
    if model.spec.image is not None:
        raise FormersError(
            f"{model.spec.name or 'this model'} draws images, not text: use formers.sample_images, or `formers generate --out`."
        )
    if not model.spec.head.generates:
        head = type(model.spec.head).__name__
        raise FormersError(
            f"{model.spec.name or 'this model'} with the {head} head does not generate text: use a language model, such as decoder, or an "
            "encoder-decoder, such as transformer."
        )
    needed = texts or bool(options.stop) or is_answering(model)
    return Ends(tokenizer_of(model) if needed else model.tokenizer, tuple(to_utf8(stop) for stop in options.stop))


def lines_of(model: Model, prompts: Iterable[Sequence[int]], options: Options, ends: Ends) -> Iterator[Line]:
    """New lines for prompts, one for each sample.

    A line's random numbers are a function of the seed, its prompt and how often that prompt occurred before, so neither the
    batch nor its order changes the text of a prompt.
    """
    spec = model.spec
    vocab = (spec.encoder.vocab if spec.encoder is not None else None) or spec.vocab
    assert vocab is not None
    seed = int(torch.randint(2**62, ())) if options.seed is None else options.seed
    before: Counter[tuple[int, ...]] = Counter()
    # A beam search starts from one line and uses no random numbers.
    samples = 1 if options.beams is not None else options.samples
    for number, prompt in enumerate(prompts):
        ids = [int(token) for token in prompt]
        check_ids(ids, vocab)
        for sample in range(samples):
            key = tuple(ids)
            draws = uniforms(seed, *key, "sample", before[key])
            before[key] += 1
            if is_answering(model):
                assert ends.tokenizer is not None
                yield Line(number, sample, [ends.tokenizer.special("begin")], draws, source=ids)
            else:
                yield Line(number, sample, ids or start_of(ends.tokenizer), draws)


def check_ids(ids: Sequence[int], vocab: int) -> None:
    """Raises for ids that are not in 0 ... vocab-1, also for those that do not fit into an int64 tensor.

    Ids are checked on the host, before they are copied to the device of the model, where reading them would be a wait.
    """
    wrong = next((token for token in ids if not 0 <= token < vocab), None)
    if wrong is not None:
        raise FormersError(f"token id {wrong} is out of range: with vocab={vocab} ids are 0 ... {vocab - 1}.")


def start_of(tokenizer: Tokenizer | None) -> list[int]:
    """The ids before an empty prompt: the begin token, else a line break, else the first id."""
    if tokenizer is None:
        return [0]
    if "begin" in tokenizer.specials:
        return [tokenizer.special("begin")]
    try:
        return tokenizer.encode("\n")
    except FormersError:
        return [0]


def batches(model: Model, lines: Iterable[Line], options: Options, size: int = BATCH) -> Iterator[list[Line]]:
    """The lines in batches of at most `size`, of equal length if their windows will slide."""
    limit, lines = limit_of(model), iter(lines)
    while batch := list(islice(lines, size)):
        if limit is None or max(len(line.read) for line in batch) + options.max_new_tokens <= limit:
            yield batch
        else:
            ordered = sorted(batch, key=lambda line: len(line.read))
            yield from (list(group) for _, group in groupby(ordered, key=lambda line: len(line.read)))


def reader_of(model: Model, lines: Sequence[Line], new: int | None = None) -> Reader:
    """A new reader of some lines; new: the number of tokens that will follow each, at most, if caches are to be allocated for them."""
    sources = [line.source for line in lines if line.source is not None]
    return Reader(model, [line.read for line in lines], sources or None, new)


@torch.inference_mode()
def write(model: Model, lines: list[Line], options: Options, ends: Ends, look: Look | None = None) -> Iterator[None]:
    """Generates one token per line between two yields, until all lines have ended; the tokens are stored in the lines.

    look: called at every step with the logits and the chosen tokens.
    """
    reader, going = reader_of(model, lines, options.max_new_tokens), list(lines)
    draws = Draws([line.draws for line in lines], reader.device) if options.temperature > 0 else None
    seen = _seen(model, lines) if options.repetition_penalty != 1.0 else None
    for _ in range(options.max_new_tokens):
        logits = reader.logits()
        chosen = choose(logits, options, None if draws is None else draws.next(), seen)
        reader.push(chosen.tokens, chosen.ids)
        if look is not None:
            look(going, logits, chosen.tokens)
        for line, token in zip(going, chosen.tokens, strict=True):
            line.add(token, ends)
        if seen is not None:
            seen.scatter_(1, chosen.ids[:, None], True)
        yield
        left = [i for i, line in enumerate(going) if line.why is None]
        if not left:
            break
        if 2 * len(left) <= len(going):  # finished lines are kept until dropping them pays off
            going = [going[i] for i in left]
            reader.select(left)
            if draws is not None:
                draws.select(left)
            seen = None if seen is None else seen[left]
    for line in lines:
        line.why = line.why or "length"


def _seen(model: Model, lines: Sequence[Line]) -> Tensor:
    """A mask (lines, vocab) of the tokens that occur in each line; an encoder-decoder's source does not count."""
    assert model.spec.vocab is not None
    seen = torch.zeros(len(lines), model.spec.vocab, dtype=torch.bool)
    for row, line in zip(seen, lines, strict=True):
        if line.source is None:
            row[line.read] = True
    return seen.to(next(model.parameters()).device)
