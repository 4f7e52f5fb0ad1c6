"""The server as a process of its own: clients that leave, signals, and ports that are taken."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from serving import events, is_error, make_run, wait_until

pytestmark = pytest.mark.slow


class Server(NamedTuple):
    process: subprocess.Popen[str]
    address: str

    def busy(self) -> int:
        told = httpx.get(f"{self.address}/health").json()
        return int(told["active"]) + int(told["waiting"])


def start(folder: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "formers", "serve", str(folder), *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    )


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    process = start(folder, "--port", "0", "--queue", "2")
    assert process.stdout is not None
    address = process.stdout.readline().split(" at ")[1].strip().rstrip("/")
    try:
        wait_until(lambda: answers(address))
        yield Server(process, address)
    finally:
        process.kill()
        process.communicate()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/runs").json()["count"] > 0
    except httpx.HTTPError:
        return False


LONG = {"model": "decoder", "prompt": "a", "max_tokens": 16_000}


def test_a_client_that_leaves_cancels_its_generation(server: Server) -> None:
    with httpx.stream("POST", f"{server.address}/v1/completions", json={**LONG, "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        assert server.busy() == 1
    wait_until(lambda: server.busy() == 0, 10)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.address}/v1/completions", json=LONG, timeout=1.0)
    wait_until(lambda: server.busy() == 0, 10)


def test_a_full_queue_is_refused_and_others_go_on(server: Server) -> None:
    opened = [httpx.Client() for _ in range(6)]  # four are worked on in turn, two wait
    streams = [client.stream("POST", f"{server.address}/v1/completions", json={**LONG, "stream": True}) for client in opened]
    try:
        for stream in streams:
            stream.__enter__()
        wait_until(lambda: server.busy() == 6)
        answer = httpx.post(f"{server.address}/v1/completions", json={"model": "decoder", "prompt": "a"})
        is_error(answer, 429, "queue")
        assert int(answer.headers["retry-after"]) >= 1
    finally:
        for client in opened:
            client.close()
    wait_until(lambda: server.busy() == 0, 20)
    assert httpx.post(f"{server.address}/v1/completions", json={"model": "decoder", "prompt": "a"}, timeout=30).status_code == 200


def test_sigterm_drains(server: Server) -> None:
    with httpx.stream("POST", f"{server.address}/v1/completions", json={**LONG, "max_tokens": 300, "stream": True}, timeout=60) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        with httpx.stream("GET", f"{server.address}/api/live", timeout=60) as live:  # the stream of a page does not hold it up
            told = live.iter_lines()
            next(told)
            server.process.send_signal(signal.SIGTERM)
            text = "\n".join([first, *lines])
    assert text.rstrip().endswith("data: [DONE]")
    assert events(text)[-1]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(20) in (0, -signal.SIGTERM)


def test_changes_are_told_within_a_second(tmp_path: Path) -> None:
    make_run(tmp_path / "live")
    process = start(tmp_path, "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().split(" at ")[1].strip().rstrip("/")
    try:
        wait_until(lambda: answers(address))
        lags = []
        with httpx.stream("GET", f"{address}/api/live", timeout=30) as answer:
            lines = answer.iter_lines()
            for step in range(100, 103):
                time.sleep(1.0)
                began = time.monotonic()
                make_run(tmp_path / "live", steps=1, start=step)
                for line in lines:
                    if line.startswith("data: ") and f'"step":{step},' in line:
                        lags.append(time.monotonic() - began)
                        break
        assert sorted(lags)[1] < 1.0
    finally:
        process.kill()
        process.communicate()


def test_a_port_that_is_taken_ends_in_a_sentence(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(folder, "--port", str(taken.getsockname()[1]))
        out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert err.startswith("formers: cannot listen on 127.0.0.1:")
    assert err.count("\n") == 1


def test_another_address_asks_for_the_token_it_prints(folder: Path) -> None:
    process = start(folder, "--port", "0", "--host", "0.0.0.0")
    assert process.stdout is not None
    try:
        address, token = process.stdout.readline().split(" at ")[1].strip().split("#token=")
        address = address.rstrip("/").replace("0.0.0.0", "127.0.0.1")
        assert len(token) == 32
        wait_until(lambda: reaches(address))
        is_error(httpx.get(f"{address}/v1/models"), 401)
        assert httpx.get(f"{address}/v1/models", headers={"authorization": f"Bearer {token}"}).status_code == 200
        is_error(httpx.get(f"{address}/v1/models", headers={"host": "evil.example"}), 421)
    finally:
        process.kill()
        process.communicate()


def reaches(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_ten_thousand_runs_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "0", steps=3)
    said, lines = ((tmp_path / "0" / name).read_text() for name in ("run.json", "metrics.jsonl"))
    for number in range(1, 10_000):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "run.json").write_text(said)
        (tmp_path / str(number) / "metrics.jsonl").write_text(lines)
    process = start(tmp_path, "--port", "0")
    assert process.stdout is not None
    address = process.stdout.readline().split(" at ")[1].strip().rstrip("/")
    try:
        wait_until(lambda: answers(address))
        wait_until(lambda: httpx.get(f"{address}/health").json()["indexed"] == {"done": 10_000, "total": 10_000}, 180)
        listed = httpx.get(f"{address}/api/runs", timeout=30).json()
        assert listed["count"] == 10_000
        assert len(listed["runs"]) == 500
        assert json.loads(said)["member"] == listed["runs"][0]["member"]
        assert httpx.get(f"{address}/api/runs", params={"query": "9999"}, timeout=30).json()["count"] == 1
    finally:
        process.kill()
        process.communicate()
