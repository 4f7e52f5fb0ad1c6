"""A folder of small runs and saved models, and a client of the server over it, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import formers
from formers.serve.app import make_app, make_services
from formers.serve.limits import LIMITS, Limits
from formers.serve.services import Services
from serving import make_run, wait_until

BASE = "http://127.0.0.1:8321"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab": 256, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "length": 32}
    formers.create("decoder", **sizes).save_pretrained(root / "decoder")
    formers.create("transformer-xl", **sizes, memory=16).save_pretrained(root / "nested" / "xl")
    encoder = formers.create("encoder", **sizes, classes=2)
    encoder.labels = ("bad", "good")
    encoder.save_pretrained(root / "classifier")
    make_run(root / "run", steps=20)
    return root


Client = Callable[..., TestClient]


@pytest.fixture(scope="module")
def clients() -> Iterator[Client]:
    """Makes clients of servers, which end with the module's tests."""
    opened: list[TestClient] = []

    def make(path: Path, limits: Limits = LIMITS, **guard: Any) -> TestClient:
        services = make_services(path, limits)
        client = TestClient(make_app(services, **guard), base_url=BASE, raise_server_exceptions=False)
        client.__enter__()
        opened.append(client)
        client.services = services  # type: ignore[attr-defined]
        wait_until(services.runs.ready.is_set)
        return client

    yield make
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture(scope="module")
def client(folder: Path, clients: Client) -> TestClient:
    return clients(folder)


@pytest.fixture(scope="module")
def services(client: TestClient) -> Services:
    return client.services  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def decoder(folder: Path) -> formers.Model:
    return formers.load(folder / "decoder")
