"""Text for training and for evaluation: a file, a folder, a glob or a named set, as parts that are stretches of plain files.

The split depends only on the data: the published split of a named set, the words train, valid and test in file names, the kind of a file
and the hash of its name (data/kinds.py), the hash of a document; of a single file, the last twentieth is held out.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from formers.core import FormersError
from formers.data.bpe import SAMPLE, recut
from formers.data.cache import Sink, key_of, made
from formers.data.catalogue import IMAGE_NAMES, IMAGES, NUMBERS, PAIRS, SETS, STDLIB
from formers.data.download import fetch
from formers.data.encodings import as_utf8, encoding_notices
from formers.data.files import Parts, Stretch, is_records, listed, resolved, walk, whole
from formers.data.kinds import HELD_OUT, hash_share, split_by_kind, split_notices
from formers.data.progress import Progress
from formers.data.reading import Reading
from formers.data.records import decoded, records

WHOLE_FILES = 20
"""With at least this many files, whole files are held out."""
WORDS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid", "test": "test"}
Split = dict[str, list[Stretch]]


class TextData(NamedTuple):
    """The parts of a text as stretches of files (joined by a line end), with a one-line description."""

    parts: Parts[list[Stretch]]
    about: str
    fingerprint: str
    source: str
    invalid: str = "refuse"
    notices: tuple[str, ...] = ()
    """Sentences on files that are not UTF-8 text, and on a held-out part that is too little or unlike the rest."""

    def texts(self, part: str) -> Iterator[str]:
        """The text of a part, in chunks."""
        for number, stretch in enumerate(self.parts[part]):
            if number:
                yield "\n"
            yield from decoded(stretch, self.invalid)

    def sample(self) -> Iterator[str]:
        """The training text, in chunks; of a long text, chunks spread evenly over it."""
        step = 1 + sum(stretch.size for stretch in self.parts["train"]) // SAMPLE
        return islice(recut(self.texts("train")), 0, None, step)


class Text(NamedTuple):
    """Bytes for training and bytes for evaluation, uint8 (n,), and how they were split."""

    train: Tensor
    valid: Tensor
    about: str


def open_text(data: str | Path, reading: Reading = Reading()) -> TextData:
    """The text of `data`, split into parts."""
    name, notices = str(data), []
    if name.split(":")[0] in (PAIRS, NUMBERS):
        raise FormersError(f"{name} has pairs, which are for encoder-decoders: use the member transformer, or give a text.")
    if name in IMAGES or name in IMAGE_NAMES:
        raise FormersError(f"{name} is made of images, which a language model reads as rows of bytes: use sparse-transformer or decoder.")
    if name in SETS and SETS[name].kind == "passages":
        raise FormersError(f"{name} is for testing only: train on other data, then evaluate the run with --data {name} --split test.")
    if name in SETS:
        split = _named(name)
        test = f"{split['test'][0].size:,} for testing" if "test" in split else "no test part"
        about = f"{name}, split as published: {split['train'][0].size:,} bytes for training, {split['valid'][0].size:,} held out, {test}"
        source = name
    elif name == STDLIB:
        split, about = _without_names(_library(), reading.replace(rules=1), "standard library of Python")
        source = name
    else:
        files = listed(name)
        split, about = _part(files, reading, name)
        source = resolved(name)
        notices = encoding_notices(files, [s for stretches in split.values() for s in stretches])
        notices += split_notices(name, split["train"], split["valid"]) if reading.valid is None else []
    if reading.valid is not None:
        given = listed(reading.valid)
        split["valid"], about = _read(given, reading), f"{about}; held out: {reading.valid}"
        notices += encoding_notices(given, split["valid"])
    sizes = {part: sum(s.size for s in stretches) for part, stretches in split.items()}
    for part, size in sizes.items():
        if size < 2:
            raise FormersError(f"the {part} part of {name} holds {size} bytes: it needs at least 2; give more text.")
    facts = [[part, [[s.sum, s.start, s.stop] for s in stretches]] for part, stretches in split.items()]
    return TextData(Parts(split, name), about, fingerprint(facts), source, reading.invalid, tuple(notices))


def fingerprint(*facts: object) -> str:
    """The sha256 of what some data consist of and how they were split."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def held_out(name: str) -> bool:
    """Whether a file, a document or a source is held out: a function of its name or text only, the same on every machine."""
    return hash_share(name) < HELD_OUT


def named_files(name: str) -> tuple[dict[str, Path], dict[str, str]]:
    """The files of a named set, fetched and verified, and their published sums."""
    packages = SETS[name].packages
    files = {file: path for package in packages for file, path in fetch(name, package).items()}
    return files, {Path(member).name: pin for package in packages for member, pin in package.files.items()}


def _named(name: str) -> Split:
    """The parts of a named set, as published."""
    files, sums = named_files(name)
    return {
        part: [Stretch(f"{name}/{file}", files[file], start, files[file].stat().st_size if stop is None else stop, sums[file])]
        for part, (file, start, stop) in SETS[name].parts.items()
    }


