"""Two or three members to try first, with reasons from measured costs, and what would change that.

1. A member is left out where it cannot do the job, where a training step needs more memory than there is, or where it was made for
   another kind of task (gtrxl for agents, universal-transformer for small tasks).
2. The plain member of the task comes first where its step takes at most NEAR times that of the fastest member that is no baseline.
3. Then the member that was designed for the task, and the others by predicted time of a step, up to FEW in all, none slower than the
   plain one where that fits.

Costs say nothing of quality, and none is claimed: `formers compare` measures it.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from formers.choose.guides import FITTING, GUIDES, PLAIN
from formers.choose.measure import Priced, clock_of, price
from formers.choose.situation import EXERCISE, TASKS, Situation
from formers.core import FormersError
from formers.core.devices import capabilities
from formers.family import MEMBERS
from formers.inspect.measure.costs import allowed_share
from formers.training.device import pick_device

NEAR = 1.5
"""The plain member is recommended first where it takes at most so many times as long as the fastest."""
FEW = 3
LIMIT = 22.0
"""Seconds after which no further member is measured."""
SHORTEST, LONGEST = 32, 1 << 20
"""Between these cross-over lengths are sought."""
ORDER = (
    "decoder", "encoder", "transformer", "image-transformer", "transformer-xl", "sparse-transformer", "adaptive-span", "bigbird",
    "linformer", "rnn", "reformer",
)  # fmt: skip
"""Who is measured first."""


def choose(
    job: Situation, device: str = "auto", ram: float | None = None, options: Mapping[str, Any] | None = None,
    tick: Callable[[int, int | None], None] | None = None, limit: float = LIMIT,
) -> dict[str, Any]:  # fmt: skip
    """What members cost at a job, and which to try first, ready for JSON.

    ram: GB of memory that a training step may take; that of the machine unless given. options: sizes for all members that have them.
    """
    where = pick_device(device)
    room = memory_of(where) if ram is None else ram * 1e9
    if room <= 0:
        raise FormersError(f"ram={ram:g} leaves no memory to train in: give GB above 0.")
    start, clock = time.monotonic(), clock_of(where)
    began = clock()
    priced: dict[str, Priced] = {}
    cannot: dict[str, str] = {}
    names = [*(name for name in ORDER if name in MEMBERS), *(name for name in MEMBERS if name not in ORDER)]
    with tempfile.TemporaryDirectory() as folder, _no_warnings():  # which would be of drawn data
        for number, name in enumerate(names):
            if tick is not None:
                tick(number, len(names))
            own = {option: value for option, value in (options or {}).items() if option in MEMBERS[name].options}
            try:
                if clock() - began > limit:
                    job.prepare(name, Path(folder), own)
                    raise FormersError(f"{name} was not measured, for {limit:g} seconds were over: give --set with smaller sizes.")
                priced[name] = price(job, name, Path(folder), where, own)
            except FormersError as why:
                cannot[name] = str(why)
    if not priced:
        raise FormersError(f"no member can do this: {next(iter(cannot.values()))}")
    rows = [_row(name, found, room) for name, found in sorted(priced.items(), key=lambda item: item[1].seconds)]
    picked = _picked(job, rows)
    return {
        "task": job.task,
        "data": job.data,
        "length": max(found.length for found in priced.values()) if job.task == EXERCISE else job.length,
        "why_length": job.why_length,
        "device": str(where),
        "threads": torch.get_num_threads(),
        "ram_bytes": int(room),
        "seconds": round(time.monotonic() - start, 1),
        "rows": rows,
        "cannot": cannot,
        "cross_overs": _cross_overs(job, priced, picked),
        "recommended": [{"member": row["member"], "reasons": _reasons(job, row, rows)} for row in picked],
        "changes": _changes(job, rows, picked, priced),
        "quality": "not measured",
        "compare": _command(job, picked),
    }


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Within it the library's log tells of errors alone."""
    library = logging.getLogger("formers")
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)


def memory_of(device: torch.device) -> float:
    """Bytes of memory that a device has."""
    if not capabilities(device).host:
        with suppress(RuntimeError):  # a device without figures of its own, such as MPS, whose memory is that of the machine
            return float(torch.accelerator.get_memory_info(device)[1])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _row(name: str, found: Priced, room: float) -> dict[str, Any]:
    """What a member costs, ready for JSON."""
    tokens = found.batch * found.length
    return {
        "member": name,
        "parameters": found.parameters,
        "length": found.length,
        "batch": found.batch,
        "flops_per_token": sum(found.flops) / found.length,
        "pairs_share": found.flops.pairs / max(sum(found.flops), 1.0),
        "pairs_allowed": allowed_share(found.spec, found.length),
        "training_bytes": found.bytes,
        "fits": found.bytes <= room,
        "step_seconds": found.seconds,
        "tokens_per_second": tokens / found.seconds,
        "measured": [{"length": each.length, "batch": each.batch, "seconds": each.seconds} for each in found.timed],
        "purpose": GUIDES[name].purpose,
        "paper": GUIDES[name].paper,
        "baseline": GUIDES[name].baseline,
    }


