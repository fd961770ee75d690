"""The server's processes, and how they stop: the first signal lets requests finish, the second does not."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from alcove.http.tallies import forget

ACCEPTED_AT_ONCE = 16


def listening(config: uvicorn.Config) -> list[socket.socket]:
    """One bound socket, as many times as connections should be taken in one round of the event loop.

    libuv takes one connection a round from each socket it listens on, and a round under load lasts many
    requests: sixty-four clients that come at once would wait half a second for the last of them.
    """
    bound = config.bind_socket()
    return [bound, *(bound.dup() for _ in range(ACCEPTED_AT_ONCE - 1))]


async def stop_with(parent: int) -> None:
    """Stops this worker when its parent is gone, however that came about: nobody serves unattended.

    One that died while this worker was starting is no longer its parent, but is still who started it.
    """
    starter = multiprocessing.parent_process()
    while os.getppid() == (starter.pid if starter else parent):
        await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def when_stopping(call: Callable[[], None]) -> None:
    """Calls when this process is told to stop, before the server waits for its requests to end."""
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, _after(call, signal.getsignal(sig)))


def _after(call: Callable[[], None], then: Any) -> Any:
    def handle(sig: int, frame: FrameType | None) -> None:
        call()
        if callable(then):
            then(sig, frame)

    return handle


class One(uvicorn.Server):
    """A server in this process."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)


class Several(Multiprocess):
    """Workers that share the listening sockets; one that dies is replaced."""

    def __init__(self, config: uvicorn.Config, tallies: Path) -> None:
        super().__init__(config, sockets=listening(config))
        self._stopping = False
        self._tallies = tallies
        self._workers: set[int] = set()
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._stop)

    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        workers = {worker.pid for worker in self.processes if worker.pid}
        for gone in self._workers - workers:
            forget(self._tallies, gone)
        self._workers = workers

    def terminate_all(self) -> None:
        super().terminate_all()
        for each in self.sockets:  # so that new callers are turned away and not left to wait
            each.close()

    def _stop(self, sig: int, frame: FrameType | None) -> None:
        if self._stopping:
            for worker in self.processes:
                worker.process.kill()
            shutil.rmtree(self._tallies, ignore_errors=True)
            os._exit(128 + sig)
        self._stopping = True
        self.signal_queue.append(sig)
