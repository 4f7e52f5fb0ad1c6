"""Saving and loading: exact and atomic, and one-sentence errors for missing or damaged files."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import formers
from contracts.specimens import FIRST, SPECIMENS, Specimen, Subject, subject
from formers.data.tokenize import Bytes
from helpers import refused, sweep

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "MANIFEST.json"
TOKENIZER = Bytes(specials=("begin", "end"))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Subject, Path]:
    """The decoder's first specimen with a tokenizer, in a folder."""
    read = subject(next(s for s in FIRST if s.member == "decoder").spec, dtype=torch.float32)
    read.model.tokenizer = TOKENIZER
    return read, whole(read, tmp_path / "run")


def whole(read: Subject, path: Path) -> Path:
    """The folder with the model in it, whatever was done to its files before."""
    shutil.rmtree(path, ignore_errors=True)  # files without a configuration of ours are not replaced
    read.model.save_pretrained(path)
    return path


@sweep("specimen", SPECIMENS)
@sweep("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_the_round_trip_is_exact(specimen: Specimen, dtype: torch.dtype, tmp_path: Path) -> None:
    read = subject(specimen.spec, dtype=dtype)
    model = formers.load(whole(read, tmp_path / str(dtype) / str(specimen)))
    assert model.spec == specimen.spec.deployed()
    assert not model.training
    weights = {name: weight for name, weight in read.model.state_dict().items() if not name.startswith("auxiliary.")}
    assert list(model.state_dict()) == list(weights)
    for name, weight in weights.items():
        assert model.state_dict()[name].dtype == dtype
        assert torch.equal(model.state_dict()[name], weight), name
    x = read.input(5)
    assert torch.equal(replace(read, model=model)(x).logits, read(x).logits)
    assert all(p.requires_grad for p in model.parameters())


@sweep("specimen", SPECIMENS)
def test_tied_weights_stay_tied(specimen: Specimen, tmp_path: Path) -> None:
    model, path = formers.create(specimen.member, **specimen.options), tmp_path / str(specimen)
    model.save_pretrained(path)
    again = formers.load(path)
    count = model.parameter_count(training=False)
    assert again.parameter_count() == count
    assert sum(t.numel() for t in load_file(path / WEIGHTS).values()) == count, "a shared weight is written twice"
    tied = getattr(specimen.spec.head, "tied", False)
    if specimen.spec.vocab is not None and tied:
        read = Subject(again, 2, torch.zeros(2, 3, dtype=torch.int64))
        x = read.input(4)
        before = read(x).logits.detach()
        table = again.embedding.tables[-1] if again.embedding.weight is None else again.embedding.weight
        with torch.no_grad():
            table[-1] += 1.0  # an id that x may lack: its logit moves all the same
        assert not torch.equal(read(torch.zeros_like(x)).logits[..., -1], before[..., -1])
        (name,) = (n for n, p in again.named_parameters() if p is table)
        assert name.startswith("embedding.")


def test_the_tokenizer_comes_along(saved: tuple[Subject, Path]) -> None:
    _, path = saved
    assert formers.load(path).tokenizer == TOKENIZER
    assert formers.load(str(path)).tokenizer.decode(formers.load(path).tokenizer.encode("größer")) == "größer"


def test_only_json_and_safetensors_are_written(saved: tuple[Subject, Path]) -> None:
    assert sorted(f.name for f in saved[1].iterdir()) == [MANIFEST, CONFIG, WEIGHTS]
    json.loads((saved[1] / CONFIG).read_text())
    json.loads((saved[1] / MANIFEST).read_text())


@sweep("gone", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(saved: tuple[Subject, Path], gone: str) -> None:
    path = whole(*saved)
    (path / gone).unlink()
    with refused(str(path), gone):
        formers.load(path)


def test_what_is_no_folder(tmp_path: Path) -> None:
    with refused("nowhere"):
        formers.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("text")
    with refused("file"):
        formers.load(tmp_path / "file")


@sweep("content", [b"", b"{", b"\xff\xfe", b"[]", b"3", b'{"format": 1}', b'{"spec": null}', b'{"spec": [1]}'])
def test_a_damaged_configuration(saved: tuple[Subject, Path], content: bytes) -> None:
    (saved[1] / CONFIG).write_bytes(content)
    with refused(CONFIG):
        formers.load(saved[1])


@sweep(
    ("change", "word"),
    [
        ({"dimm": 3}, "did you mean 'dim'?"),
        ({"dim": -3}, "dim"),
        ({"heads": 5}, "heads=5"),
        ({"pattern": {"kind": "Casual"}}, "did you mean 'Causal'?"),
        ({"pattern": {"kind": "Local", "window": 0}}, "window"),
    ],
)
def test_a_configuration_of_something_else(saved: tuple[Subject, Path], change: dict[str, object], word: str) -> None:
    path = whole(*saved)
    config = json.loads((path / CONFIG).read_text())
    config["spec"].update(change)
    (path / CONFIG).write_text(json.dumps(config))
    with refused(word):
        formers.load(path)


def test_an_unknown_tokenizer(saved: tuple[Subject, Path]) -> None:
    config = json.loads((saved[1] / CONFIG).read_text())
    config["tokenizer"] = {"kind": "Byte"}
    (saved[1] / CONFIG).write_text(json.dumps(config))
    with refused("did you mean 'Bytes'?"):
        formers.load(saved[1])


@sweep("keep", [0, 4, 40, -1, -1000])
def test_truncated_weights(saved: tuple[Subject, Path], keep: int) -> None:
    path = whole(*saved)
    content = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(content[:keep])
    with refused(WEIGHTS, "damaged"):
        formers.load(path)


def test_weights_of_another_model_are_named(saved: tuple[Subject, Path]) -> None:
    weights = load_file(saved[1] / WEIGHTS)
    (saved[1] / MANIFEST).unlink()  # as its owner who changed the folder is told to
    name = "stack.depth.blocks.0.attention.qkv.weight"
    for wrong in ({**weights, name: weights[name][:-1]}, {k: v for k, v in weights.items() if k != name}):
        save_file(wrong, saved[1] / WEIGHTS)
        with refused(WEIGHTS, repr(name), str(tuple(weights[name].shape))):
            formers.load(saved[1])
    save_file({**weights, "stranger": torch.zeros(2)}, saved[1] / WEIGHTS)
    with refused(WEIGHTS, "'stranger'"):
        formers.load(saved[1])


@sweep("where", ["os.fsync", "pathlib.Path.replace"])
def test_an_interrupted_save_leaves_the_old_files(saved: tuple[Subject, Path], where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, path = saved
    old = {f.name: f.read_bytes() for f in path.iterdir()}
    with torch.no_grad():
        read.model.embedding.weight.add_(1.0)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            read.model.save_pretrained(path)
    assert {f.name: f.read_bytes() for f in path.iterdir()} == old, "the old files must stand, and nothing half-written beside them"
    formers.load(path)
    read.model.save_pretrained(path)
    assert torch.equal(formers.load(path).embedding.weight, read.model.embedding.weight)


def test_the_disk_is_asked_before_the_name_is_moved(saved: tuple[Subject, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append(Path(to).name), replace(self, to))[1])
    saved[0].model.save_pretrained(saved[1])
    assert done == ["fsync", WEIGHTS, "fsync", CONFIG, "fsync", MANIFEST]


def test_one_flipped_bit_anywhere_is_noticed(saved: tuple[Subject, Path]) -> None:
    for file in sorted(saved[1].iterdir()):
        content = bytearray(file.read_bytes())
        for place in torch.randint(8 * len(content), (20,)).tolist():
            content[place // 8] ^= 1 << place % 8
            file.write_bytes(content)
            with refused():
                formers.load(saved[1])
            content[place // 8] ^= 1 << place % 8
        file.write_bytes(content)
    formers.load(saved[1])
