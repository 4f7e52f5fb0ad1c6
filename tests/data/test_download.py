"""Named sets: from FORMERS_DATA, from the cache, from the network; verified always, downloaded once, never half."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from formers.data import Bytes, open_pairs, open_text, token_stream
from formers.data import cache as cache_module
from formers.data.catalogue import SETS, Named, Package
from formers.data.download import fetch
from formers.data.passages import open_passages
from helpers import refused

CONTENT = b"".join(b"line %d of the set\n" % i for i in range(500))
PIN = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


class Server(BaseHTTPRequestHandler):
    """Answers with what it was given; a path that ends in `broken` is cut off half-way."""

    def __init__(self, answers, asked, *rest):
        self.answers, self.asked = answers, asked
        super().__init__(*rest)

    def do_GET(self):
        name = self.path.lstrip("/")
        self.asked.append(name)
        content = self.answers.get(name)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write((content or b"")[: len(content or b"") // 2] if name.endswith("broken") else content or b"")

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    """The answers of a server, what it was asked for, and its address."""
    answers, asked = {}, []
    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, answers, asked))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield answers, asked, f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.mark.parametrize("form", ["zip", "gz", "plain"])
def test_a_package_is_downloaded_verified_and_unpacked_once(server, cache, form):
    answers, asked, address = server
    answers["it"] = {"zip": zipped(data__it_txt=CONTENT, other=b"x"), "gz": gzip.compress(CONTENT), "plain": CONTENT}[form]
    package = Package({"data/it_txt": PIN}, (f"{address}/it",))
    found = fetch("mine", package)
    assert found["it_txt"].read_bytes() == CONTENT
    assert fetch("mine", package) == found
    assert asked == ["it"]
    assert list((cache / "downloads").iterdir()) == []
    assert [p.name for p in (cache / "sets" / "mine").iterdir()] == ["it_txt"]


def test_a_second_address_is_tried(server):
    answers, asked, address = server
    answers["two"] = CONTENT
    assert fetch("mine", Package({"it": PIN}, (f"{address}/one", f"{address}/two")))["it"].read_bytes() == CONTENT
    assert asked == ["one", "two"]


@pytest.mark.parametrize("where", ["file", "archive"])
def test_a_wrong_sum_is_reported_and_nothing_is_kept(server, cache, where):
    answers, _, address = server
    answers["it"] = CONTENT[:-1] + b"!" if where == "file" else CONTENT
    package = Package({"it": PIN}, (f"{address}/it",), sum=PIN if where == "file" else "sha256:" + "0" * 64)
    with refused("sha256", "published", "not saved"):
        fetch("mine", package)
    with refused("sha256"):
        fetch("mine", package._replace(sum=None if where == "file" else package.sum))
    assert [p for p in cache.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("name", ["broken", "missing"])
def test_a_connection_that_breaks_is_reported_and_nothing_is_kept(server, cache, name):
    answers, _, address = server
    answers["broken"] = CONTENT
    with refused("mine cannot be downloaded", name, "FORMERS_DATA", "mine/it.gz"):
        fetch("mine", Package({"it": PIN}, (f"{address}/{name}",), ("it.gz",)))
    assert [p for p in cache.rglob("*") if p.is_file()] == []


def test_without_a_network_the_fix_is_reported():
    with refused("mine cannot be downloaded", "127.0.0.1:9", "FORMERS_DATA"):
        fetch("mine", Package({"it": PIN}, ("http://127.0.0.1:9/it",)))


def test_what_is_no_archive_is_reported(server):
    answers, _, address = server
    answers["it"] = zipped(other=CONTENT)
    with refused("has no it"):
        fetch("mine", Package({"it": PIN}, (f"{address}/it",)))
    answers["it"] = zipped(it=CONTENT)[:200]
    with refused("cannot be unpacked"):
        fetch("mine", Package({"it": PIN}, (f"{address}/it",)))
    answers["it"] = gzip.compress(CONTENT)[:-20]
    with refused("cannot be unpacked"):
        fetch("mine", Package({"it": PIN}, (f"{address}/it",)))


def test_a_member_cannot_lead_out_of_the_cache(server, cache):
    answers, _, address = server
    answers["it"] = zipped(**{"../../it": CONTENT})
    assert fetch("mine", Package({"../../it": PIN}, (f"{address}/it",)))["it"] == cache / "sets" / "mine" / "it"


@pytest.mark.parametrize("form", ["plain", "gz", "zip"])
def test_the_given_folder_is_looked_in_first_and_never_written(server, tmp_path, monkeypatch, form):
    _, asked, address = server
    folder = tmp_path / "data" / "mine"
    folder.mkdir(parents=True)
    name, content = {"plain": ("it", CONTENT), "gz": ("it.gz", gzip.compress(CONTENT)), "zip": ("it.zip", zipped(it=CONTENT))}[form]
    (folder / name).write_bytes(content)
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "data"))
    package = Package({"it": PIN}, (f"{address}/it",), ("it.zip", "it.gz"))
    found = fetch("mine", package)["it"]
    assert found.read_bytes() == CONTENT
    assert (found == folder / "it") == (form == "plain")
    assert [p.name for p in folder.iterdir()] == [name]
    assert asked == []
    os.utime(folder / name, ns=(1, 1))
    (folder / name).write_bytes(CONTENT[:-1] + b"!" if form == "plain" else content[:-30])
    for kept in (tmp_path / "cache").rglob("it"):
        kept.unlink()
    with refused("mine", "it"):
        fetch("mine", package)
    assert asked == []


def test_a_given_folder_that_is_none_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("FORMERS_DATA", str(tmp_path / "gone"))
    with refused("FORMERS_DATA", "not a folder"):
        fetch("mine", Package({"it": PIN}, ()))


def test_a_file_in_the_cache_that_was_damaged_is_fetched_again(server, cache):
    answers, asked, address = server
    answers["it"] = CONTENT
    package = Package({"it": PIN}, (f"{address}/it",))
    fetch("mine", package)["it"].write_bytes(b"damaged")
    assert fetch("mine", package)["it"].read_bytes() == CONTENT
    assert asked == ["it", "it"]


def test_a_big_set_is_verified_once(server, monkeypatch):
    answers, _, address = server
    answers["it"] = CONTENT
    monkeypatch.setattr(cache_module, "BIG", 1)
    package = Package({"it": "sha1:" + hashlib.sha1(CONTENT).hexdigest()}, (f"{address}/it",))
    found = fetch("mine", package)
    monkeypatch.setattr(cache_module.hashlib, "new", None)
    assert fetch("mine", package) == found


def test_a_named_set_has_its_parts(server, monkeypatch):
    answers, _, address = server
    answers["it"] = CONTENT
    cuts = {"train": ("it", 0, 1000), "valid": ("it", 1000, None)}
    monkeypatch.setitem(SETS, "mine", Named((Package({"it": PIN}, (f"{address}/it",)),), cuts))
    opened = open_text("mine")
    found = {part: token_stream(opened, part, Bytes()).numpy().tobytes() for part in opened.parts}
    assert found == {"train": CONTENT[:1000], "valid": CONTENT[1000:]}
    assert opened.source == "mine"
    assert "no test part" in opened.about
    with refused("mine has no test part", "--split valid"):
        opened.parts["test"]
    assert open_text("mine").fingerprint == opened.fingerprint


SIZES = {
    "tinyshakespeare": {"train": 1_003_854, "valid": 111_540},
    "ptb": {"train": 5_101_618, "valid": 399_782, "test": 449_945},
    "wikitext-2": {"train": 10_797_148, "valid": 1_121_681, "test": 1_256_449},
    "enwik8": {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000},
}


@pytest.mark.parametrize("name", SIZES)
def test_published_sets_are_what_they_should_be(published, name):
    opened = open_text(name)
    assert {part: len(token_stream(opened, part, Bytes())) for part in opened.parts} == SIZES[name]


def test_published_pairs_and_passages(published):
    pairs = open_pairs("multi30k:de-fr")
    assert {part: len(found) for part, found in pairs.parts.items()} == {"train": 29_000, "valid": 1_014, "test": 1_000}
    assert pairs.parts["train"][0][0].startswith("Zwei junge weiße Männer")
    assert open_pairs("multi30k").source == "multi30k:en-de"
    passages, about, *_ = open_passages("lambada")
    assert len(passages["test"]) == 5153
    assert "5,153" in about
    with refused("lambada has no valid part", "--split test"):
        passages["valid"]
