"""Bad requests, damaged runs and empty folders: an answer in the API's error form, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import formers
from formers.serve.app import make_services
from helpers import sweep
from serving import is_error, make_run, wait_until

JSON = {"content-type": "application/json"}


@sweep(
    "content", [b"", b"{", b"[1, 2]", b'"text"', b"{'a': 1}", b"\xff\xfe", b'{"a": NaN}', b"null", b'{"max_tokens": 1' + b"0" * 5000 + b"}"]
)
def test_what_is_no_json_object_is_refused(client: TestClient, content: bytes) -> None:
    for path in ("/v1/completions", "/tokenize", "/api/look", "/api/pattern", "/api/images", "/api/episode", "/v1/chat/completions"):
        is_error(client.post(path, content=content, headers=JSON), 400)


@sweep("content", [b"[" * 100_000, b'{"prompt": ' + b"[" * 17 + b"]" * 17 + b"}", b'{"a":' * 50_000])
def test_deep_nesting_is_refused(client: TestClient, content: bytes) -> None:
    is_error(client.post("/v1/completions", content=content, headers=JSON), 400, "nested")


def test_brackets_within_a_text_are_no_nesting(client: TestClient) -> None:
    body = {"model": "decoder", "prompt": '["{' * 10 + '\\"', "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200


def test_fifty_megabytes_are_refused(client: TestClient) -> None:
    body = json.dumps({"model": "decoder", "prompt": "x" * (50 << 20)}).encode()
    is_error(client.post("/v1/completions", content=body, headers=JSON), 413, "bytes")

    def parts() -> Any:  # and without a length told beforehand
        for _ in range(20):
            yield b"x" * (1 << 20)

    is_error(client.post("/v1/completions", content=parts(), headers=JSON), 413)


@sweep(
    ("body", "word"),
    [
        ({"max_tokens": 1_000_000}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**400}, "max_tokens"),
        ({"n": 0}, "n="),
        ({"n": 10_000}, "n="),
        ({"n": 200, "max_tokens": 16_000}, "tokens"),
        ({"prompt": ["a"] * 300}, "300 prompts"),
        ({"prompt": [1] * 300_000}, "300,000 tokens"),
        ({"prompt": [256]}, "256"),
        ({"prompt": [10**30]}, "token id"),
        ({"prompt": [-1]}, "-1"),
        ({"prompt": [1.0]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1e400}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"logprobs": 21}, "logprobs"),
        ({"seed": 2**70}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 50}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"echo": "yes"}, "echo"),
        ({"stream": 1}, "stream"),
        ({"best_of": 5}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"temprature": 1}, "temperature"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, body: dict[str, Any], word: str) -> None:
    text = json.dumps({"model": "decoder", "prompt": "a", "max_tokens": 1, **body}).replace("Infinity", "1e999")
    is_error(client.post("/v1/completions", content=text, headers=JSON), 400, word)


def test_no_model_of_that_name(client: TestClient) -> None:
    assert is_error(client.post("/v1/completions", json={"model": "gpt", "prompt": "a"}), 404)["code"] == "model_not_found"
    assert is_error(client.post("/v1/completions", json={"model": "gpt", "prompt": "a", "stream": True}), 404)["param"] == "model"


def test_control_characters_and_scripts_are_a_prompt_like_any_other(client: TestClient) -> None:
    prompt = "\x00\x1b[31m<script>alert(1)</script>\u202e\ud800\r\n"
    content = json.dumps({"model": "decoder", "prompt": prompt, "max_tokens": 2, "echo": True})
    answer = client.post("/v1/completions", content=content, headers=JSON)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0]["text"].startswith("\x00\x1b[31m<script>alert(1)</script>\u202e")
    assert "<script>" in answer.json()["choices"][0]["text"]
    assert b"\x1b" not in answer.content


def test_a_run_without_a_checkpoint_says_so(client: TestClient) -> None:
    is_error(client.post("/v1/completions", json={"model": "run", "prompt": "a"}), 400)


def test_there_is_nothing_at_other_addresses(client: TestClient) -> None:
    is_error(client.get("/v2/models"), 404, "/v2/models")
    is_error(client.get("/page/../app.py"), 404)
    is_error(client.get("/v1/completions"), 405, "GET")
    is_error(client.get("/api/curves", params={"axis": "hours"}), 400, "hours")
    is_error(client.get("/api/curves", params={"run": ["a"] * 500}), 400, "500")
    is_error(client.get("/api/look/none/map"), 404, "look at it again")


def test_a_folder_without_runs(tmp_path: Path, clients: Any) -> None:
    client = clients(tmp_path)
    assert client.get("/v1/models").json() == {"object": "list", "data": []}
    assert client.get("/api/runs").json()["count"] == 0
    assert client.get("/").status_code == 200
    is_error(client.post("/v1/completions", json={"model": "a", "prompt": "a"}), 404)
    with pytest.raises(formers.FormersError, match="no folder"):
        make_services(tmp_path / "nothing")


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path, clients: Any, folder: Path) -> None:
    make_run(tmp_path / "good")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "run.json").write_text('{"format": "formers/run/1", "mem')
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "run.json").write_text("[1, 2]")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "config.json").write_text("[" * 100_000)
    make_run(tmp_path / "lines", steps=3)
    with (tmp_path / "lines" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "lo\nnull\n[1]\n\xff\xfe\n{"step": 5, "loss": 0.5}\n{"step": 6')
    shutil.copytree(folder / "decoder", tmp_path / "bits")
    weights = tmp_path / "bits" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 0xFF
    weights.write_bytes(bytes(data))
    client = clients(tmp_path)
    listed = {each["id"]: each for each in client.get("/api/runs").json()["runs"]}
    assert {*listed} == {"good", "cut", "list", "deep", "lines", "bits"}
    for name in ("cut", "list", "deep"):
        assert listed[name]["status"] == "damaged"
        assert listed[name]["error"].endswith(".")
    assert listed["good"]["error"] is None
    assert listed["good"]["step"] == 10
    assert listed["lines"]["skipped_lines"] == 4
    assert listed["lines"]["step"] == 5
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["bits"]
    is_error(client.post("/v1/completions", json={"model": "bits", "prompt": "a"}), 400, "damaged")
    (tmp_path / "cut" / "run.json").write_text((tmp_path / "good" / "run.json").read_text())
    wait_until(lambda: client.get("/api/run", params={"run": "cut"}).json()["error"] is None)


def test_a_run_that_is_deleted_while_it_is_asked(tmp_path: Path, clients: Any, folder: Path) -> None:
    shutil.copytree(folder / "decoder", tmp_path / "model")
    client = clients(tmp_path)
    body = {"model": "model", "prompt": "a", "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200
    shutil.rmtree(tmp_path / "model")
    is_error(client.post("/v1/completions", json=body), 404)
