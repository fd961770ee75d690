"""What the acceptance tests share: a service, in which each test writes to a room of its own, and a store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from alcove import Alcove
from tests.support.agent_service import SPECS, Table
from tests.support.command import Command
from tests.support.concurrent_workers import QUIET, Crowd, in_processes, in_threads
from tests.support.service import Service, serving
from tests.support.tokens import FLAGS


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`alcove serve` with no configuration but a port and a file."""
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A service with agents, for users with tokens; each test has players of its own."""
    folder = tmp_path_factory.mktemp("table")
    (specs := folder / "agents.yaml").write_text(SPECS)
    with serving(folder, *FLAGS, "--agents", specs) as running:
        yield Table(running, specs)


@pytest.fixture(scope="session")
def client(service: Service) -> httpx.Client:
    return service.client


@pytest.fixture
def room() -> list[str]:
    """A namespace of noop's that no other test writes to."""
    return ["user", "noop", uuid.uuid4().hex]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store may be made; nothing is there yet."""
    return tmp_path / "memory.db"


@pytest.fixture
def memory(path: Path) -> Iterator[Alcove]:
    """A store that is swept only when told to."""
    with Alcove(path, settings=QUIET) as memory:
        yield memory


@pytest.fixture
def to(path: Path) -> Path:
    """Where a backup of that store goes."""
    return path.with_name("backup.db")


@pytest.fixture(params=[in_processes, in_threads])
def crowd(request: pytest.FixtureRequest) -> Crowd:
    """A test that uses this runs once with a crowd of processes and once with one of threads."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["file", "url"])
def command(request: pytest.FixtureRequest, path: Path) -> Command:
    """The `alcove` command; a test that uses this runs once on a file and once on a URL."""
    if request.param == "file":
        Alcove(path, settings=QUIET).close()
        return Command(str(path))
    service = request.getfixturevalue("service")
    return Command(service.url, service.at)
