"""Child processes of a test: a test module run as a program, which a test can wait for, wake and kill."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import Process
from tests.support.waiting import PATIENCE, until

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
    """A module run as a program, with what it says in a file, so that no kill can lose it."""

    def __init__(self, said: Path, module: str, *arguments: object) -> None:
        self._said, self._complaints = said, said.with_name(f"{said.name}-errors")
        for file in (self._said, self._complaints):
            file.write_bytes(b"")
        self._process = Process(
            [*map(str, arguments)], module=module, folder=_ROOT, says=said, complains=self._complaints
        )
        self.tell = self._process.tell

    @property
    def lines(self) -> list[str]:
        """What the child has said so far."""
        return self._said.read_text().splitlines()

    @property
    def running(self) -> bool:
        return self._process.running

    def wait_for(self, line: str) -> None:
        """Returns when the child has said this line."""

        def said() -> bool:
            assert self.running or line in self.lines, f"it ended before {line!r}: {self.kill()}"
            return line in self.lines

        until(said)

    def finish(self) -> None:
        """Waits until the child has ended by itself, and well."""
        code, errors = self._process.wait(PATIENCE), self._complaints.read_text()
        assert code == 0, (code, errors)
        assert not errors, errors

    def kill(self) -> str:
        """kill -9, and what the child had complained of until then, which is told once."""
        self._process.end()
        if not self._complaints.exists():
            return ""
        complaints = self._complaints.read_text()
        self._complaints.unlink()
        return complaints


@contextmanager
def started(said: Path, module: str, *arguments: object) -> Iterator[Child]:
    """A child for the length of a `with`; at its end the child is killed, if it still runs."""
    child = Child(said, module, *arguments)
    try:
        yield child
    finally:
        complaints = child.kill()
    assert not complaints, complaints
