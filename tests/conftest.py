"""One thread, one seed: a test that fails on one machine fails on all."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from helpers import SEED

# Some virtual machines announce AMX and then trap on it: any bfloat16 product in torch ends in "illegal instruction". Every other
# instruction set stays in use; oneDNN reads this at its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch.set_num_threads(1)

# No test reads or fills the cache of the person who runs it.
os.environ["FORMERS_CACHE"] = tempfile.mkdtemp(prefix="formers-cache-")
atexit.register(shutil.rmtree, os.environ["FORMERS_CACHE"], ignore_errors=True)

settings.register_profile("formers", deadline=None, derandomize=True, max_examples=8)
settings.load_profile("formers")


@pytest.fixture(autouse=True)
def seed() -> int:
    """Every test starts from the same random numbers."""
    torch.manual_seed(SEED)
    return SEED


SLOW = ("learn", "browser", "faults")
"""Folders whose tests train for long, drive a browser or start processes: they are marked slow, as single tests elsewhere are."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of some folders slow."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in SLOW:
            item.add_marker(pytest.mark.slow)
