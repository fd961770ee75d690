"""Talking to one worker of a service and not to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from tests.support.processes import standing_still
from tests.support.service import Service
from tests.support.waiting import PATIENCE, until


@contextmanager
def one_client_each(service: Service, workers: int = 2) -> Iterator[list[httpx.Client]]:
    """A client for each worker, whose one connection that worker has taken while the others stood still."""
    until(lambda: len(service.children()) == workers)
    pids = service.children()
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(service)) for _ in pids]
        for pid, client in zip(pids, clients, strict=True):
            with standing_still([other for other in pids if other != pid]):
                assert client.get("/readyz").status_code == 200
        yield clients


def connected(service: Service) -> httpx.Client:
    """A client that keeps to one connection, however long it is idle."""
    limits = httpx.Limits(max_connections=1, keepalive_expiry=None)
    return httpx.Client(base_url=service.url, timeout=PATIENCE, trust_env=False, limits=limits)
