"""Notifications of commits, and the server's clock, which all nodes use because their own clocks differ."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

import psycopg
from psycopg.pq import ConnStatus

from alcove.core.errors import AlcoveError
from alcove.engine.postgres.pool import Raw

log = logging.getLogger("alcove")
RENEW_SECONDS = 60.0
"""How long a measurement of the server's clock is used."""
RETRY_SECONDS = 1.0
"""Pause before it reconnects after it lost the connection."""
GATHER_SECONDS = 0.01
"""How long notifications accumulate, so that many commits cost as much as one."""
STOP_SECONDS = 5.0
_MEASURES = 3
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class ServerClock:
    """The server's clock: its time when it was last measured, plus the time that has passed here since."""

    def __init__(self) -> None:
        self._offset = 0

    def __call__(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset

    def measure(self, connection: Raw) -> None:
        """Asks the server several times: the fastest answer is the most exact."""
        measurements = []
        for _ in range(_MEASURES):
            before = time.monotonic_ns() // 1000
            ((server_time,),) = connection.execute(_NOW)
            after = time.monotonic_ns() // 1000
            measurements.append((after - before, server_time - (before + after) // 2))
        self._offset = min(measurements)[1]


class Listener:
    """A connection of this process that receives notifications, and a thread that passes them on."""

    def __init__(self, connect: Callable[[], Raw], clock: ServerClock, channel: str) -> None:
        """`channel`: the one that all nodes of this store share, and no other store."""
        self._connect = connect
        self._channel = channel
        self._clock = clock
        self._calls: list[Callable[[], None]] = []
        self._stopping = self._is_unannounced = False
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe()

    def on_commit(self, call: Callable[[], None]) -> None:
        """Registers a function to call soon after each commit, also after commits that it may have missed."""
        self._calls.append(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="alcove-listening", daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        """True if its thread runs; otherwise each writer must notify listeners itself."""
        return self._thread is not None

    def announce_commit(self) -> None:
        """Notifies all listeners, this one included, soon after a commit; many commits share one."""
        if not self._is_unannounced:
            self._is_unannounced = True
            os.write(self._wake_write, b"!")

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        os.write(self._wake_write, b"!")
        if self._thread:
            self._thread.join(STOP_SECONDS)
        if not (self._thread and self._thread.is_alive()):
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while not self._stopping:
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {self._channel}")
                    self._is_unannounced = True  # there may have been commits without a listener
                    self._listen(connection)
                    self._notify(connection)
            except psycopg.Error as error:
                log.warning("listening: %s; trying again", str(error).strip().partition("\n")[0])
                self._wait(self._wake_read, seconds=RETRY_SECONDS)

    def _listen(self, connection: Raw) -> None:
        measured_at = -RENEW_SECONDS
        while not self._stopping:
            if time.monotonic() - measured_at >= RENEW_SECONDS:
                self._clock.measure(connection)
                measured_at = time.monotonic()
                self._call_all()  # for commits before, or while it measured
            is_notified = self._notify(connection)
            if not (is_notified or self._wait(connection.fileno(), self._wake_read, seconds=RENEW_SECONDS)):
                continue
            time.sleep(GATHER_SECONDS)
            connection.pgconn.consume_input()
            if connection.pgconn.status != ConnStatus.OK:
                raise psycopg.OperationalError("the server closed the connection")
            while connection.pgconn.notifies():
                is_notified = True
            if is_notified:
                self._call_all()

    def _notify(self, connection: Raw) -> bool:
        """Sends a notification if there was a commit; returns whether there was."""
        if self._wait(self._wake_read, seconds=0):
            os.read(self._wake_read, 64)
        had_commit, self._is_unannounced = self._is_unannounced, False
        if had_commit:
            connection.execute(f"NOTIFY {self._channel}")
        return had_commit

    def _call_all(self) -> None:
        for call in self._calls:
            try:
                call()
            except AlcoveError as error:  # the next commit, or its own timer, calls it again
                log.debug("listening: %s", error.message)

    def _wait(self, *files: int, seconds: float) -> list[int]:
        """Waits until files are readable; returns those."""
        poll = select.poll()
        for each in files:
            poll.register(each, select.POLLIN)
        return [file for file, _ in poll.poll(seconds * 1000)]
