"""The server's processes, and how they stop: the first signal lets requests finish, the second does not."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from alcove.core.errors import AlcoveError

log = logging.getLogger("alcove.http")
FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""What prometheus-client calls the folder of counts: it looks at no other place."""
_MEMORY = "/dev/shm"  # noqa: S108  a fresh folder of our own is made in it
ACCEPTED_AT_ONCE = 16
_MOST_FILES = 65536
_OWN_FILES = 128
"""Files of the store, the log and the counts."""
_BETWEEN_STARTS = 5.0
"""Seconds until a worker that could not start is tried again."""


def listening(config: uvicorn.Config) -> list[socket.socket]:
    """One bound socket, as many times as connections should be taken in one round of the event loop.

    libuv takes one connection a round from each socket it listens on, and a round under load lasts many
    requests: sixty-four clients that come at once would wait half a second for the last of them.
    """
    bound = config.bind_socket()
    return [bound, *(bound.dup() for _ in range(ACCEPTED_AT_ONCE - 1))]


def requests_at_once(wanted: int) -> int:
    """How many requests this process can serve at once, of so many: as open files allow.

    Each is a connection, beside as many streams and as many that wait; it first raises the limit of files.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = _MOST_FILES if most == resource.RLIM_INFINITY else min(most, _MOST_FILES)
    if files < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
    possible = (max(files, raised) - _OWN_FILES) // 3
    if possible < wanted:
        log.warning("at most %d requests at once: raise the limit of open files (ulimit -n)", possible)
    return max(1, min(wanted, possible))


async def stop_with_parent() -> None:
    """Stops this worker when its parent is gone, however that came about: nobody serves unattended.

    One that died while this worker was starting is no longer its parent, but is still who started it.
    """
    starter = multiprocessing.parent_process()
    parent = starter.pid if starter else os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def when_hung_up(call: Callable[[], None]) -> None:
    """Calls at SIGHUP, in a thread, so that no request waits for it."""
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=call, name="reload").start())


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder in which workers keep their counts, so that any of them can answer for all.

    The environment of every process that is started meanwhile names it. It lies in memory where a folder
    can: counts are written through a mapping, and on a full disk that would end a worker rather than fail.
    """
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix="alcove-", dir=memory, ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[FOLDER]


class SingleProcess(uvicorn.Server):
    """A server in this process."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)


class Workers(Multiprocess):
    """Workers that share the listening sockets; one that dies is replaced.

    Where none can start, all of it ends. Where others serve, one that cannot (specs or policies were broken
    since) is tried again every few seconds.
    """

    def __init__(self, config: uvicorn.Config, counts: Path, *, reopen: Callable[[], None]) -> None:
        super().__init__(config, sockets=listening(config))
        self._stopping = False
        self._counts = counts
        self._reopen = reopen
        self._workers: set[int] = set()
        self._to_reload: set[int] = set()
        self._next_start = 0.0
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._stop)

    def run(self) -> None:
        super().run()
        if any(each.exitcode == STARTUP_FAILURE for each in self.processes):
            raise AlcoveError("no worker could start; the log says why")

    def handle_hup(self) -> None:
        """Opens this process's log anew, and has every worker reload; one that starts once it is ready."""
        with suppress(OSError):  # the workers say so, too
            self._reopen()
        self._to_reload = {each.pid for each in self.processes if each.pid}

    def keep_subprocess_alive(self) -> None:
        self._set_aside()
        super().keep_subprocess_alive()
        self._set_aside()  # one that failed meanwhile
        while len(self.processes) < self.processes_num and time.monotonic() >= self._next_start:
            self.processes.append(Process(self.config, self.sockets))
            self.processes[-1].start()
        for each in self.processes:
            if each.pid in self._to_reload and each.is_ready():
                os.kill(each.pid, signal.SIGHUP)
                self._to_reload.discard(each.pid)
        workers = {worker.pid for worker in self.processes if worker.pid}
        for gone in self._workers - workers:
            for gauges in self._counts.glob(f"gauge_live*_{gone}.db"):
                gauges.unlink(missing_ok=True)  # what it was doing; what it did stays counted
        self._workers = workers

    def _set_aside(self) -> None:
        """Takes workers that could not start off the list while there are others: uvicorn would end all."""
        fit = [each for each in self.processes if each.exitcode != STARTUP_FAILURE]
        if 0 < len(fit) < len(self.processes) and not self._stopping:
            self.processes, self._next_start = fit, time.monotonic() + _BETWEEN_STARTS
            self.should_exit.clear()

    def terminate_all(self) -> None:
        super().terminate_all()
        for each in self.sockets:  # so that new callers are turned away and not left to wait
            each.close()

    def _stop(self, sig: int, frame: FrameType | None) -> None:
        if self._stopping:
            for worker in self.processes:
                worker.process.kill()
            shutil.rmtree(self._counts, ignore_errors=True)
            os._exit(128 + sig)
        self._stopping = True
        self.signal_queue.append(sig)
