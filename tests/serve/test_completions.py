"""Completions over HTTP are what the library writes and scores in this process, in OpenAI's form."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import formers
from formers.data import Bytes, Language
from formers.evaluation import evaluate
from helpers import sweep
from serving import events, is_error

PROMPT = "To be, or not"


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json={"model": "decoder", **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def logprobs_of(model: formers.Model, ids: list[int]) -> list[float]:
    """log P of every token but the first, in one pass."""
    tokens = torch.tensor([ids])
    if len(ids) == 1:
        return []
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    assert logits is not None
    found = logits[0].double().log_softmax(dim=-1)
    return found.gather(1, tokens[0, 1:, None])[:, 0].tolist()


@sweep("prompt", [PROMPT, [PROMPT], list(PROMPT.encode()), [list(PROMPT.encode())]])
def test_every_kind_of_prompt_writes_what_generate_does(client: TestClient, decoder: formers.Model, prompt: Any) -> None:
    found = ask(client, prompt=prompt, max_tokens=9, seed=5, temperature=0.9, top_k=40, top_p=0.95)
    wanted = formers.generate(decoder, PROMPT, max_new_tokens=9, seed=5, temperature=0.9, top_k=40, top_p=0.95)
    assert found["choices"][0]["text"] == wanted[len(PROMPT) :]
    assert found["object"] == "text_completion"
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 9, "total_tokens": len(PROMPT) + 9}


def test_samples_of_several_prompts_come_in_order(client: TestClient, decoder: formers.Model) -> None:
    found = ask(client, prompt=["one", "twenty"], n=3, max_tokens=5, seed=1)
    wanted = formers.generate(decoder, ["one", "twenty"], max_new_tokens=5, seed=1, samples=3)
    assert [choice["index"] for choice in found["choices"]] == list(range(6))
    assert [c["text"] for c in found["choices"]] == [t[len(p) :] for p, ts in zip(["one", "twenty"], wanted, strict=True) for t in ts]


@sweep("logprobs", [None, 0, 3])
def test_a_stream_adds_up_to_the_whole(client: TestClient, logprobs: int | None) -> None:
    body = {"prompt": "é", "max_tokens": 20, "n": 2, "seed": 2, "echo": True, "logprobs": logprobs}
    whole = ask(client, **body)
    answer = client.post("/v1/completions", json={"model": "decoder", **body, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.rstrip().endswith("data: [DONE]")
    chunks = events(answer.text)
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert len(mine) > 5
        assert "".join(c["text"] for c in mine) == choice["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]
        if logprobs is not None:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [v for c in mine for v in c["logprobs"][name]] == choice["logprobs"][name]
    assert chunks[-1]["usage"] == whole["usage"]


def test_an_echo_is_scored_as_in_this_process(client: TestClient, decoder: formers.Model) -> None:
    """What lm_eval posts: lists of token ids with echo, one log-probability and one token; different lengths side by side."""
    rows = [list(b"Speak, I charge thee"), list(b"speak"), list(b"a")]
    found = ask(client, prompt=rows, echo=True, logprobs=1, max_tokens=1, temperature=0)
    for row, choice in zip(rows, found["choices"], strict=True):
        told = choice["logprobs"]
        assert told["token_logprobs"][0] is None
        assert told["top_logprobs"][0] is None
        assert len(told["token_logprobs"]) == len(row) + 1
        assert told["token_logprobs"][1:-1] == pytest.approx(logprobs_of(decoder, row), abs=1e-6)
        for own, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
            assert own <= max(top.values()) <= 0
        assert told["token_logprobs"][-1] == max(told["top_logprobs"][-1].values())  # the likeliest was taken, exactly
        assert told["tokens"][: len(row)] == [chr(i) for i in row]
        assert told["text_offset"] == list(range(len(row) + 1))


def test_nothing_is_written_for_max_tokens_0(client: TestClient, decoder: formers.Model) -> None:
    found = ask(client, prompt=PROMPT, echo=True, logprobs=0, max_tokens=0)["choices"][0]
    assert found["text"] == PROMPT
    assert found["logprobs"]["token_logprobs"][1:] == pytest.approx(logprobs_of(decoder, list(PROMPT.encode())), abs=1e-6)
    assert ask(client, prompt=PROMPT, max_tokens=0)["choices"][0]["text"] == ""


def test_log_probabilities_of_what_is_written_are_the_models(client: TestClient, decoder: formers.Model) -> None:
    told = ask(client, prompt=PROMPT, max_tokens=8, seed=3, temperature=1.7, top_k=5, logprobs=2, echo=True)["choices"][0]["logprobs"]
    ids = list(PROMPT.encode())
    for name in told["tokens"][len(ids) :]:
        ids.append(int(name[-2:], 16) if name.startswith("bytes:") else ord(name))
    assert told["token_logprobs"][1:] == pytest.approx(logprobs_of(decoder, ids), abs=1e-5)  # neither temperature nor top_k changes them


def test_the_perplexity_over_http_is_that_of_evaluation(client: TestClient, decoder: formers.Model) -> None:
    text = bytes(torch.randint(97, 123, (32 * 6 + 1,), generator=torch.Generator().manual_seed(1)).tolist())
    data = Language({"valid": torch.tensor(list(text))}, 32, Bytes())
    loss = float(evaluate(decoder, data, None)["loss"])
    rows = [list(text[i : i + 33]) for i in range(0, 32 * 6, 32)]
    for prompt in (rows, list(text)):  # windows one by one, and a prompt beyond the trained length, which is read in such windows
        found = ask(client, prompt=prompt, echo=True, logprobs=1, max_tokens=0)
        scores = [value for choice in found["choices"] for value in choice["logprobs"]["token_logprobs"][1:]]
        assert len(scores) == 32 * 6
        assert math.exp(-sum(scores) / len(scores)) == pytest.approx(math.exp(loss), rel=1e-6)


def test_a_member_with_a_memory_reads_long_prompts_in_segments(client: TestClient, folder: Path) -> None:
    model, ids = formers.load(folder / "nested" / "xl"), list(range(97, 97 + 26)) * 4
    found = ask(client, model="nested/xl", prompt=ids, echo=True, logprobs=1, max_tokens=0)
    state, wanted = model.initial_state(1), []
    for start in range(0, len(ids) - 1, 32):
        piece = torch.tensor([ids[start : min(start + 32, len(ids) - 1)]])
        with torch.no_grad():
            out = model(piece, state=state)
        state = out.state
        wanted += (
            out.logits[0]
            .double()
            .log_softmax(-1)
            .gather(1, torch.tensor(ids[start + 1 : start + 1 + piece.shape[1]])[:, None])[:, 0]
            .tolist()
        )
    assert found["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(wanted, abs=1e-6)


def test_a_stop_string_ends_a_text_before_it(client: TestClient) -> None:
    text = ask(client, prompt=PROMPT, max_tokens=30, seed=4)["choices"][0]["text"]
    stop = text[10:12]
    found = ask(client, prompt=PROMPT, max_tokens=30, seed=4, stop=stop, logprobs=0)["choices"][0]
    assert found["text"] == text[: text.find(stop)]
    assert found["finish_reason"] == "stop"
    assert max(found["logprobs"]["text_offset"]) < len(found["text"])
    streamed = client.post(
        "/v1/completions", json={"model": "decoder", "prompt": PROMPT, "max_tokens": 30, "seed": 4, "stop": [stop], "stream": True}
    )
    assert "".join(c["text"] for chunk in events(streamed.text) for c in chunk["choices"]) == found["text"]


def test_beams_search_as_generate_does(client: TestClient, decoder: formers.Model) -> None:
    found = ask(client, prompt=PROMPT, max_tokens=6, beams=3, n=2)
    assert [PROMPT + c["text"] for c in found["choices"]] == formers.generate(decoder, PROMPT, max_new_tokens=6, beams=3, samples=2)
    is_error(client.post("/v1/completions", json={"model": "decoder", "prompt": "a", "beams": 3, "stream": True}), 400, "beams")


def test_models_are_listed_and_found(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["classifier", "decoder", "nested/xl"]  # what has saved no model is none
    assert client.get("/v1/models/nested/xl").json()["object"] == "model"
    is_error(client.get("/v1/models/nothing"), 404, "nothing")
    assert ask(client, model="decoder@best", prompt="a", max_tokens=1, temperature=0)["choices"]


def test_tokens_go_there_and_back(client: TestClient) -> None:
    told = client.post("/tokenize", json={"model": "decoder", "prompt": "hé"}).json()
    assert told["tokens"] == list("hé".encode())
    assert told["count"] == 3
    assert told["max_model_len"] == 32
    assert client.post("/detokenize", json={"model": "decoder", "tokens": told["tokens"]}).json() == {"prompt": "hé"}
    info = client.get("/tokenizer_info", params={"model": "decoder"}).json()
    assert info["vocab_size"] == 256
    assert info["eos_token"] == "\n"  # what lm_eval puts before a text that it scores whole
    is_error(client.get("/tokenizer_info"), 400, "name one")


def test_a_base_model_does_not_chat(client: TestClient) -> None:
    body = {"model": "decoder", "messages": [{"role": "user", "content": "hello"}]}
    is_error(client.post("/v1/chat/completions", json=body), 400, "/v1/completions")


def test_the_server_says_how_it_is(client: TestClient) -> None:
    told = client.get("/health").json()
    assert told["status"] == "ok"
    assert told["indexed"] == {"done": 4, "total": 4}


def test_a_classifier_tells_labels_and_writes_nothing(client: TestClient, folder: Path) -> None:
    told = client.post("/api/classify", json={"model": "classifier", "texts": ["good", "a longer text"]}).json()["labels"]
    model = formers.load(folder / "classifier")
    with torch.no_grad():
        chances = model(torch.tensor([list(b"good")])).logits.double().softmax(-1)[0].tolist()
    assert told[0] == pytest.approx(dict(zip(("bad", "good"), chances, strict=True)), abs=1e-6)
    assert list(told[0].values()) == sorted(told[0].values(), reverse=True)
    is_error(client.post("/v1/completions", json={"model": "classifier", "prompt": "a"}), 400, "Classify")
    is_error(client.post("/api/classify", json={"model": "decoder", "texts": ["a"]}), 400, "gives no labels")
