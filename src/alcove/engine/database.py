"""What the engine needs of a database: statements by name, inside or outside of a transaction.

A database brings these methods, its schema and the statements that need words of its own. What an operation
does to a key, erasure, the indexing queue and administration are written once, above this interface.
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
from alcove.engine.rows import CopyProgress, Scope
from alcove.engine.statements import Params, Value, load

Parameters = Sequence[Value] | Mapping[str, Value]
CheckResults = Iterator[tuple[str, int, list[str]]]
"""For each check: what it compares, how many it compared, and which are wrong."""
SkipVersion = Callable[[int], bool]
"""Whether a reader has no use for a version, by its sequence number."""


class Result(Protocol):
    """The rows that a statement returns."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...
    def fetchone(self) -> tuple[Any, ...] | None: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...

    @property
    def get(self) -> Any:
        """The first row, or its value if it has only one; None if there is no row."""


class Connection(Protocol):
    """One connection, used by one thread at a time."""

    def run(self, name: str, params: Parameters = (), **parts: str) -> Result:
        """Runs a statement by its name, with its `{parts}` filled in."""

    def run_prepared(self, name: str, params: Parameters = (), **parts: str) -> Result:
        """Runs a statement whose parts repeat: it is prepared once for each of them."""

    def run_many(self, name: str, params: Iterable[Sequence[Value]]) -> object:
        """Runs a statement once for each set of parameters."""

    def insert_rows(self, table: str, fields: str, rows: Sequence[Sequence[Any]]) -> None:
        """Adds many rows to a table as they are."""

    def flush(self) -> None:
        """Sends the statements of a snapshot that are still buffered."""

    def update(self, name: str, *params: Value) -> int:
        """Runs a statement; returns how many rows it changed."""

    def mark(self, name: str) -> int:
        """Returns a number that the store keeps about itself."""

    def last_id(self) -> int:
        """Returns the number that the database gave to the last inserted row."""

    def run_checks(self, file: str) -> CheckResults:
        """Runs a file of checks, each two statements: how many were compared, and which are wrong."""


class Database(ABC):
    """The connections to one database: one writer at a time, and readers as they are needed."""

    filters: FilterCompiler
    clock: Clock = staticmethod(system_clock)
    """The clock that all nodes of the store share."""
    finds_candidates = False
    """Whether it finds the likeliest texts of a subtree by itself: see `CandidateIndex`."""
    candidates_missing: str | None = None
    """What it would need for that, if it lacks something."""
    keeps_digests = False
    """Whether it stores quantised vectors for subtrees too large for memory: see `QuantizedIndex`."""
    is_remote = False
    """Whether each answer costs a round trip to a server, so that statements are best sent together."""

    @abstractmethod
    def write(
        self, *, roll_back: bool = False, durable: bool = True, exclusive: bool = True
    ) -> AbstractContextManager[Connection]:
        """Opens a write transaction, once no other writer is active; with `roll_back` nothing of it stays.

        Its statements may be sent together: an answer is waited for where it is read, or else at the commit.
        A transaction that is not `durable` does not wait for the disk: a power failure may undo it, as a
        whole, until the next durable one is committed. That is for what can be made again.
        One that is not `exclusive` may run beside other writers: it takes no sequence numbers, and locks the
        rows that it changes.
        """

    def put_many(self, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        """Runs single puts in one transaction, by a function of a remote database.

        See `transaction.commit_puts` for parameters and answers.
        """
        raise NotImplementedError

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """Takes a connection to read with; each statement sees the newest commit."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Connection]:
        """Takes a connection whose statements all see one moment; they may be sent together."""

    @contextmanager
    def try_snapshot(self) -> Iterator[Connection | None]:
        """Takes another snapshot beside one; None if no connection is free at once."""
        yield None

    @abstractmethod
    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement, as of the newest commit."""

    @abstractmethod
    def stream(
        self, name: str, params: Params, skip: SkipVersion | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        """Yields rows one at a time, so that a reader who has enough stops the scan.

        It reads nothing of versions to `skip`, as far as it can.
        """

    def select(
        self,
        name: str,
        scope: Scope,
        params: Sequence[Value],
        more_params: Sequence[Value] = (),
        skip: SkipVersion | None = None,
        **parts: str,
    ) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a scope; the statement's `{condition}` takes its parameters in between."""
        bound: Params = [*params]
        condition = self.filters.predicate(scope, bound)
        return self.stream(name, [*bound, *more_params], skip, condition=condition, **parts)

    def predicate(self, scope: Scope, params: Params) -> str:
        """Returns the predicate of a scope on `versions v`, and appends its parameters."""
        return self.filters.predicate(scope, params)

    def index_hint(self, index: str | None) -> str:
        """Returns what makes a statement read an index, or none; empty where the planner decides."""
        return ""

    @abstractmethod
    def check_integrity(self) -> CheckResults:
        """Runs the database's own check of its pages, if it has one."""

    @abstractmethod
    def copy(self, to: Path) -> Iterator[CopyProgress]:
        """Writes one moment of the store into a SQLite file, while others go on writing to the store."""

    @abstractmethod
    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Removes every byte of deleted rows; False if a reader elsewhere was in the way.

        `is_done`: asked once no other process rebuilds, whether one of them has done it.
        """

    def residues(self) -> list[Residue]:
        """Returns where bytes of deleted rows stay after a rebuild."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Closes every connection that is not in use."""

    def on_commit(self, call: Callable[[], None]) -> bool:
        """Registers a call soon after each commit of any process; False if the database cannot notify."""
        return False

    def update(self, name: str, *params: Value) -> int:
        """Runs a statement in a transaction of its own; returns how many rows it changed."""
        with self.write() as db:
            return db.update(name, *params)

    def mark(self, name: str) -> int:
        """Returns a number that the store keeps about itself."""
        return int(self.fetch("mark", name)[0][0])


def read_checks(file: str) -> Iterator[tuple[str, str, str]]:
    """Yields the checks of a file: what each compares, the statement that counts, and the one that finds."""
    for name, script in load(file).items():
        count, search = script.split(";")
        yield name, count, search


def format_finding(value: object) -> str:
    """Returns a sequence number or a name that a check found, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)
