"""Processes of a test, forked from one that has Alcove loaded: loading it is most of what a start costs.

They are given what a shell would give them: words, an environment, a folder, and files for what they say.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Protocol, TypeVar

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "alcove.cli", "alcove.server.startup", "tests.support.concurrent_workers"]
)


class Ending(Protocol):
    """Something that runs until it is ended."""

    def end(self) -> None: ...


E = TypeVar("E", bound=Ending)


@contextmanager
def in_own_folder(start: Callable[[Path], E]) -> Iterator[E]:
    """A server for the length of a `with`, in a throw-away folder that its user can enter."""
    with TemporaryDirectory() as folder:
        server = start(Path(folder))
        try:
            yield server
        finally:
            server.end()


class Process:
    """A process in a session of its own, and how to wait for it and end it.

    It runs the `alcove` command with some words, or, if told of a `module`, that as a program.
    """

    def __init__(
        self,
        words: list[str],
        *,
        module: str | None = None,
        folder: Path,
        says: Path,
        complains: Path | None = None,
        env: Mapping[str, str] = os.environ,
        files: int | None = None,
    ) -> None:
        self._its_input, self._input = _CONTEXT.Pipe(duplex=False)
        given = (words, module, folder, says, complains or says, dict(env), files, self._its_input)
        self._process = _CONTEXT.Process(target=_become, args=given)
        self._process.start()
        self._its_input.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.exitcode is None

    def tell(self, line: str) -> None:
        """Gives it a line to read."""
        os.write(self._input.fileno(), line.encode() + b"\n")

    def signal(self, number: int) -> None:
        if self.running:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Waits for its end: the exit code, minus a signal's number; None if it still runs after all."""
        self._process.join(seconds)
        return self._process.exitcode

    def end(self, *, patience: float = 0) -> None:
        """SIGTERM, if it has some time to end by itself, and SIGKILL for all that is left of its session."""
        if patience:
            self.signal(signal.SIGTERM)
            self.wait(patience)
        self.signal(signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()
        self._input.close()


@contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    """Stops processes for the length of a `with`; it should be short, or their parent replaces them."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def stop_server() -> None:
    """Ends the process that the others are forked from, once the last of them has ended.

    It is waited for, so that what all of them took of the processor is counted as this process's.
    """
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def _become(
    words: list[str],
    module: str | None,
    folder: Path,
    says: Path,
    complains: Path,
    env: dict[str, str],
    files: int | None,
    given: Connection,
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, says), (2, complains)):
        written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(written, number)
        os.close(written)
    os.dup2(given.fileno(), 0)
    given.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for as long as the process lives
    if files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    sys.argv = ["alcove" if module is None else module, *words]
    sys.modules["__main__"] = ModuleType("__main__")  # a worker process would load the one of the tests
    if module is None:
        from alcove.cli import main  # noqa: PLC0415  loaded already

        main(prog_name="alcove")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
