"""The connections that a node reads a PostgreSQL database with.

psycopg's own pool connects from threads of its own, and whoever asks while the server is away waits for them.
Here it is told at once, and a server that is back is found by the next who asks.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from alcove.core.errors import Unavailable

Raw = psycopg.Connection[tuple[Any, ...]]
C = TypeVar("C", bound=Raw)


class Pool(Generic[C]):
    """Connections that one user at a time has, the one given back last first; at most so many at once."""

    def __init__(self, connect: Callable[[], C], *, most: int, patience: float) -> None:
        """`patience`: the seconds that somebody waits for one where all are in use."""
        self._connect = connect
        self._places = SimpleQueue[None]()  # a semaphore is written in Python, and costs each get
        for _ in range(most):
            self._places.put(None)
        self._patience = patience
        self._idle: list[C] = []
        self._mutex = threading.Lock()
        self._closed = False

    def take(self, *, wait: bool = True) -> C:
        """One that is alive, as far as can be told without asking the server."""
        try:
            self._places.get(timeout=self._patience if wait else 0)
        except Empty:
            busy = "the database is busy: every connection to it has been in use for too long"
            raise Unavailable(busy) from None
        try:
            while found := self._pop():
                if alive(found):
                    return found
                found.close()
            return self._connect()
        except BaseException:
            self._places.put(None)
            raise

    def give(self, connection: C) -> None:
        """Takes one back; one that broke, or whose user stopped half-way, is closed."""
        sound = connection.pgconn.transaction_status == TransactionStatus.IDLE
        with self._mutex:
            kept = sound and not self._closed
            if kept:
                self._idle.append(connection)
        self._places.put(None)
        if not kept:
            connection.close()

    def close(self) -> None:
        """Closes those that nobody has, and the others when they are given back."""
        with self._mutex:
            self._closed = True
        while found := self._pop():
            found.close()

    def _pop(self) -> C | None:
        with self._mutex:
            return self._idle.pop() if self._idle else None


def alive(connection: Raw) -> bool:
    """Whether the server has not hung up on a connection that nobody uses: nothing has come in meanwhile."""
    if connection.closed:
        return False
    look = select.poll()
    look.register(connection.fileno(), select.POLLIN)
    return not look.poll(0)


def renewed(connection: C | None, connect: Callable[[], C]) -> C:
    """The same connection if it is alive, or another instead."""
    if connection is not None:
        if alive(connection):
            return connection
        connection.close()
    return connect()