def _picked(job: Situation, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The members to try first, in order; rows are sorted by the time of a step."""
    fitting = [row for row in rows if row["fits"] and job.task in (GUIDES[row["member"]].only or (job.task,))]
    able = [row for row in fitting if not row["baseline"]] or fitting
    if not able:
        return []
    plain = next((row for row in able if row["member"] == PLAIN[job.task]), None)
    first = [plain] if plain is not None and plain["step_seconds"] <= NEAR * able[0]["step_seconds"] else []
    made_for = [row for row in able if row["member"] == FITTING.get(job.task)]
    slowest = math.inf if plain is None else max(plain["step_seconds"], NEAR * able[0]["step_seconds"])
    others = [row for row in able if row["step_seconds"] <= slowest]
    found: list[dict[str, Any]] = []
    for row in (*first, *made_for, *others):
        if row not in found:
            found.append(row)
    return found[:FEW]


def _reasons(job: Situation, row: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why a member is recommended: what it costs beside the plain one, how much it sees, and what its paper is about."""
    plain = next((other for other in rows if other["member"] == PLAIN[job.task]), None)
    share = f"attention over pairs is {row['pairs_share']:.0%} of its FLOPs at length {row['length']:,}"
    reasons = []
    if plain is None or row is plain:
        reasons.append(f"{share}, and no member that fits is more than {NEAR:g} times as fast" if row is plain else share)
    elif not plain["fits"]:
        reasons.append(f"a step fits the memory, which {plain['member']} does not")
    else:
        ratio = plain["step_seconds"] / row["step_seconds"]
        word = (
            f"{ratio:.1f} times as fast as"
            if ratio >= 1.05
            else "about as fast as"
            if ratio > 0.95
            else f"{1 / ratio:.1f} times as slow as"
        )
        reasons.append(f"a step is {word} that of {plain['member']}; {share}")
    if row["pairs_allowed"] < 0.45:
        reasons.append(f"a layer compares {row['pairs_allowed']:.1%} of all pairs: a token reaches the others through several layers")
    return [*reasons, f"published for {row['purpose']} ({row['paper']})"]


def _cross_overs(job: Situation, priced: Mapping[str, Priced], picked: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lengths from which on a token of another member costs less time than one of the plain member, or no longer does."""
    plain = priced.get(PLAIN[job.task])
    if plain is None or job.task in (EXERCISE, "images"):
        return []
    found = []
    for name, other in priced.items():
        if other is plain or GUIDES[name].baseline:
            continue
        length, cheaper = cross_over(plain, other)
        found.append({"plain": PLAIN[job.task], "member": name, "length": length, "cheaper_when_short": cheaper})
    return found


def cross_over(plain: Priced, other: Priced) -> tuple[int | None, bool]:
    """The length at which two members take the same time a token, two digits of it, and whether `other` takes less below it."""
    lengths = [SHORTEST * 2 ** (step / 8) for step in range(8 * round(math.log2(LONGEST / SHORTEST)) + 1)]
    less = [other.seconds_per_token(n) < plain.seconds_per_token(n) for n in lengths]
    for i in range(1, len(lengths)):
        if less[i] != less[0]:
            digits = 10 ** (int(math.log10(lengths[i])) - 1)
            return round(lengths[i] / digits) * digits, less[0]
    return None, less[0]


def _changes(
    job: Situation, rows: Sequence[dict[str, Any]], picked: Sequence[Mapping[str, Any]], priced: Mapping[str, Priced]
) -> list[str]:
    """What would change the recommendation."""
    says = []
    names = [row["member"] for row in picked]
    for each in _cross_overs(job, priced, picked):
        if each["length"] is None or (each["member"] not in names and each["plain"] not in names):
            continue
        now = "at most" if each["cheaper_when_short"] else "at least"
        if each["member"] in names or each["length"] <= 8 * job.length:
            says.append(
                f"length: {each['member']} takes less time a token than {each['plain']} with rows of {now} about {each['length']:,}"
            )
    large = [row for row in rows if not row["fits"]]
    says += [f"memory: {row['member']} needs {row['training_bytes'] / 1e9:.1f} GB for a step of batch {row['batch']}" for row in large]
    if job.task == "text":
        says.append("direction: text that is only read, not written, can be read in both directions: --task masked or classify")
    if job.task in ("text", "masked") and job.length > 512:
        says.append(
            "context: if a token needs less than the whole row, shorter rows with a memory are faster: transformer-xl, adaptive-span"
        )
    says.append("quality: none was measured; the comparison below measures it on your data")
    return says


def _command(job: Situation, picked: Sequence[Mapping[str, Any]]) -> str:
    """The command that measures the quality of the recommended members."""
    names = " ".join(row["member"] for row in picked) or PLAIN[job.task]
    sizes = "" if job.task in ("images", EXERCISE) else f" --set length={job.length}"
    return f"formers compare {names} --data {job.data or 'YOUR_DATA'}{sizes} --equal time --budget 10 --seeds 3"


def told(found: Mapping[str, Any]) -> str:
    """What was chosen for, in a sentence."""
    job = TASKS.get(found["task"], f"learn {found['data']}")
    why = f" ({found['why_length']})" if found["why_length"] else ""
    machine = f"{found['device']}, {found['threads']} threads, {found['ram_bytes'] / 1e9:.1f} GB"
    return f"To {job}, in rows of {found['length']:,} tokens{why}; on {machine}."
