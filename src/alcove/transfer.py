"""Export and import: memories as lines of JSON, of which an import writes only those that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from alcove.clock import Clock, checked_moment
from alcove.errors import AlcoveError
from alcove.principal import Principal
from alcove.records import Author, Exported, Imported, Memory
from alcove.service import Memories

AT_A_TIME = 200
"""Lines that share a transaction."""
_MOST_FAILURES_TOLD = 1000


class Line(Struct, kw_only=True):
    """What an import reads of an exported memory; the rest is made anew."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    index: dict[str, str] | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    written_by: Author | None = None


class Failure(Struct, frozen=True):
    line: int
    error: str


class Imports(Struct, kw_only=True):
    """What an import did; at most a thousand failures are told one by one, and all of them counted."""

    imported: int = 0
    unchanged: int = 0
    failed: list[Failure] = []
    failures: int = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"imported": self.imported, "unchanged": self.unchanged, "failures": self.failures}


class Importer:
    """Takes lines a few hundred at a time; a line that cannot be taken is told of and holds up no other."""

    def __init__(self, memories: Memories, who: Callable[[], Principal], clock: Clock) -> None:
        self._memories = memories
        self._who = who
        self._clock = clock
        self._lines = 0
        self.report = Imports()

    def take(self, lines: Sequence[bytes]) -> None:
        """Imports some lines, in one transaction if all of them are good."""
        wanted: list[tuple[int, Imported]] = []
        for line in lines:
            self._lines += 1
            if line.strip():
                try:
                    wanted.append((self._lines, self._parsed(line)))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    self._fail(self._lines, str(error))
        found = self._done(wanted, [_look(put) for _, put in wanted])
        changed = [each for each in wanted if each[0] in found and self._differs(each[1], found[each[0]])]
        written = self._done(changed, [put for _, put in changed])
        self.report.imported += len(written)
        self.report.unchanged += len(found) - len(changed)

    def _done(self, numbered: list[tuple[int, Imported]], operations: Sequence[Any]) -> dict[int, Any]:
        """The results by line, of all that can be done: what is refused is told of and left out."""
        left = [(number, operation) for (number, _), operation in zip(numbered, operations, strict=True)]
        done: dict[int, Any] = {}
        at_once = len(left)
        while left:
            some = left[:at_once]
            try:
                results = self._memories.batch(self._who(), [operation for _, operation in some])
            except AlcoveError as error:
                position = error.details.get("operation")
                if isinstance(position, int):
                    self._fail(left.pop(position)[0], error.message)
                elif error.details.get("field") == "operations" and at_once > 1:
                    at_once //= 2  # a batch may be set to take fewer than we do
                else:
                    raise
            else:
                done.update((number, result) for (number, _), result in zip(some, results, strict=True))
                del left[:at_once]
        return done

    def _differs(self, put: Imported, now: Memory | None) -> bool:
        """Whether it is to be written: what has expired is gone, and stays so."""
        until = checked_moment(put.expires_at, "expires_at")
        if until is not None and until <= self._clock():
            return False
        if now is None:
            return True
        return (now.value, now.index, now.expires_at) != (put.value, put.index or {}, put.expires_at)

    @staticmethod
    def _parsed(line: bytes) -> Imported:
        given = msgspec.json.decode(line, type=Line)
        return Imported(**{name: getattr(given, name) for name in Line.__struct_fields__})

    def _fail(self, line: int, error: str) -> None:
        self.report.failures += 1
        if len(self.report.failed) < _MOST_FAILURES_TOLD:
            self.report.failed.append(Failure(line, error))


def _look(put: Imported) -> Exported:
    return Exported(namespace=put.namespace, key=put.key, value=put.value, index=put.index)


def in_bundles(lines: Iterable[bytes]) -> Iterable[list[bytes]]:
    """Lines, as many at a time as share a transaction."""
    bundle: list[bytes] = []
    for line in lines:
        bundle.append(line)
        if len(bundle) == AT_A_TIME:
            yield bundle
            bundle = []
    if bundle:
        yield bundle
