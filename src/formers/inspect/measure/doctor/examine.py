"""Everything that the doctor looks at, as one value that is ready for JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from formers.core.compiler import compiler
from formers.core.devices import capabilities
from formers.inspect.measure.doctor.choices import runs_on
from formers.inspect.measure.doctor.executors import check_executors
from formers.inspect.measure.doctor.machine import devices, distributed, half_on_cpu, precisions, versions
from formers.inspect.measure.doctor.more import completion, extras
from formers.inspect.measure.doctor.stores import cache_facts, data_facts


def examine() -> dict[str, Any]:
    """The facts, ready for JSON: versions, devices with what runs there, executors, and what else the machine has; ok if none is wrong."""
    with ThreadPoolExecutor() as pool:
        half = pool.submit(half_on_cpu)  # loads torch again in another process, which takes the longest
        found = devices()
        executors = [verdict for device in found for verdict in check_executors(device["device"])]
        for device in found:
            there = torch.device(device["device"])
            device |= {"precisions": precisions(device["device"]), "capabilities": asdict(capabilities(there)), "runs": runs_on(there)}
        facts = {
            "ok": not any(verdict["status"] == "wrong" for verdict in executors),
            "versions": versions(),
            "devices": found,
            "executors": executors,
            "compiler": compiler(),
            "flex": _flex([device["device"] for device in found], compiler()),
            "distributed": distributed(),
            "data": data_facts(),
            "cache": cache_facts(),
            "extras": extras(),
            "completion": completion(),
        }
        found[0]["precisions"] |= half.result()
    return facts


def _flex(names: list[str], cxx: str | None) -> str:
    """Where FlexAttention runs, in words."""
    gpus = [name for name in names if capabilities(torch.device(name)).flex]
    if gpus:
        return f"on {', '.join(gpus)}, forwards and backwards"
    if cxx is None:
        return "not: no device has kernels for it, and there is no C++ compiler to make its kernels for the CPU with"
    return "on the CPU in the forward pass only, where it is asked for: how='flex'"


def complaints(facts: dict[str, Any]) -> list[str]:
    """A sentence about each executor that is wrong."""
    return [
        f"{verdict['executor']} on {verdict['device']} disagrees with dense ({verdict['wrong'][0]}): use another `how`, and report it."
        for verdict in facts["executors"]
        if verdict["status"] == "wrong"
    ]