def _library() -> list[tuple[str, Path]]:
    """The .py files of the running Python's standard library, tests left out."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3"}
    names = sorted((path.relative_to(root).as_posix(), path) for path in walk(root, left_out) if path.suffix == ".py")
    if len(names) < WHOLE_FILES:
        raise FormersError(f"the running Python has no library sources under {root}: give a text file instead.")
    return names


def _part(files: list[tuple[str, Path]], reading: Reading, name: str) -> tuple[Split, str]:
    """Splits files into train, valid and perhaps test, by words in their names or by hash; with a description of the split."""
    said = {file: _word(file) for file, _ in files}
    if "train" not in said.values() or set(said.values()) <= {"train", None}:
        return _without_names(files, reading, name)
    about = f"{name}, split by the names of its files"
    if reading.valid is not None:  # all but the test files are for training
        said = {file: "test" if word == "test" else "train" for file, word in said.items()}
    elif None in said.values():
        about += f" ({sum(word is None for word in said.values()):,} without a part in their name left out)"
    kept = {part: [(f, path) for f, path in files if said[f] == part] for part in ("train", "valid", "test")}
    rest = {part: _read(kept[part], reading) for part in ("valid", "test") if kept[part]}
    if "valid" in rest:
        return {"train": _read(kept["train"], reading), **rest}, about
    split, about = _without_names(kept["train"], reading, about)
    return {**split, **rest}, about


def _without_names(files: list[tuple[str, Path]], reading: Reading, name: str) -> tuple[Split, str]:
    """Splits files into train and valid; all are train if the options name held-out data."""
    if reading.valid is not None:
        return {"train": _read(files, reading)}, name
    train, valid, how = _hold_out(files, reading)
    return {"train": train, "valid": valid}, f"{name}, {how}"


def _word(name: str) -> str | None:
    """The part that a file's name states."""
    words = [WORDS[word] for word in re.split(r"[\W\d_]+", name.lower()) if word in WORDS]
    return words[-1] if words else None


def _hold_out(files: list[tuple[str, Path]], reading: Reading) -> tuple[list[Stretch], list[Stretch], str]:
    """Training files, held-out files, and the rule that split them."""
    if len(files) >= WHOLE_FILES and reading.rules > 1:
        return _hold_out_by_kind(files, reading)
    if len(files) >= WHOLE_FILES:
        held = {name for name, _ in files if held_out(name)} or {min((name for name, _ in files), key=hash_share)}
        train, valid = (_read([f for f in files if (f[0] in held) == side], reading) for side in (False, True))
        return train, valid, f"{len(files) - len(held):,} files for training and {len(held):,} held out by the hash of their names"
    train, valid = [], []
    for name, path in files:
        if is_records(path):
            first, last = (_documents(name, path, reading, side) for side in (False, True))
            if first.size < 2 or last.size < 2:
                raise FormersError(f"{name} has too few documents to hold out {HELD_OUT:.0%}: give at least a few dozen, or --valid.")
        else:
            stretch = _plain(name, path, reading)
            _refuse_short(stretch, alone=len(files) == 1)
            if stretch.size < 4:
                train.append(stretch)
                continue
            first, last = stretch.cut(HELD_OUT)
        train.append(first)
        valid.append(last)
    held_bytes = f"{sum(s.size for s in valid):,} bytes"
    if len(files) > 1:
        return train, valid, f"the last twentieth of each of {len(files)} files held out, {held_bytes}"
    return train, valid, f"{held_bytes} of its documents held out" if is_records(files[0][1]) else f"its last {held_bytes} held out"


def _hold_out_by_kind(files: list[tuple[str, Path]], reading: Reading) -> tuple[list[Stretch], list[Stretch], str]:
    """Of each kind of file about a twentieth of the bytes: whole files, and the ends of large ones."""
    contents = [whole(name, path) if is_records(path) else _plain(name, path, reading) for name, path in files]
    chosen = split_by_kind(contents)
    train, valid = [], []
    for (name, path), content in zip(files, contents, strict=True):
        if name in chosen.held:
            valid += _read([(name, path)], reading)
        elif name not in chosen.cut:
            train += _read([(name, path)], reading)
        else:
            sides = [_documents(name, path, reading, side) for side in (False, True)] if is_records(path) else content.cut(HELD_OUT)
            train.append(sides[0])
            valid.append(sides[1])
    held, total = sum(s.size for s in valid), sum(s.size for s in (*train, *valid))
    return train, valid, f"{held:,} of {total:,} bytes ({held / max(total, 1):.1%}) held out, {chosen.about}"


def _refuse_short(stretch: Stretch, alone: bool) -> None:
    if alone and stretch.size == 0:
        raise FormersError(f"{stretch.name} is empty: give a file with text in it.")
    if alone and stretch.size < 4:
        raise FormersError(f"{stretch.name} holds {stretch.size} bytes: a text for training and for evaluation needs at least 4.")


def _read(files: list[tuple[str, Path]], reading: Reading) -> list[Stretch]:
    """Files whole."""
    return [_documents(name, path, reading, None) if is_records(path) else _plain(name, path, reading) for name, path in files]


def _plain(name: str, path: Path, reading: Reading) -> Stretch:
    """A file whole; decoded if it is UTF-16, unless the rules are those of old runs."""
    content = whole(name, path)
    return content if reading.rules == 1 else as_utf8(content, reading.invalid)


def _documents(name: str, path: Path, reading: Reading, held: bool | None) -> Stretch:
    """The documents of a JSON-lines file as plain text in the cache, separated by blank lines: the held-out ones, the others, or all."""

    def write(sink: Sink) -> None:
        between = b""
        with Progress(f"reading {path.name}", 0) as progress:
            for _, (text,) in records(name, path, (reading.field,), reading.invalid):
                if held is None or held_out(text) == held:
                    sink.write(between + text.encode("utf-8"))
                    between = b"\n\n"
                progress.advance(len(text))

    source = whole(name, path)
    plain = made("documents", key_of("documents", source.sum, reading.field, reading.invalid, held), write)
    return whole(name, plain)._replace(name=name)
