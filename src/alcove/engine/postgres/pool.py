"""The pool of connections with which a node reads a PostgreSQL database.

psycopg's own pool connects from background threads, for which callers wait while the server is down. Here a
caller gets an error at once, and the next caller connects again.
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
    """Connections for one thread at a time; the one that was released last is used first."""

    def __init__(self, connect: Callable[[], C], *, max_size: int, timeout_seconds: float) -> None:
        """`timeout_seconds`: how long a caller waits if all connections are in use."""
        self._connect = connect
        self._permits = SimpleQueue[None]()  # a semaphore is written in Python and would slow each get
        for _ in range(max_size):
            self._permits.put(None)
        self._timeout_seconds = timeout_seconds
        self._idle: list[C] = []
        self._mutex = threading.Lock()
        self._closed = False

    def acquire(self, *, wait: bool = True) -> C:
        """Returns a connection that is alive, as far as the socket shows."""
        try:
            self._permits.get(timeout=self._timeout_seconds if wait else 0)
        except Empty:
            raise Unavailable("the database is busy: all connections are in use; try again later") from None
        try:
            while connection := self._pop():
                if is_alive(connection):
                    return connection
                connection.close()
            return self._connect()
        except BaseException:
            self._permits.put(None)
            raise

    def release(self, connection: C) -> None:
        """Takes a connection back; it closes one that failed or is still in a transaction."""
        is_idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
        with self._mutex:
            is_reusable = is_idle and not self._closed
            if is_reusable:
                self._idle.append(connection)
        self._permits.put(None)
        if not is_reusable:
            connection.close()

    def close(self) -> None:
        """Closes idle connections now, and the others when they are released."""
        with self._mutex:
            self._closed = True
        while connection := self._pop():
            connection.close()

    def _pop(self) -> C | None:
        with self._mutex:
            return self._idle.pop() if self._idle else None


def is_alive(connection: Raw) -> bool:
    """True if the server has not closed an idle connection: it would have sent something."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def reconnect_if_lost(connection: C | None, connect: Callable[[], C]) -> C:
    """Returns the same connection if it is alive, or a new one."""
    if connection is not None:
        if is_alive(connection):
            return connection
        connection.close()
    return connect()
