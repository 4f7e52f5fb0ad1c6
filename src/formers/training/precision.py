"""The precision of a training on a device: float32 (with TF32 where it has it), bf16 by autocast, or fp16 with a scaled loss."""

from __future__ import annotations

import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from formers.core import FormersError
from formers.core.devices import capabilities

log = logging.getLogger(__name__)

WITHOUT_AMX = "AVX512_CORE_FP16"
PROBE = "import torch; x = torch.ones(32, 32, dtype=torch.bfloat16); (x @ x).sum().item()"


def prepare(precision: str, device: torch.device) -> None:
    """Raises for a precision that the device does not support, and disables AMX on processors that report it and trap on it."""
    host = capabilities(device).host
    if precision == "fp16" and host:
        raise FormersError("precision=fp16 needs a GPU: use bf16 or float32 on a CPU.")
    if precision == "bf16" and host and "ONEDNN_MAX_CPU_ISA" not in os.environ and announces_amx() and not computes():
        os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT_AMX  # read at the first matrix product
        log.info("AMX is disabled for bf16: this processor reports it and traps on it")


def words(precision: str, tf32: bool, device: torch.device) -> str:
    """The precision of a training in words; float32 products may be computed in TF32."""
    uses = tf32 and capabilities(device).tf32
    return f"{precision}, float32 products in TF32" if uses else precision


def announces_amx() -> bool:
    """Whether the processor reports AMX, the instructions that bf16 products use."""
    try:
        return platform.machine() == "x86_64" and "amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def computes(instructions: str | None = None) -> bool:
    """Whether a bf16 product works on the CPU, perhaps with fewer instructions (WITHOUT_AMX).

    It is tried in another process: some virtual machines report AMX and trap on it.
    """
    environment = os.environ if instructions is None else {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, env=environment).returncode == 0
