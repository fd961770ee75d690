"""Servers that the acceptance tests share; each test writes to a room of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.server import PATIENCE, Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`alcove serve` with no configuration but a port and a file."""
    with Server(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as connected:
        yield connected


@pytest.fixture
def room() -> list[str]:
    """A namespace of noop's that no other test writes to."""
    return ["user", "noop", uuid.uuid4().hex]
