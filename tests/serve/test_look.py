"""Attention over HTTP is what `model.inspect` sees, to a byte; long texts are computed a layer at a time."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import formers
from formers.serve import look as looking
from formers.serve.look import part_of, quantised
from serving import is_error


def begin(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/api/look", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def part(client: TestClient, name: str, **where: int) -> tuple[dict[str, Any], Any]:
    answer = client.get(f"/api/look/{name}/map", params=where)
    assert answer.status_code == 200, answer.text
    (size,) = struct.unpack("<I", answer.content[:4])
    header = json.loads(answer.content[4 : 4 + size])
    return header, np.frombuffer(answer.content[4 + size :], np.uint8).reshape(header["height"], header["width"])


def weights_of(model: formers.Model, text: str) -> torch.Tensor:
    tokens = torch.tensor([list(text.encode())])
    return torch.stack([maps[0] for maps in model.inspect(tokens).attention])  # type: ignore[operator]


def test_a_map_is_what_the_model_attends_to(client: TestClient, decoder: formers.Model) -> None:
    text = "the quick brown fox"
    told = begin(client, model="decoder", text=text)
    view = told["views"][0]
    assert (view["layers"], view["heads"], len(view["queries"])) == (2, 2, len(text))
    weights = weights_of(decoder, text)
    for layer in range(2):
        for head in (0, 1, -1):
            _, found = part(client, told["look"], layer=layer, head=head)
            wanted = weights[layer, head] if head >= 0 else weights[layer].mean(dim=0)
            assert np.abs((found / 255.0) ** 2 - wanted.numpy()).max() < 0.009
            assert (found[np.triu_indices(len(text), 1)] == 0).all()
            for query in (0, 7):
                row = client.get(f"/api/look/{told['look']}/row", params={"layer": layer, "head": head, "at": query}).content
                assert np.frombuffer(row, np.uint8).tolist() == found[query].tolist()
            column = client.get(f"/api/look/{told['look']}/row", params={"layer": layer, "head": head, "at": 3, "side": "key"}).content
            assert np.frombuffer(column, np.uint8).tolist() == found[:, 3].tolist()
    _, some = part(client, told["look"], layer=1, head=0, query_from=5, query_to=9, key_from=2, key_to=4)
    _, whole = part(client, told["look"], layer=1, head=0)
    assert some.tolist() == whole[5:9, 2:4].tolist()


def test_a_long_text_is_computed_a_layer_at_a_time(client: TestClient, decoder: formers.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "all that glisters is not gold"
    monkeypatch.setattr(looking, "SMALL", 0)
    told = begin(client, model="decoder", text=text)
    kept = client.services.looks.get(told["look"])  # type: ignore[attr-defined]
    assert kept.views[0].maps == {}
    _, found = part(client, told["look"], layer=1, head=1)
    assert list(kept.views[0].maps) == [1]
    assert np.abs((found / 255.0) ** 2 - weights_of(decoder, text)[1, 1].numpy()).max() < 0.009


def test_a_picture_of_a_large_map_shows_the_strongest() -> None:
    weights = torch.zeros(1, 1100, 1100)
    weights[0, 700, 3] = 1.0
    weights[0, 1099, 1099] = 0.25
    look = looking.Look("m", [looking.Shown("self-attention", [""] * 1100, [""] * 1100, 1, 1, maps={0: quantised(weights)})])
    found, down, across = part_of(look, 0, 0, 0, slice(0, 1100), slice(0, 1100))
    assert (down, across) == (3, 3)
    assert found.shape == (367, 367)
    assert {(int(r), int(c)): int(found[r, c]) for r, c in np.argwhere(found)} == {(233, 1): 255, (366, 366): 128}


def test_what_cannot_be_looked_at_is_refused(client: TestClient) -> None:
    is_error(client.post("/api/look", json={"model": "decoder", "text": ""}), 400, "empty")
    is_error(client.post("/api/look", json={"model": "decoder", "text": "x" * 4097}), 400, "4,096")
    is_error(client.post("/api/look", json={"model": "run", "text": "x"}), 400)
    told = begin(client, model="decoder", text="abc")
    for where in ({"layer": 2}, {"head": 9}, {"view": 1}, {"layer": "x"}, {"query_from": 2, "query_to": 1}, {"key_to": 99}):
        is_error(client.get(f"/api/look/{told['look']}/map", params=where), 400)


def test_spans_ponder_times_and_buckets_come_along(tmp_path: Path, clients: Any) -> None:
    sizes: dict[str, Any] = {"vocab": 256, "dim": 16, "heads": 2, "length": 32}
    formers.create("adaptive-span", **sizes, layers=1, span=16).save_pretrained(tmp_path / "span")
    formers.create("universal-transformer", **sizes, act="graves").save_pretrained(tmp_path / "ponder")
    formers.create("reformer", **sizes, layers=1).save_pretrained(tmp_path / "buckets")
    client = clients(tmp_path)
    assert np.shape(begin(client, model="span", text="hello")["spans"]["spans"]) == (1, 2)
    assert len(begin(client, model="ponder", text="hello")["ponder"]["stacks"][0]["steps"]) == 5
    assert len(begin(client, model="buckets", text="hello")["buckets"]["buckets"]) == 5
    client.services.looks.trim(client.services.looks.get(begin(client, model="span", text="hello")["look"]))


def test_every_pattern_is_drawn_as_its_mask(client: TestClient) -> None:
    listed = client.get("/api/patterns").json()["patterns"]
    assert {"causal", "local", "strided", "fixed", "big-bird", "local-grid", "blocks"} <= {each["name"] for each in listed}
    for each in listed:
        options = {field["name"]: field["default"] for field in each["fields"]}
        for more in ({"length": 16, "heads": 2}, {"height": 4, "width": 4}):
            answer = client.post("/api/pattern", json={"name": each["name"], "options": options, **more})
            assert answer.status_code == 200, answer.text
            told = answer.json()
            found = [[int(cell) for cell in row] for row in told["mask"][0]]
            kind = told["pattern"].pop("kind")
            pattern = getattr(formers.patterns, kind)(**told["pattern"])
            assert found == pattern.mask(told["length"], 1, 0)[0].int().tolist()
            assert told["density"] == pytest.approx(np.mean(told["mask"] and [[c == "1" for c in r] for m in told["mask"] for r in m]))
    is_error(client.post("/api/pattern", json={"name": "locall"}), 400, "local")
    is_error(client.post("/api/pattern", json={"name": "local", "options": {"window": 0}}), 400, "window")
    is_error(client.post("/api/pattern", json={"name": "causal", "length": 100_000}), 400, "length")
