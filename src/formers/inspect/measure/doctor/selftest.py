"""The self-test of a device: `formers doctor --device NAME`.

Every executor, LSH attention and decoding are compared with dense attention on the CPU in float64, and training steps and generated tokens
of small models with those of the CPU. TF32 is off during the checks, and everything is timed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from formers.attention import EXECUTORS
from formers.core.devices import capabilities
from formers.core.precision import float32_products
from formers.inspect.measure.doctor import machine
from formers.inspect.measure.doctor.compare import LIMITS
from formers.inspect.measure.doctor.executors import HALF, check_executors
from formers.inspect.measure.doctor.hashing import CASES, check_hashing
from formers.inspect.measure.doctor.members import (
    MEMBERS,
    Losses,
    causal_members,
    check_generation,
    check_saving,
    check_streaming,
    check_training,
)
from formers.training.device import peak_device_memory, pick_device, reset_peak
from formers.training.precision import computes, prepare

Tick = Callable[[int, int, str], None]
"""Called with the number of finished checks, the number of all, and what is checked next."""
WORKS = "works"


def self_test(name: str, tick: Tick | None = None) -> dict[str, Any]:
    """The facts, ready for JSON: the device, the verdicts on executors, the findings, times and memory; ok if nothing is wrong."""
    device = pick_device(name)
    start = time.perf_counter()
    precisions = usable_precisions(device)
    usable = [precision for precision, words in precisions.items() if words == WORKS]
    later = _checks(device, usable)
    done, total = 0, len(EXECUTORS) * len(usable) + len(later)

    def report(words: str) -> None:
        nonlocal done
        if tick is not None:
            tick(done, total, words)
        done += 1

    reset_peak(device)
    executors = check_executors(str(device), True, usable, report)
    findings = []
    with warnings.catch_warnings(), float32_products(False, device):
        warnings.simplefilter("ignore")
        for words, check in later:
            report(words)
            findings.append(check())
    wrong = [f"{verdict['executor']}: {line}" for verdict in executors for line in verdict["wrong"]]
    wrong += [f"{one['what']}, {one['precision']}: {one['wrong']}" for one in findings if one["wrong"] is not None]
    return {
        "ok": not wrong,
        "device": machine.device_facts(device),
        "versions": machine.versions(),
        "precisions": precisions,
        "limits": {precision: LIMITS[precision] for precision in usable},
        "executors": executors,
        "checks": findings,
        "wrong": wrong,
        "peak_bytes": peak_device_memory(device),
        "seconds": time.perf_counter() - start,
    }


def usable_precisions(device: torch.device) -> dict[str, str]:
    """Whether each precision is checked: "works", or why not."""
    found = {} if capabilities(device).float64 else {"float64": "the device has none"}
    if capabilities(device).host:
        prepare("bf16", device)  # it must come before the first product: some processors report AMX and trap on it
        half = {"bf16": WORKS if computes() else "products in bf16 end the process", "fp16": "training on a CPU does not use it"}
    else:
        half = {}
    return {name: found.get(name) or half.get(name) or machine.precisions(str(device))[name] for name in LIMITS}


def _checks(device: torch.device, precisions: list[str]) -> list[tuple[str, Callable[[], dict[str, Any]]]]:
    """The checks after those of executors, and what they are called."""
    on_cpu: dict[str, Losses] = {}
    exact = [precision for precision in precisions if precision not in HALF]
    found: list[tuple[str, Callable[[], dict[str, Any]]]] = []
    for case in CASES:
        found += [(f"LSH attention, {case.name}, {p}", partial(check_hashing, case, p, device)) for p in precisions]
    for member in MEMBERS:
        trained = [p for p in precisions if p != "float64"]
        found += [(f"training {member} in {p}", partial(check_training, member, p, device, on_cpu)) for p in trained]
    for member in causal_members():
        found += [(f"decoding {member} in {p}", partial(check_streaming, member, p, device)) for p in exact]
        found.append((f"generating with {member}", partial(check_generation, member, device)))
    return [*found, *((f"saving {member}", partial(check_saving, member, device)) for member in MEMBERS)]
