"""Who may ask, from where, and that no name leads out of the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import formers
from formers.serve.runs import Runs
from formers.serve.server import bound, token_for
from helpers import sweep
from serving import is_error, make_run, wait_until

BODY = {"model": "decoder", "prompt": "a", "max_tokens": 1}


@sweep("host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1", "169.254.169.254"])
def test_a_foreign_host_is_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/v1/models", "/api/runs", "/health"):
        is_error(client.get(path, headers={"host": host}), 421, "host")


@sweep("host", ["127.0.0.1:8321", "localhost:1", "LOCALHOST", "[::1]:8321"])
def test_this_machines_names_are_ours(client: TestClient, host: str) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == 200


@sweep(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_the_page_of_another_site_is_refused(client: TestClient, headers: dict[str, str]) -> None:
    is_error(client.post("/v1/completions", json=BODY, headers=headers), 403)
    is_error(client.get("/api/runs", headers=headers), 403)


def test_our_own_page_may_ask(client: TestClient) -> None:
    headers = {"origin": "http://127.0.0.1:8321", "sec-fetch-site": "same-origin"}
    assert client.post("/v1/completions", json=BODY, headers=headers).status_code == 200


@sweep("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_post_takes_json_alone(client: TestClient, kind: str) -> None:
    is_error(client.post("/v1/completions", content=b"{}", headers={"content-type": kind}), 415, "application/json")


@sweep("path", ["/", "/main.js", "/style.css", "/v1/models", "/nothing", "/api/run?run=no"])
def test_every_answer_has_the_headers_of_safety(client: TestClient, path: str) -> None:
    headers = client.get(path, headers={"origin": "http://127.0.0.1:8321"}).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control-")]
    assert client.options(path).status_code == 405 or path == "/nothing"


def test_with_a_token_data_need_it_and_the_page_does_not(folder: Path, clients: Any) -> None:
    client = clients(folder, token="0123456789abcdef0123456789abcdef")
    for path in ("/v1/models", "/api/runs", "/tokenizer_info?model=decoder", "/api/live"):
        is_error(client.get(path), 401, "token")
        is_error(client.get(path, headers={"authorization": "Bearer 0123456789abcdef"}), 401)
    assert client.get("/").status_code == client.get("/health").status_code == 200
    right = {"authorization": "Bearer 0123456789abcdef0123456789abcdef"}
    assert client.post("/v1/completions", json=BODY, headers=right).status_code == 200


def test_a_token_is_made_where_others_can_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORMERS_TOKEN", raising=False)
    assert token_for("127.0.0.1") is None
    first, second = token_for("0.0.0.0"), token_for("192.168.1.5")
    assert first is not None
    assert first != second
    assert len(bytes.fromhex(first)) * 8 >= 128
    monkeypatch.setenv("FORMERS_TOKEN", "short")
    with pytest.raises(formers.FormersError, match="characters"):
        token_for("0.0.0.0")


def test_a_port_that_is_taken_is_refused_in_a_sentence() -> None:
    first = bound("127.0.0.1", 0)
    try:
        with pytest.raises(formers.FormersError, match="another --port"):
            bound("127.0.0.1", first.getsockname()[1])
    finally:
        first.close()


@sweep(
    "name",
    [
        "../secret",
        "..",
        ".",
        "/etc",
        "decoder/../../secret",
        "decoder/",
        "decoder\0",
        "%2e%2e/secret",
        "~",
        "x" * 5000,
        "link",
        "inside/../decoder",
    ],
)
def test_names_are_looked_up_and_never_opened(client: TestClient, folder: Path, name: str) -> None:
    make_run(folder.parent / "secret")
    is_error(client.post("/v1/completions", json={**BODY, "model": name}), 404, "no run")
    is_error(client.get("/api/run", params={"run": name}), 404, "no run")
    is_error(client.post("/api/look", json={"model": name, "text": "a"}), 404)


def test_links_that_lead_out_are_not_followed(tmp_path: Path, clients: Any) -> None:
    root, outside = tmp_path / "runs", tmp_path / "outside"
    make_run(outside / "run")
    formers.create("decoder", vocab=256, dim=8, heads=1, layers=1, length=8).save_pretrained(outside / "model")
    root.mkdir()
    (root / "link").symlink_to(outside / "run")
    (root / "up").symlink_to(tmp_path)
    (root / "loop").symlink_to(root)
    make_run(root / "own")
    (root / "own" / "metrics.jsonl").unlink()
    (root / "own" / "metrics.jsonl").symlink_to(outside / "run" / "metrics.jsonl")
    formers.load(outside / "model").save_pretrained(root / "model")
    (root / "model" / "model.safetensors").unlink()
    (root / "model" / "model.safetensors").symlink_to(outside / "model" / "model.safetensors")
    make_run(root / "deep" / "first")
    (root / "second").symlink_to(root / "deep" / "first")  # leads somewhere inside: the same run, found once
    client = clients(root)
    listed = client.get("/api/runs").json()["runs"]
    names = {each["id"] for each in listed}
    assert {"own", "model"} < names
    assert not names & {"link", "up", "up/outside/run", "loop/own"}
    assert len(names) == 3
    assert next(each for each in listed if each["id"] == "own")["names"] == []  # the metrics of a file elsewhere are not read
    is_error(client.post("/v1/completions", json={**BODY, "model": "model"}), 403, "link")


def test_a_name_of_control_characters_stays_text(tmp_path: Path, clients: Any) -> None:
    names = ["a\x1b[31m\nred", "<script>alert(1)</script>", "run'\"&", "ünï", os.fsdecode(b"raw-\xff")]
    for name in names:
        make_run(tmp_path / name.replace("/", "_"))
    client = clients(tmp_path)
    answer = client.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    listed = [each["id"] for each in answer.json()["runs"]]
    assert len(set(listed)) == 5
    assert all(name.isprintable() for name in listed)
    for name in listed:
        assert client.get("/api/run", params={"run": name}).json()["id"] == name


def test_a_run_that_comes_and_goes_is_seen(tmp_path: Path, clients: Any) -> None:
    make_run(tmp_path / "first")
    client = clients(tmp_path)
    runs: Runs = client.services.runs
    make_run(tmp_path / "second")
    wait_until(lambda: "second" in runs.entries)
    for file in (tmp_path / "first").iterdir():
        file.unlink()
    (tmp_path / "first").rmdir()
    wait_until(lambda: "first" not in runs.entries)
    is_error(client.get("/api/run", params={"run": "first"}), 404)
    assert client.get("/api/curves", params={"run": ["first", "second"], "name": "loss"}).status_code == 200
