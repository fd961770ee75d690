"""Nodes of one store in PostgreSQL: `alcove serve` processes that share a database and a key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest

from alcove import Alcove, Settings
from tests.support.postgres import Server
from tests.support.processes import in_own_folder
from tests.support.service import Service, serving
from tests.support.waiting import PATIENCE

HOME = ["user", "noop"]


def own_server() -> AbstractContextManager[Server]:
    """A PostgreSQL that a test may stop."""
    return in_own_folder(Server)


@contextmanager
def node(folder: Path, address: str, *flags: object, skew: int | None = None) -> Iterator[Service]:
    state = {"ALCOVE_STATE": str(folder)}
    with serving(folder, "--engine", address, *flags, env=state, skew=skew) as running:
        yield running


@contextmanager
def two_nodes(folder: Path, address: str, *flags: object) -> Iterator[tuple[Service, Service]]:
    """Both started at the same time."""
    with ExitStack() as open_until_the_end:
        started: list[Service] = []

        def start() -> None:
            started.append(open_until_the_end.enter_context(node(folder, address, *flags)))

        threads = [threading.Thread(target=start) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(started) == 2, "one of them did not start"
        yield started[0], started[1]


def opened(folder: Path, address: str, **options: object) -> Alcove:
    """The same store in this process, swept only when told to."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ALCOVE_STATE", str(folder))
        usual = {"settings": Settings(sweep_interval=0), "embedder": None}
        return Alcove(address, **{**usual, **options})  # type: ignore[arg-type]


class Load:
    """Threads that put new keys by way of a node, one after the other, until they are told to stop."""

    def __init__(self, service: Service, name: str, threads: int = 3) -> None:
        self.acknowledged: list[str] = []
        self.refused: list[httpx.Response] = []
        self.cut_off = 0
        """Requests that got no answer."""
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(service.url, f"{name}-{n}")) for n in range(threads)
        ]
        for each in self._threads:
            each.start()

    def _write(self, url: str, name: str) -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            for n in count():
                if self._stopping.is_set():
                    return
                body = {"namespace": HOME, "key": f"{name}-{n}", "value": {"n": n}}
                try:
                    answer = client.put("/v1/memories", json=body)
                except httpx.TransportError:
                    self.cut_off += 1
                    self._stopping.wait(0.01)
                    continue
                if answer.status_code == 200:
                    self.acknowledged.append(body["key"])  # type: ignore[arg-type]
                else:
                    self.refused.append(answer)
                    self._stopping.wait(0.01)

    def stop(self) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join()
