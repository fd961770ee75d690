"""What a node learns of PostgreSQL beside its calls: that somebody has written, and what time it is there.

Nodes whose own clocks differ go by one clock, the database server's.
"""

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
"""How long the server's clock is told by what was measured."""
AGAIN_SECONDS = 1.0
"""Until a connection is tried again that was lost."""
GATHER_SECONDS = 0.01
"""For which what is heard is gathered, so that many commits cost as much as one."""
STOP_SECONDS = 5.0
_MEASURES = 3
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


class ServerClock:
    """The server's clock as it was when it was last asked, and as much later as has passed here since."""

    def __init__(self) -> None:
        self._ahead = 0

    def __call__(self) -> int:
        return time.monotonic_ns() // 1000 + self._ahead

    def measure(self, connection: Raw) -> None:
        """Asks the server a few times: the quickest answer tells best."""
        found = []
        for _ in range(_MEASURES):
            before = time.monotonic_ns() // 1000
            ((told,),) = connection.execute(_NOW)
            after = time.monotonic_ns() // 1000
            found.append((after - before, told - (before + after) // 2))
        self._ahead = min(found)[1]


class Listener:
    """One connection of this process on which it is told of every commit, and a thread that tells others."""

    def __init__(self, connect: Callable[[], Raw], clock: ServerClock, channel: str) -> None:
        """`channel`: where all who have this store open are told, and nobody else."""
        self._connect = connect
        self._channel = channel
        self._clock = clock
        self._told: list[Callable[[], None]] = []
        self._stopping = self._unsaid = False
        self._thread: threading.Thread | None = None
        self._wakes, self._wake = os.pipe()

    def tell(self, call: Callable[[], None]) -> None:
        """Calls it, on the listener's thread, soon after each commit, and where some may have been missed."""
        self._told.append(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="alcove-listening", daemon=True)
            self._thread.start()

    @property
    def listens(self) -> bool:
        """Whether its thread runs; where it does not, who commits has to say so."""
        return self._thread is not None

    def wrote(self) -> None:
        """Tells all who listen, this one included, soon after a commit: many cost them as much as one."""
        if not self._unsaid:
            self._unsaid = True
            os.write(self._wake, b"!")

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        os.write(self._wake, b"!")
        if self._thread:
            self._thread.join(STOP_SECONDS)
        if not (self._thread and self._thread.is_alive()):
            os.close(self._wakes)
            os.close(self._wake)

    def _run(self) -> None:
        while not self._stopping:
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {self._channel}")
                    self._unsaid = True  # what was committed while nobody listened
                    self._listen(connection)
                    self._say(connection)
            except psycopg.Error as error:
                log.warning("listening: %s; trying again", str(error).strip().partition("\n")[0])
                self._wait(self._wakes, seconds=AGAIN_SECONDS)

    def _listen(self, connection: Raw) -> None:
        renewed = -RENEW_SECONDS
        while not self._stopping:
            if time.monotonic() - renewed >= RENEW_SECONDS:
                self._clock.measure(connection)
                renewed = time.monotonic()
                self._tell_all()  # of what came before, or while it measured
            heard = self._say(connection)
            if not (heard or self._wait(connection.fileno(), self._wakes, seconds=RENEW_SECONDS)):
                continue
            time.sleep(GATHER_SECONDS)
            connection.pgconn.consume_input()
            if connection.pgconn.status != ConnStatus.OK:
                raise psycopg.OperationalError("the server hung up")
            while connection.pgconn.notifies():
                heard = True
            if heard:
                self._tell_all()

    def _say(self, connection: Raw) -> bool:
        """Says that something was committed, where something was."""
        if self._wait(self._wakes, seconds=0):
            os.read(self._wakes, 64)
        unsaid, self._unsaid = self._unsaid, False
        if unsaid:
            connection.execute(f"NOTIFY {self._channel}")
        return unsaid

    def _tell_all(self) -> None:
        for call in self._told:
            try:
                call()
            except AlcoveError as error:  # the next commit, or its own pause, has it look again
                log.debug("listening: %s", error.message)

    def _wait(self, *files: int, seconds: float) -> list[int]:
        """Which of some files have something to read, by then."""
        look = select.poll()
        for each in files:
            look.register(each, select.POLLIN)
        return [file for file, _ in look.poll(seconds * 1000)]
