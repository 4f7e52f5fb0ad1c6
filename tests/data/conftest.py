"""A cache of its own for every test, and the published data sets where there are any."""

from __future__ import annotations

import os

import pytest

GIVEN = os.environ.get("FORMERS_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no folder of data."""
    monkeypatch.setenv("FORMERS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FORMERS_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def published(monkeypatch):
    """The folder with the published data sets."""
    if not GIVEN:
        pytest.skip("FORMERS_DATA is not set")
    monkeypatch.setenv("FORMERS_DATA", GIVEN)
    return GIVEN
