"""`/v1/completions` and its neighbours: requests in OpenAI's form become what the library is asked for, and its answers take that form."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from formers.core import FormersError
from formers.generation import Options
from formers.generation.compose import start_of
from formers.serve.bodies import boolean, check_names, integer, number, read_json, string, texts
from formers.serve.errors import ApiError, as_api_error
from formers.serve.events import Events, event
from formers.serve.limits import Limits
from formers.serve.services import Services
from formers.serve.writing import Ask, Note, TextChunk, Token, Usage, complete, name_of

KNOWN = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stream", "stream_options", "logprobs", "echo", "stop",
    "seed", "user", "best_of", "suffix", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "beams",
    "length_penalty",
)  # fmt: skip
ABSENT: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""), "logit_bias": (None, {}), "presence_penalty": (None, 0, 0.0), "frequency_penalty": (None, 0, 0.0),
}  # fmt: skip
"""Fields of OpenAI's that mean nothing here, and the values that ask for nothing."""


def parse(body: dict[str, Any], limits: Limits) -> Ask:
    """What a request asks for, after its caps."""
    check_names(body, KNOWN)
    for name, harmless in ABSENT.items():
        if body.get(name) not in harmless:
            raise ApiError(400, f"{name} is not supported: leave it out.", param=name, code="unsupported_parameter")
    prompts = parse_prompts(body.get("prompt"), limits)
    n = integer(body, "n", 1, 1, limits.texts)
    assert n is not None
    if integer(body, "best_of", n, 1) != n:
        raise ApiError(400, "best_of other than n is not supported: leave it out.", param="best_of", code="unsupported_parameter")
    if len(prompts) * n > limits.texts:
        raise ApiError(400, f"{len(prompts)} prompts times n={n} are more than {limits.texts} texts: send fewer at once.", param="n")
    new = integer(body, "max_tokens", 16, 0, limits.max_tokens)
    assert new is not None
    if len(prompts) * n * new > limits.new_tokens:
        raise ApiError(
            400, f"{len(prompts)} prompts times n={n} times max_tokens={new} are more than {limits.new_tokens:,} tokens: ask for fewer.",
            param="max_tokens",
        )  # fmt: skip
    beams = integer(body, "beams", None, 1, 64)
    logprobs = integer(body, "logprobs", None, 0, limits.logprobs)
    if beams is not None and (boolean(body, "stream") or logprobs is not None):
        raise ApiError(400, "beams knows its text only when all is searched: leave out stream and logprobs, or beams.", param="beams")
    try:
        options = Options(
            max_new_tokens=new, temperature=_given(number(body, "temperature", None), 0.0 if beams else 1.0), top_k=_top_k(body),
            top_p=number(body, "top_p", None), min_p=number(body, "min_p", None), stop=texts(body, "stop", limits.stops),
            repetition_penalty=_given(number(body, "repetition_penalty", None), 1.0), seed=integer(body, "seed", None, -(2**63), 2**63 - 1),
            samples=n, beams=beams, length_penalty=_given(number(body, "length_penalty", None), 0.6),
        )  # fmt: skip
    except FormersError as error:
        raise ApiError(400, str(error)) from None
    return Ask(string(body, "model"), prompts, options, boolean(body, "echo"), logprobs)


def _top_k(body: dict[str, Any]) -> int | None:
    """top_k; other servers' 0 and -1 mean all tokens."""
    k = integer(body, "top_k", None, -1, 1 << 31)
    return None if k in (-1, 0) else k


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


def parse_prompts(prompt: Any, limits: Limits) -> list[str] | list[list[int]]:
    """The prompts: a text, texts, token ids, or lists of token ids."""
    if prompt is None:
        return [""]
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(type(each) is int for each in prompt):
            return [prompt]
        if len(prompt) > limits.texts:
            raise ApiError(400, f"{len(prompt):,} prompts are more than {limits.texts}: send fewer at once.", param="prompt")
        if all(isinstance(each, str) for each in prompt):
            return prompt
        if all(isinstance(each, list) and all(type(i) is int for i in each) for each in prompt):
            return prompt
    raise ApiError(400, "prompt is none of the four kinds: give a text, a list of texts, token ids, or lists of token ids.", param="prompt")


async def completions(request: Request, services: Services) -> Response:
    """Completions of prompts, at once or as they are written."""
    body = await read_json(request, services.limits)
    ask = parse(body, services.limits)
    services.runs.model(ask.model)
    frame = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()), "model": ask.model}
    if boolean(body, "stream"):
        wanted = body.get("stream_options")
        usage = isinstance(wanted, dict) and wanted.get("include_usage") is True
        slot = services.open_stream()
        try:
            job = services.worker.submit(complete(services.models, ask, services.limits))
        except BaseException:
            slot.release()
            raise
        return Events(_chunks(job.items(), frame, ask, usage), slot.release, job.cancel)
    job = services.worker.submit(complete(services.models, ask, services.limits))
    found = await job.all(request.is_disconnected)
    whole = {i: TextChunk(i) for i in range(len(ask.prompts) * ask.options.samples)}
    notes, read, written = [], 0, 0
    for item in found:
        if isinstance(item, TextChunk):
            one = whole[item.index]
            one.text += item.text
            one.tokens += item.tokens
            one.reason = item.reason or one.reason
        elif isinstance(item, Note):
            notes.append(item.text)
        elif isinstance(item, Usage):
            read, written = item
    choices = [_choice(piece, ask) for piece in whole.values() if piece.reason is not None]
    return JSONResponse({**frame, "choices": choices, "usage": _usage(read, written), **({"notes": notes} if notes else {})})


