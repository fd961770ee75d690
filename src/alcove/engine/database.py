"""The interface of a database: it runs statements by name, inside or outside of a transaction.

A database implements these methods, and has its own schema and the statements that it spells differently.
Transactions, erasure, the indexing queue and administration are written once, above this interface.
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
"""Tells by its sequence number whether a reader can skip a version."""


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

    def run_text(self, statement: str) -> Result:
        """Runs the text of a statement that has no parameters."""


class Database(ABC):
    """The connections to one database: one writer at a time, and readers on demand."""

    filters: FilterCompiler
    clock: Clock = staticmethod(system_clock)
    """The clock that all nodes of the store share."""
    finds_candidates = False
    """Whether it can search a subtree by vectors without Qdrant: see `CandidateIndex`."""
    candidates_missing: str | None = None
    """Why it cannot, if it could after an installation."""
    has_quantized_index = False
    """Whether it stores quantized vectors for subtrees that do not fit into memory: see `QuantizedIndex`."""
    is_remote = False
    """Whether each answer costs a round trip to a server, so that statements should be sent together."""

    @abstractmethod
    def write(
        self, *, roll_back: bool = False, durable: bool = True, exclusive: bool = True
    ) -> AbstractContextManager[Connection]:
        """Opens a write transaction, once no other writer is active; `roll_back` undoes it at the end.

        Its statements may be sent together; it waits for an answer when the answer is read, at the latest at
        the commit. A transaction that is not `durable` does not wait for the disk: a power failure may undo
        it, as a whole, until the next durable one is committed. Use that for data that can be rebuilt.
        One that is not `exclusive` may run at the same time as other writers: it takes no sequence numbers,
        and locks the rows that it changes.
        """

    def put_many(self, puts: Sequence[Sequence[Value]]) -> list[list[int]]:
        """Runs single puts in one transaction, by a function in a remote database.

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
        """Takes a second snapshot for a caller that has one; None if no connection is free at once."""
        yield None

    @abstractmethod
    def fetch(self, name: str, *params: Value) -> list[tuple[Any, ...]]:
        """Returns the rows of a statement, as of the newest commit."""

    @abstractmethod
    def stream(
        self, name: str, params: Params, skip: SkipVersion | None = None, **parts: str
    ) -> Iterator[tuple[Any, ...]]:
        """Yields rows one at a time, so that a reader that has enough can stop the scan.

        It reads as little as possible of versions to `skip`.
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
        """Yields the rows of a scope; the parameters of its condition come before `more_params`."""
        bound: Params = [*params]
        condition = self.filters.predicate(scope, bound)
        return self.stream(name, [*bound, *more_params], skip, condition=condition, **parts)

    def run_scoped(
        self,
        db: Connection,
        name: str,
        scope: Scope,
        params: Sequence[Value],
        more_params: Sequence[Value] = (),
        **parts: str,
    ) -> Result:
        """Runs a statement about a scope on a connection, with parameters like those of `select`."""
        bound: Params = [*params]
        condition = self.filters.predicate(scope, bound)
        return db.run(name, [*bound, *more_params], condition=condition, **parts)

    def predicate(self, scope: Scope, params: Params) -> str:
        """Returns the predicate of a scope on `versions v`, and appends its parameters."""
        return self.filters.predicate(scope, params)

    def index_hint(self, index: str | None) -> str:
        """Returns the hint that makes a statement read an index, or none; empty if the planner decides."""
        return ""

    @abstractmethod
    def check_integrity(self) -> CheckResults:
        """Runs the database's own check of its pages, if it has one."""

    @abstractmethod
    def copy(self, to: Path) -> Iterator[CopyProgress]:
        """Writes one moment of the store into a SQLite file, while others continue to write to the store."""

    @abstractmethod
    def rebuild(self, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Removes every byte of deleted rows; False if a reader elsewhere prevented it.

        `is_done`: called when no other process is rebuilding; True if one of them has just done it.
        """

    def residues(self) -> list[Residue]:
        """Returns where bytes of deleted rows remain after a rebuild."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Closes every connection that is not in use."""

    def on_commit(self, call: Callable[[], None]) -> bool:
        """Registers a function to call soon after each commit of any process; False if it cannot notify."""
        return False

    def update(self, name: str, *params: Value) -> int:
        """Runs a statement in a transaction of its own; returns how many rows it changed."""
        with self.write() as db:
            return db.update(name, *params)

    def mark(self, name: str) -> int:
        """Returns a number that the store keeps about itself."""
        return int(self.fetch("mark", name)[0][0])

    def run_checks(self, file: str) -> CheckResults:
        """Runs a file of checks, each two statements: how many were compared, and which are wrong."""
        with self.snapshot() as db:
            for name, script in load(file).items():
                count, search = script.split(";")
                ((compared,),) = db.run_text(count)
                wrong = [value for value, *_ in db.run_text(search)]
                yield name, compared, [each.hex() if isinstance(each, bytes) else str(each) for each in wrong]
