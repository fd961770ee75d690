"""What an engine asks of its database: statements by name, in a transaction or out of one.

A database brings these few methods, its schema and the statements that it spells otherwise. What an operation
does to a key, erasing, the queue of texts and administration are written once, above it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from alcove.core.clock import Clock, system_clock
from alcove.core.records import Residue
from alcove.engine.filter_sql import FilterCompiler
from alcove.engine.rows.versions import CopyProgress
from alcove.engine.scope import Scope
from alcove.engine.statements import Params, Value, load

Bound = Sequence[Value] | Mapping[str, Value]
"""What a statement is run with."""
Findings = Iterator[tuple[str, int, list[str]]]
"""Checks: what each compares, how many it compared, and what it found."""
RuledOut = Callable[[int], bool]
"""Whether a reader has no use for a version, by its sequence number."""


class Found(Protocol):
    """The rows that a statement found."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...
    def fetchone(self) -> tuple[Any, ...] | None: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...

    @property
    def get(self) -> Any:
        """The first row, or its value where that is all it has; None where there is no row."""


class Connection(Protocol):
    """One connection, of which its user is the only one for a while."""

    def run(self, name: str, params: Bound = (), **parts: str) -> Found:
        """Runs a statement by its name, with `{parts}` of it filled in."""

    def run_kept(self, name: str, params: Bound = (), **parts: str) -> Found:
        """The same where these parts come again and again: it is planned once."""

    def run_each(self, name: str, every: Iterable[Sequence[Value]]) -> object:
        """Runs a statement once for each set of parameters."""

    def load(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        """Adds rows to a table as they are, many at once."""

    def send(self) -> None:
        """Has the statements of a snapshot under way that no answer was asked for yet."""

    def changed(self, name: str, *params: Value) -> int:
        """Runs a statement; how many rows it changed."""

    def mark(self, name: str) -> int:
        """A number that the store keeps about itself."""

    def added(self) -> int:
        """The number that the last row got which was added."""

    def checks(self, file: str) -> Findings:
        """Runs a file of checks, each two statements: how many were compared, and which are wrong."""


class Database(ABC):
    """The connections to one database: a writer that takes turns, and readers as they are needed."""

    filters: FilterCompiler
    clock: Clock = staticmethod(system_clock)
    """What time it is for all who have it open."""
    finds_candidates = False
    """Whether it finds the likeliest texts of a subtree by itself, see `CandidateIndex`."""
    candidates_missing: str | None = None
    """What it lacks for that, where it could otherwise."""
    keeps_digests = False
    """Whether it keeps what a subtree is searched by that is too large to hold: see `QuantizedIndex`."""
    far = False
    """Whether an answer is a journey to a server, so that what will be asked is best asked at once."""

    @abstractmethod
    def write(
        self, *, undo: bool = False, durable: bool = True, in_turn: bool = True
    ) -> AbstractContextManager[Connection]:
        """One write transaction, when its turn comes; with `undo` it is as if it had never been.

        Its statements may be sent together: an answer is waited for where it is read, or else at the commit.
        One that is not `durable` does not wait for the disk: a power failure may undo it, as a whole, until
        the next durable one is committed. That is for what can be made again, and it orders nothing anew.
        One that is not `in_turn` goes on beside others, where the database can: it numbers nothing, and locks
        the rows that it takes.
        """

    def put_each(self, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        """Puts in one transaction, whose statement decides by itself what becomes of each.

        Of those that are `far`. What each is told with, and what is answered: see `version_log`.
        """
        raise NotImplementedError

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """A connection to read with; each statement sees the newest commit."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Connection]:
        """The same, but all statements see one moment; they may be sent together."""

    @contextmanager
    def snapshot_beside(self) -> Iterator[Connection | None]:
        """One for who has a connection already; None where no other is free at once."""
        yield None

    @abstractmethod
    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        """What a statement finds, by its name, as of the newest commit."""

    @abstractmethod
    def stream(
        self, name: str, params: Params, ruled_out: RuledOut | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        """Rows of a statement one at a time, so that a reader who has enough stops the scan.

        Of versions that are `ruled_out` it reads nothing, as far as it can.
        """

    def where(self, scope: Scope, params: Params) -> str:
        """Returns the predicate of a scope on `versions v`, and appends its parameters."""
        return self.filters.predicate(scope, params)

    def index_hint(self, index: str | None) -> str:
        """Returns what makes a statement read an index, or none; empty where the planner decides."""
        return ""

    @abstractmethod
    def sound(self) -> Findings:
        """The database's own check of what it holds, if it has one."""

    @abstractmethod
    def copy(self, to: Path) -> Iterator[CopyProgress]:
        """Writes one moment of the store into a file of SQLite, while others go on writing to the store."""

    @abstractmethod
    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Leaves no byte of what was deleted; False where a reader elsewhere was in the way.

        `is_done`: says, once no other process rebuilds, whether one of them has done it.
        """

    def residues(self) -> list[Residue]:
        """Where bytes of what was deleted stay after a rebuild, which does not reach them."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Closes every connection that is not in use."""

    def when_told(self, call: Callable[[], None]) -> bool:
        """Has something called soon after each commit of anybody; False where one has to look for oneself."""
        return False

    def change(self, name: str, *params: Value) -> int:
        """Runs a statement by its name in a transaction of its own; how many rows it changed."""
        with self.write() as db:
            return db.changed(name, *params)

    def mark(self, name: str) -> int:
        """A number that the store keeps about itself."""
        return int(self.fetch("mark", name)[0][0])


def pairs(file: str) -> Iterator[tuple[str, str, str]]:
    """The checks of a file: what each compares, the statement that counts, and the one that finds."""
    for name, script in load(file).items():
        count, finding = script.split(";")
        yield name, count, finding


def format_finding(value: object) -> str:
    """Returns a sequence number or a name that a check found, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
