"""One import: its target, and the count of what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from alcove.core import validation
from alcove.core.errors import InvalidRequest
from alcove.upkeep.transfer import Line

T = TypeVar("T")

NO_USER = "their owner is unknown: --user NAME imports them for that user"
NO_AGENT = "--agent NAME imports them as conversations with that agent"
EXPIRED = "already expired there"
_MAX_BROKEN = 1000


class Target(Struct, frozen=True, kw_only=True):
    """Where an import puts its memories."""

    caller: str
    """The user who imports."""
    now: datetime
    """The time at which expired records are skipped: the same if a source is read twice."""
    user: str | None = None
    """The owner of records that name no user."""
    agent: str | None = None
    """The agent of the conversations."""
    by_user: bool = False
    """Whether the first label of LangGraph's namespaces is a user, as for `AlcoveStore(by_user=True)`."""
    root: tuple[str, ...] | None = None
    """The namespace below which LangGraph's items go, as for `AlcoveStore(root=…)`; None for their own."""


class SkippedRecords(Struct, frozen=True):
    """A kind of record that is not imported, and the reason."""

    kind: str
    count: int
    reason: str


class BrokenRecord(Struct, frozen=True):
    """A record that is malformed, or that the store refused."""

    record: str
    error: str


class ImportJob:
    """The target of an import, counts of skipped records by kind and reason, and broken records."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.broken: list[BrokenRecord] = []
        self.failures = 0
        self._skipped: Counter[tuple[str, str]] = Counter()

    def skip(self, kind: str, reason: str, count: int = 1) -> None:
        """Counts records that are not imported; `kind` is a noun in the singular."""
        if count > 0:
            self._skipped[kind, reason] += count

    def skipped(self) -> list[SkippedRecords]:
        """The kinds of skipped records, in the order of first occurrence."""
        return [SkippedRecords(kind, count, reason) for (kind, reason), count in self._skipped.items()]

    def fail(self, record: str, error: str) -> None:
        """Counts a broken record; the first thousand are named."""
        self.failures += 1
        if len(self.broken) < _MAX_BROKEN:
            self.broken.append(BrokenRecord(record, error))

    @contextmanager
    def catching(self, record: str) -> Iterator[None]:
        """Counts the record as broken if it raises InvalidRequest, so that the import goes on."""
        try:
            yield
        except InvalidRequest as error:
            self.fail(record, error.message)

    def valid(self, place: str, records: Iterable[object], parse: Callable[[object], T]) -> Iterator[T]:
        """The records of a list that can be parsed; the others are broken."""
        for name, record in enumerate_records(place, records):
            with self.catching(name):
                yield parse(record)

    def lines(
        self, records: Iterable[tuple[str, T]], to_lines: Callable[[T], Iterable[Line]]
    ) -> Iterator[bytes]:
        """The lines of named records; a broken record has none."""
        for name, record in records:
            with self.catching(name):
                yield from [_encode(line) for line in to_lines(record)]


def enumerate_records(place: str, records: Iterable[T]) -> Iterator[tuple[str, T]]:
    """The records of a list, each with its place as a name: `agents[0]`."""
    return ((f"{place}[{number}]", record) for number, record in enumerate(records))


def _encode(line: Line) -> bytes:
    """A line as JSON; raises InvalidRequest with the field that JSON cannot represent."""
    validation.encode_json(line.value, "value")
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:
        raise InvalidRequest("record", "text without lone surrogates") from None
