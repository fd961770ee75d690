"""What the tests of adapters share: a store in a file and at a URL, a scripted model, and no telemetry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.file_and_url import SPECS, Place, served
from tests.support.llm_server import llm  # noqa: F401
from tests.support.service import Service


@pytest.fixture(scope="session")
def helped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`alcove serve` for users with tokens, with the agent of `tests.support.file_and_url`."""
    with served(tmp_path_factory.mktemp("helped")) as running:
        yield running


@pytest.fixture(params=["file", "url"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a store is; a test that uses this runs once with a file and once with a URL."""
    (specs := tmp_path / "agents.yaml").write_text(SPECS)
    at = tmp_path / "memory.db" if request.param == "file" else request.getfixturevalue("helped")
    return Place(at, specs)
