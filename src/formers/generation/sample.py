"""Sampling, one token at a time, each costing what the pattern reads of the past.

p = softmax(logits / temperature), kept to the top_k likeliest tokens, then to the fewest whose p sums to top_p       E22
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from formers.core import FormersError, State
from formers.core.random import generator
from formers.data import Bytes, Tokenizer
from formers.data.batches import pad
from formers.model import Model, Seq2Seq, evaluating
from formers.position import Learned

log = logging.getLogger(__name__)


@overload
def generate(
    model: Model,
    prompt: str,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    seed: int | None = ...,
) -> str: ...  # fmt: skip
@overload
def generate(
    model: Model,
    prompt: Tensor,
    max_new_tokens: int = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    seed: int | None = ...,
) -> Tensor: ...  # fmt: skip
@torch.no_grad()
def generate(
    model: Model,
    prompt: str | Tensor,
    max_new_tokens: int = 200,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> str | Tensor:
    """The prompt and its continuation: text for text, token ids (batch, length) for token ids; temperature 0 takes the likeliest.

    An encoder-decoder's prompt is its source, and what comes back is the target it writes, rows of ids filled up with the end
    token. A model with absolute positions never looks further back than its training length: beyond it the window slides, and
    the log says so.
    """
    choose = Chooser(temperature, top_k, top_p, seed)
    if max_new_tokens < 0:
        raise FormersError(f"max_new_tokens={max_new_tokens} is negative: give 0 or more.")
    if not model.spec.head.writes:
        raise FormersError(f"{model.spec.name or 'this model'} does not write text: use a decoder or a transformer.")
    with evaluating(model):
        if isinstance(prompt, str):
            return _text(model, prompt, max_new_tokens, choose)
        _check_prompt(prompt)
        if isinstance(model, Seq2Seq):
            rows = _answer(model, prompt, None, max_new_tokens, choose)
            return pad(rows, tokenizer_of(model).special("end"))[0]
        return _continue(model, prompt, max_new_tokens, choose)


def answer(model: Seq2Seq, sources: Sequence[list[int]], max_new_tokens: int) -> list[list[int]]:
    """What an encoder-decoder writes for sources of different lengths, each up to its end token, greedily."""
    tokens, mask = pad(sources)
    device = next(model.parameters()).device
    return _answer(model, tokens.to(device), mask.to(device), max_new_tokens, Chooser(0.0))


class Chooser:
    """Chooses the next token from logits: the likeliest, or one drawn from what temperature, top_k and top_p leave."""

    def __init__(self, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, seed: int | None = None) -> None:
        if not temperature >= 0:
            raise FormersError(f"temperature={temperature} is below 0: use 0 for the likeliest token, 1 for the model's own spread.")
        if top_k is not None and top_k < 1:
            raise FormersError(f"top_k={top_k} leaves no token to choose: give 1 or more.")
        if top_p is not None and not 0 < top_p <= 1:
            raise FormersError(f"top_p={top_p} is no share of the probability: give more than 0, at most 1.")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.random = None if seed is None else generator(seed, "sample")

    def __call__(self, logits: Tensor) -> Tensor:
        """Token ids (batch,) from logits (batch, vocab)."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        p = self.probabilities(logits)
        if not bool(p.isfinite().all()):
            raise FormersError("the model's logits are not finite: its training has diverged; use an earlier checkpoint.")
        if self.random is None:
            return torch.multinomial(p, 1)[:, 0]
        return torch.multinomial(p.cpu(), 1, generator=self.random)[:, 0].to(logits.device)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution (batch, vocab) that a token is drawn from."""
        logits = logits.float()
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature  # the likeliest is 0 at any temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        p = logits.softmax(dim=-1)  # E22
        if self.top_p is not None and self.top_p < 1:
            ordered, order = p.sort(dim=-1, descending=True)
            beyond = ordered.cumsum(dim=-1) - ordered >= self.top_p
            p = p.masked_fill(beyond.gather(1, order.argsort(dim=-1)), 0.0)
        return p


def tokenizer_of(model: Model) -> Tokenizer:
    """The tokenizer that came with a model, or bytes for a model that has their 256 ids."""
    if model.tokenizer is not None:
        return model.tokenizer
    if model.spec.vocab == 256:
        return Bytes()
    if isinstance(model, Seq2Seq):
        raise FormersError("this model has no tokenizer, so nothing says how a target begins and ends: set model.tokenizer.")
    raise FormersError(f"this model of vocab={model.spec.vocab} has no tokenizer: give token ids, or set model.tokenizer.")


def _text(model: Model, prompt: str, new: int, choose: Chooser) -> str:
    tokenizer = tokenizer_of(model)
    device = next(model.parameters()).device
    ids = tokenizer.encode(prompt)
    if isinstance(model, Seq2Seq):
        tokens, mask = pad([ids])
        return tokenizer.decode(_answer(model, tokens.to(device), mask.to(device), new, choose)[0])
    # A stream begins with something: where the prompt is empty, with a line break, which is then taken off again.
    start = torch.tensor([ids or _line_break(tokenizer)], device=device)
    written = _continue(model, start, new, choose)
    return tokenizer.decode(written[0, 0 if ids else start.shape[1] :].tolist())


def _line_break(tokenizer: Tokenizer) -> list[int]:
    """The ids of a line break, or the first id of a tokenizer that has seen none."""
    try:
        return tokenizer.encode("\n")
    except FormersError:
        return [0]


def _check_prompt(prompt: Tensor) -> None:
    if not isinstance(prompt, Tensor):
        raise FormersError(f"the prompt is a {type(prompt).__name__}: give a text, or token ids as a tensor of shape (batch, length).")
    if prompt.dim() != 2 or prompt.is_floating_point() or prompt.shape[1] == 0:
        raise FormersError(
            f"the prompt is {prompt.dtype} of shape {tuple(prompt.shape)}: give int64 of shape (batch, length), length 1 or more."
        )


def _continue(model: Model, tokens: Tensor, new: int, choose: Chooser) -> Tensor:
    """Token ids (batch, length + new); beyond the training length the older half of the window is forgotten and the rest re-read."""
    limit = model.spec.length if model.spec.position.absolute else None
    if isinstance(model.spec.position, Learned) and tokens.shape[1] > model.spec.length:
        raise FormersError(
            f"the prompt of {tokens.shape[1]} tokens does not fit the learned positions, whose table has length={model.spec.length}: "
            "shorten the prompt, or train with a larger length."
        )
    state: State | None = None
    unread, told = tokens, False
    for _ in range(new):
        if limit is not None and (0 if state is None else state.bound) + unread.shape[1] > limit:
            if not told:
                log.warning("beyond %d tokens, the length it was trained on, the model re-reads the last half: the window slides", limit)
                told = True
            state, unread = None, tokens[:, -(limit // 2 + 1) :]
        out = model(unread, state=state if state is not None else model.initial_state(len(tokens)))
        state = out.state
        unread = choose(out.logits[:, -1])[:, None]
        tokens = torch.cat([tokens, unread], dim=1)
    return tokens


def _answer(model: Seq2Seq, source: Tensor, mask: Tensor | None, new: int, choose: Chooser) -> list[list[int]]:
    """Targets up to their end token, as lists of ids."""
    tokenizer = tokenizer_of(model)
    begin, end = tokenizer.special("begin"), tokenizer.special("end")
    last = torch.full((len(source), 1), begin, device=source.device)
    written: list[Tensor] = []
    open_rows = torch.ones(len(source), dtype=torch.bool, device=source.device)
    state: State = model.initial_state(len(source))
    for _ in range(min(new, model.spec.length) if isinstance(model.spec.position, Learned) else new):
        out = model(source, last, source_mask=mask, state=state)
        state = out.state
        last = choose(out.logits[:, -1])[:, None]
        written.append(last)
        open_rows &= last[:, 0] != end
        if not open_rows.any():
            break
    rows = torch.cat(written, dim=1).tolist() if written else [[] for _ in source]
    return [row[: row.index(end)] if end in row else row for row in rows]
