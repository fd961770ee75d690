"""Child processes of a test: a test module run as a program, which a test can wait for, wake and kill."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.patience import PATIENCE

_ROOT = Path(__file__).parents[2]


def say(*words: object) -> None:
    """One line on standard output that is out of this process when it returns, whoever kills it then."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def limit_files(size: int) -> None:
    """Lets this process write no file beyond a size, which is like a full disk, needs no rights and
    can be taken back; Python ignores the signal that comes with it.
    """
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def unlimit_files() -> None:
    """Takes the limit back."""
    limit_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])


class Child:
    """`python -m <module> <arguments>`, with what it says in a file, so that no kill can lose it."""

    def __init__(self, said: Path, module: str, *arguments: object) -> None:
        self._said = said
        command = [sys.executable, "-m", module, *map(str, arguments)]
        with said.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.PIPE, cwd=_ROOT
            )

    @property
    def lines(self) -> list[str]:
        """What the child has said so far."""
        return self._said.read_text().splitlines()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, line: str) -> None:
        """Returns when the child has said this line."""
        deadline = time.monotonic() + PATIENCE
        while line not in self.lines:
            assert self.running or line in self.lines, f"it ended before {line!r}: {self.kill()}"
            assert time.monotonic() < deadline, f"it never said {line!r}, but {self.lines[-3:]}"
            time.sleep(0.001)

    def tell(self, line: str) -> None:
        """Gives the child a line to read."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Waits until the child has ended by itself, and well."""
        _, errors = self._process.communicate(timeout=PATIENCE)
        assert self._process.returncode == 0, errors.decode()
        assert not errors, errors.decode()

    def kill(self) -> str:
        """kill -9, and what the child had complained of until then."""
        self._process.kill()
        return self._process.communicate(timeout=PATIENCE)[1].decode() if self._unread else ""

    @property
    def _unread(self) -> bool:
        return self._process.stderr is not None and not self._process.stderr.closed


@contextmanager
def started(said: Path, module: str, *arguments: object) -> Iterator[Child]:
    """A child for the length of a `with`; at its end the child is killed, if it still runs."""
    child = Child(said, module, *arguments)
    try:
        yield child
    finally:
        complaints = child.kill()
    assert not complaints, complaints
