"""Files that want to run something, or to be believed: refused in one sentence, exit code 2, and nothing is executed."""

from __future__ import annotations

import json
import pickle
import re
import struct
import subprocess
from pathlib import Path

import pytest

import formers
from commands import command
from helpers import one_sentence, refused

SOURCES = Path(formers.__file__).parent
FORBIDDEN = re.compile(
    r"\bimport pickle|\bpickle\.|torch\.load\(|allow_pickle\s*=\s*True|yaml\.(?:unsafe_|full_)?load\("
    r"|(?<![.\w])eval\(|(?<![.\w])exec\(|trust_remote_code"
)


class Payload:
    """Leaves a mark on the disk when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    done = command(*arguments, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    one_sentence(done.stderr.strip())
    return done


def test_nothing_in_the_sources_could_run_what_a_file_holds() -> None:
    found = [
        f"{path.name}: {line.strip()}" for path in SOURCES.rglob("*.py") for line in path.read_text().splitlines() if FORBIDDEN.search(line)
    ]
    assert found == []


def test_a_pickle_is_never_opened_as_a_model(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for name in ("model.pt", "model.pkl", "model.bin"):
        (tmp_path / name).write_bytes(pickle.dumps(Payload(mark)))
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("pytorch_model.bin", "model.safetensors", "optimizer.pt"):
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))
    for path in (tmp_path / "model.pt", tmp_path / "model.pkl", tmp_path / "model.bin", folder):
        with refused(path.name):
            formers.load(path)
    (folder / "config.json").write_text(
        json.dumps({"format": "formers/1", "spec": formers.spec("decoder", vocab=256).model_dump(mode="json")})
    )
    with refused("model.safetensors", "damaged"):
        formers.load(folder)
    (tmp_path / "text.txt").write_bytes(b"some text " * 50)
    run("train", "decoder", "--data", "text.txt", "--from", "model.pt", "--steps", "1", folder=tmp_path)
    run("resume", "model.pt", folder=tmp_path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists(), "the payload must be one that works"


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:pathlib.Path.touch [mark]",
        "layers: !!python/object/apply:os.system ['touch mark']",
        "layers: !!python/name:os.system",
        "- a list",
        "just words",
        "layers: [1, 2",
        "3: 4",
        "",
        "overwrite: true",
        "out: 5",
        "track: no",
        "json: true",
        "[" * 5000,
    ],
)
def test_a_yaml_that_is_not_names_and_values_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    said = run("train", "decoder", "--config", "run.yaml", "--steps", "1", folder=tmp_path).stderr
    assert "run.yaml" in said
    assert not (tmp_path / "mark").exists()


def test_a_misspelt_name_in_a_yaml_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("layrs: 3\n")
    assert "'layers'" in run("train", "decoder", "--config", "run.yaml", "--steps", "1", folder=tmp_path).stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        b"",
        struct.pack("<Q", 60) + b'{"embedding.weight":{"dtype":"F32","shape":[9,9],"data_offsets":[0,4]}}',
    ],
    ids=["a header of a terabyte", "nothing in it", "empty", "a false shape"],
)
def test_weights_that_lie_are_refused_before_they_are_believed(content: bytes, tmp_path: Path) -> None:
    formers.create("decoder", vocab=8, dim=8, heads=1, layers=1).save_pretrained(tmp_path)
    (tmp_path / "MANIFEST.json").unlink()
    (tmp_path / "model.safetensors").write_bytes(content)
    with refused("model.safetensors"):
        formers.load(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", '{"format": "formers/run/1"}', "no json"])
def test_a_run_that_does_not_say_what_it_is(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    assert "run.json" in run("resume", ".", folder=tmp_path).stderr
