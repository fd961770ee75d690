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
"""The variable in which prometheus-client looks for the folder of metrics."""
_MEMORY = "/dev/shm"  # noqa: S108  a fresh folder of our own is made in it
ACCEPTS_PER_ROUND = 16
_MAX_FILES = 65536
_OWN_FILES = 128
"""Open files of the store, the log and the metrics."""
_RESTART_SECONDS = 5.0
"""Seconds until a worker that could not start is started again."""


def bind_sockets(config: uvicorn.Config) -> list[socket.socket]:
    """Duplicates of one bound socket, one for each connection to accept in a round of the event loop.

    libuv accepts one connection per round and socket, and under load a round lasts many requests: the last of
    sixty-four simultaneous clients would wait half a second.
    """
    bound = config.bind_socket()
    return [bound, *(bound.dup() for _ in range(ACCEPTS_PER_ROUND - 1))]


def limit_requests(max_requests: int) -> int:
    """Lowers a number of simultaneous requests to what the limit of open files allows.

    There may be as many streams and idle connections as requests. First raises the limit as far as possible.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    raised = _MAX_FILES if most == resource.RLIM_INFINITY else min(most, _MAX_FILES)
    if files < raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
    possible = (max(files, raised) - _OWN_FILES) // 3
    if possible < max_requests:
        log.warning("at most %d requests at once: raise the limit of open files (ulimit -n)", possible)
    return max(1, min(max_requests, possible))


async def stop_with_parent() -> None:
    """Stops this worker when its parent has died, for whatever reason.

    If that died while this worker was starting, another process is the parent now; so this compares with the
    process that started it.
    """
    starter = multiprocessing.parent_process()
    parent = starter.pid if starter else os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def on_hangup(call: Callable[[], None]) -> None:
    """Calls a function at each SIGHUP, in a thread, so that no request waits for it."""
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=call, name="reload").start())


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A new folder in which workers keep their metrics, so that each can report those of all.

    The environment of all processes that start in the block names it. It is in memory if possible: metrics
    are mapped files, and on a full disk writing to one would kill the worker.
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

    If no worker can start, the service ends. If others serve, a worker that cannot start (because specs or
    policies have become invalid) is started again every few seconds.
    """

    def __init__(self, config: uvicorn.Config, counts: Path, *, reopen: Callable[[], None]) -> None:
        super().__init__(config, sockets=bind_sockets(config))
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
        """Reopens the log of this process and lets all workers reload, each as soon as it is ready."""
        with suppress(OSError):  # the workers log it, too
            self._reopen()
        self._to_reload = {each.pid for each in self.processes if each.pid}

    def keep_subprocess_alive(self) -> None:
        self._drop_failed()
        super().keep_subprocess_alive()
        self._drop_failed()  # one may have failed since
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
                gauges.unlink(missing_ok=True)  # gauges end with their worker; its counters stay
        self._workers = workers

    def _drop_failed(self) -> None:
        """Forgets workers that could not start while others serve: uvicorn would end all of them."""
        workers = [each for each in self.processes if each.exitcode != STARTUP_FAILURE]
        if 0 < len(workers) < len(self.processes) and not self._stopping:
            self.processes, self._next_start = workers, time.monotonic() + _RESTART_SECONDS
            self.should_exit.clear()

    def terminate_all(self) -> None:
        super().terminate_all()
        for each in self.sockets:  # so that new connections are refused instead of waiting
            each.close()

    def _stop(self, sig: int, frame: FrameType | None) -> None:
        if self._stopping:
            for worker in self.processes:
                worker.process.kill()
            shutil.rmtree(self._counts, ignore_errors=True)
            os._exit(128 + sig)
        self._stopping = True
        self.signal_queue.append(sig)
