"""Splits the files of a folder so that the held-out files are of the same kinds as the rest.

A kind is a suffix; suffixes with less than a hundredth of the bytes count as one kind. Of each kind about a twentieth of the bytes is held
out:

- a file with more than a twentieth of the bytes of its kind is cut, and its end is held out;
- of the other files whole ones are held out, in the order of a hash of their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from formers.data.files import Stretch, suffix

HELD_OUT = 0.05
"""The share of a text that is held out for validation."""
RARE = 0.01
"""Kinds with a smaller share of the bytes count as one."""
LITTLE, FEW_BYTES = 0.02, 1000
"""A held-out part with a smaller share, or with fewer bytes, is warned about."""
UNLIKE = 0.25
"""So is one in which this share of the bytes is of other kinds than in the training part."""
CUT = 4
"""A file with fewer bytes is not cut."""
NAMED = 8
"""How many held-out files are named."""
OTHER = "other"


class FolderSplit(NamedTuple):
    """Which files of a folder are held out whole, which are cut, and this in words."""

    held: set[str]
    cut: set[str]
    about: str


def hash_share(name: str) -> float:
    """A number in [0, 1), a function of the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little") / 2**32


def split_by_kind(files: Sequence[Stretch]) -> FolderSplit:
    """The split of files with different names."""
    held: set[str] = set()
    cut: set[str] = set()
    counts = []
    for kind, members in _by_kind(files).items():
        large, small = _large(members)
        chosen = _chosen(small)
        held |= chosen
        cut |= large
        if chosen:
            counts.append(f"{len(chosen):,} of {len(members):,} {kind} files")
    if cut:
        counts.append(f"the end of {len(cut):,} file{'s' * (len(cut) > 1)}")
    names = sorted(held, key=hash_share) + sorted(cut, key=hash_share)
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return FolderSplit(held, cut, f"{', '.join(counts)}: {', '.join(names[:NAMED])}{more}")


def split_notices(name: str, train: Sequence[Stretch], valid: Sequence[Stretch]) -> list[str]:
    """Sentences that warn of a held-out part that is too little, or of other kinds than the training part."""
    learnt, held = (sum(s.size for s in part) for part in (train, valid))
    notices = []
    if held < FEW_BYTES or held < LITTLE * (learnt + held):
        notices.append(
            f"only {held:,} bytes of {name} are held out, {held / max(learnt + held, 1):.1%} of it: the score on them is rough; "
            "give more text, or held-out data of your own with --valid"
        )
    shares = [_shares(part) for part in (train, valid)]
    apart = {kind: shares[1].get(kind, 0.0) - shares[0].get(kind, 0.0) for kind in {*shares[0], *shares[1]}}
    if sum(difference for difference in apart.values() if difference > 0) > UNLIKE:
        most = max(sorted(apart), key=lambda kind: apart[kind])
        notices.append(
            f"the held-out part of {name} is unlike the rest: {shares[1][most]:.0%} of it is {most} files, of the training part "
            f"{shares[0].get(most, 0.0):.0%}; give held-out data of your own with --valid"
        )
    return notices


def kind_of_file(name: str) -> str:
    """The suffix of a file's name; numbers, as of old logs, are none."""
    found = suffix(name)
    return found if found and not found[1:].isdigit() else "unsuffixed"


def _shares(files: Sequence[Stretch]) -> dict[str, float]:
    """The share of the bytes that each kind has."""
    total = max(sum(file.size for file in files), 1)
    sizes: dict[str, float] = {}
    for file in files:
        kind = kind_of_file(file.name)
        sizes[kind] = sizes.get(kind, 0.0) + file.size / total
    return sizes


def _by_kind(files: Sequence[Stretch]) -> dict[str, list[Stretch]]:
    """The files of each kind; the rare kinds are one."""
    shares = _shares(files)
    kinds: dict[str, list[Stretch]] = {}
    for file in files:
        kind = kind_of_file(file.name)
        kinds.setdefault(kind if shares[kind] >= RARE else OTHER, []).append(file)
    return dict(sorted(kinds.items(), key=lambda item: -sum(file.size for file in item[1])))


def _large(files: list[Stretch]) -> tuple[set[str], list[Stretch]]:
    """The names of the files that have more than a twentieth of the bytes of the files that are not larger, and the other files."""
    rest = sorted(files, key=lambda file: file.size)
    total, large = sum(file.size for file in rest), set()
    while rest and rest[-1].size > HELD_OUT * total and rest[-1].size >= CUT:
        file = rest.pop()
        total -= file.size
        large.add(file.name)
    return large, rest


def _chosen(files: list[Stretch]) -> set[str]:
    """The names of whole files with about a twentieth of the bytes: each is taken that brings the sum nearer to it."""
    left = HELD_OUT * sum(file.size for file in files)
    chosen = set()
    for file in sorted(files, key=lambda file: hash_share(file.name)):
        if abs(left - file.size) < abs(left):
            chosen.add(file.name)
            left -= file.size
    return chosen
