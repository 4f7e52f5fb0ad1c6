"""A real browser for the tests of pages.

Chromium comes from the system (`make browser`). Without it these tests are skipped, or fail where FORMERS_BROWSER=required.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path, sync_playwright = None, None
    if path is None:
        missing = pytest.fail if os.environ.get("FORMERS_BROWSER") == "required" else pytest.skip
        missing("no Chromium, or no playwright to drive it: run `make browser` and `make setup`")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()
