"""The machine: versions, devices, the precisions that work on them, a compiler, and what processes can talk over."""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from formers import __version__
from formers.core.devices import capabilities
from formers.training.precision import WITHOUT_AMX, announces_amx, computes

PACKAGES = (
    "torch", "numpy", "safetensors", "pydantic", "tokenizers", "typer", "rich", "pyyaml", "filelock", "num2words", "typing-extensions",
)  # fmt: skip
"""What formers stands on."""
TYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
TURNED_OFF = "formers train --precision bf16 turns it off"
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


def versions() -> dict[str, str]:
    """formers, Python, the system, and what formers stands on."""
    return {
        "formers": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        **{package: installed(package) or "missing" for package in PACKAGES},
    }


def installed(package: str) -> str | None:
    """The version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def devices() -> list[dict[str, Any]]:
    """The CPU, and every accelerator that torch can use."""
    cpu = {"device": "cpu", "name": cpu_name(), "cores": _cores(), "threads": torch.get_num_threads(), "memory_bytes": _memory()}
    return [cpu, *(_accelerator(name) for name in accelerators())]


def device_facts(device: torch.device) -> dict[str, Any]:
    """The device, its name and its memory; of an accelerator also driver, capability and what torch was built for."""
    return devices()[0] if capabilities(device).host else _accelerator(str(device))


def accelerators() -> list[str]:
    """The names of torch's devices besides the CPU: cuda:0, mps, ..."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        return []
    return ["mps"] if found.type == "mps" else [f"{found.type}:{i}" for i in range(torch.accelerator.device_count())]


def precisions(device: str) -> dict[str, str]:
    """Whether a product survives in each precision; those that may end the process are `half_on_cpu`'s."""
    names = [name for name in TYPES if device != "cpu" or name.startswith("float")]
    return {name: _tried(name, device) for name in names}


def half_on_cpu() -> dict[str, str]:
    """bf16 and fp16 on the CPU. Some machines trap on a bf16 product, so that another process tries it."""
    with ThreadPoolExecutor() as pool:  # both at once: each loads torch
        plain = pool.submit(computes)
        fewer = pool.submit(computes, WITHOUT_AMX) if announces_amx() else None
        works, saved = plain.result(), fewer is not None and fewer.result()
    bf16 = "works" if works else f"works without AMX, on which this processor traps: {TURNED_OFF}" if saved else "does not work"
    return {"bf16": bf16, "fp16": "not for training, which needs a GPU for it"}


def distributed() -> list[str]:
    """The backends over which processes of torchrun can talk."""
    if not torch.distributed.is_available():
        return []
    return [name for name in BACKENDS if torch.distributed.is_backend_available(name)]


def cpu_name() -> str:
    """What the processor calls itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    """The bytes that this process may use: the machine's, or fewer in a container."""
    known = []
    with suppress(AttributeError, ValueError, OSError):
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known, default=None)


def _accelerator(device: str) -> dict[str, Any]:
    """The name, memory and versions of an accelerator, as far as torch knows them."""
    facts: dict[str, Any] = {"device": device, "name": device, "memory_bytes": None}
    module = torch.get_device_module(device)
    with suppress(AttributeError, RuntimeError, AssertionError):
        about = module.get_device_properties(device)
        facts |= {"name": about.name, "memory_bytes": about.total_memory}
        facts |= {name: str(value) for name, value in (("driver", getattr(about, "driver_version", None)),) if value}
    if device == "mps" and sys.platform == "darwin":
        facts |= {"name": f"{cpu_name()} GPU", "system": f"macOS {platform.mac_ver()[0]}"}
    with suppress(AttributeError, RuntimeError, AssertionError):
        found = module.get_device_capability(device)
        facts["capability"] = ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
    if facts["memory_bytes"] is None:
        with suppress(AttributeError, RuntimeError):
            facts["memory_bytes"] = int(module.recommended_max_memory())
    for name, built in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)):
        if built is not None:
            facts["built_for"] = f"{name} {built}"
    with suppress(OSError, IndexError):
        facts["driver"] = Path("/proc/driver/nvidia/version").read_text().split("Module")[1].split()[0]
    return facts


def _tried(name: str, device: str) -> str:
    try:
        x = torch.ones(8, 8, dtype=TYPES[name], device=device)
        return "works" if (x @ x).sum().item() == 512 else "does not work: a product is wrong"
    except (RuntimeError, TypeError) as error:
        return f"does not work: {(str(error) or type(error).__name__).splitlines()[0]}"
