"""Everything that the doctor looks at, as one value that is ready for JSON."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from formers.inspect.doctor.executors import check_executors
from formers.inspect.doctor.machine import compiler, devices, distributed, half_on_cpu, precisions, versions
from formers.inspect.doctor.more import completion, extras
from formers.inspect.doctor.stores import cache_facts, data_facts


def examine() -> dict[str, Any]:
    """The facts: versions, devices, executors, compiler, distributed, data, cache, extras, completion; ok where no executor is wrong."""
    with ThreadPoolExecutor() as pool:
        half = pool.submit(half_on_cpu)  # loads torch anew in another process, which takes the longest
        found = devices()
        executors = [verdict for device in found for verdict in check_executors(device["device"])]
        for device in found:
            device["precisions"] = precisions(device["device"])
        facts = {
            "ok": not any(verdict["status"] == "wrong" for verdict in executors),
            "versions": versions(),
            "devices": found,
            "executors": executors,
            "compiler": compiler(),
            "distributed": distributed(),
            "data": data_facts(),
            "cache": cache_facts(),
            "extras": extras(),
            "completion": completion(),
        }
        found[0]["precisions"] |= half.result()
    return facts


def complaints(facts: dict[str, Any]) -> list[str]:
    """A sentence about each executor that is wrong."""
    return [
        f"{verdict['executor']} on {verdict['device']} disagrees with dense ({verdict['wrong'][0]}): use another `how`, and report it."
        for verdict in facts["executors"]
        if verdict["status"] == "wrong"
    ]