async def _chunks(items: AsyncIterator[Any], frame: dict[str, Any], ask: Ask, usage: bool) -> AsyncIterator[bytes | None]:
    """A completion as server-sent events; None while nothing is told."""
    try:
        async for item in items:
            if isinstance(item, TextChunk):
                yield event({**frame, "choices": [_choice(item, ask)]})
            elif isinstance(item, Note):
                yield event({**frame, "choices": [], "notes": [item.text]})
            elif isinstance(item, Usage) and usage:
                yield event({**frame, "choices": [], "usage": _usage(*item)})
            else:
                yield None
    except Exception as error:  # the status has been sent
        yield event(as_api_error(error).body)
    yield event("[DONE]")


def _choice(piece: TextChunk, ask: Ask) -> dict[str, Any]:
    return {
        "text": piece.text,
        "index": piece.index,
        "logprobs": None if ask.logprobs is None else _logprobs(piece.tokens),
        "finish_reason": piece.reason,
    }


def _logprobs(tokens: list[Token]) -> dict[str, Any]:
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [token.top for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def chat(request: Request, services: Services) -> Response:
    """Refuses: no member was trained on conversations, and a template that it never met would only look like one."""
    body = await read_json(request, services.limits)
    services.runs.model(string(body, "model"))
    raise ApiError(
        400, f"{body['model']!r} is a base model without a chat template: use /v1/completions.", param="messages", code="no_chat_template"
    )


async def models(request: Request, services: Services) -> Response:
    """The models that completions can be asked of, in OpenAI's form."""
    listed = [_model(entry.name, entry.written) for entry in services.runs.entries.values() if entry.saved and entry.error is None]
    return JSONResponse({"object": "list", "data": listed})


async def model(request: Request, services: Services) -> Response:
    """One model."""
    entry, _ = services.runs.model(request.path_params["model"])
    return JSONResponse(_model(request.path_params["model"], entry.written))


def _model(name: str, created: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": "formers"}


async def tokenize(request: Request, services: Services) -> Response:
    """The token ids of a text."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "prompt", "content", "add_special_tokens"))
    name = services.default_model(body)
    text = string(body, "content" if "content" in body else "prompt")
    tokenizer = services.models.tokenizer(name)
    named = {f"<{special}>": [tokenizer.special(special)] for special in tokenizer.specials}
    ids = named.get(text) or tokenizer.encode(text)  # a special token by its name alone, as `tokenizer_info` gives it
    return JSONResponse(
        {"tokens": ids, "count": len(ids), "max_model_len": services.length(name), "token_strs": [name_of(tokenizer, i) for i in ids]}
    )


async def detokenize(request: Request, services: Services) -> Response:
    """The text of token ids."""
    body = await read_json(request, services.limits)
    check_names(body, ("model", "tokens"))
    tokenizer, ids = services.models.tokenizer(services.default_model(body)), body.get("tokens")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < tokenizer.vocab for i in ids):
        raise ApiError(400, f"tokens is no list of ids: give integers from 0 to {tokenizer.vocab - 1}.", param="tokens")
    return JSONResponse({"prompt": tokenizer.decode(ids)})


async def tokenizer_info(request: Request, services: Services) -> Response:
    """What kind of tokenizer a model has, and its special tokens.

    A tokenizer without an end token gives what a text begins with in its place: clients put it before a text that they score whole.
    """
    name = services.default_model(dict(request.query_params))
    tokenizer = services.models.tokenizer(name)
    specials = {special: tokenizer.special(special) for special in tokenizer.specials}
    first = tokenizer.decode(start_of(tokenizer)) if "begin" not in specials else "<begin>"
    facts = {"model": name, "tokenizer_class": type(tokenizer).__name__, "vocab_size": tokenizer.vocab, "specials": specials}
    ends = {"bos_token": first, "eos_token": "<end>" if "end" in specials else first, "pad_token": None}
    return JSONResponse({**facts, **ends, "model_max_length": services.length(name), "chat_template": None})


async def health(request: Request, services: Services) -> Response:
    """Whether the server answers, and how busy it is."""
    if services.closing.is_set():
        raise ApiError(503, "the server is closing.", "server_error")
    return JSONResponse({"status": "ok", **services.worker.busy, "indexed": services.runs.progress})
