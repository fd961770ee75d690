"""Import: memories as lines of JSON, of which only those that differ from what is there are written."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from alcove.core import validation
from alcove.core.clock import parse_moment, to_datetime
from alcove.core.errors import AlcoveError, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal, check_user_id
from alcove.core.records import MAX_KEY_BYTES, Author, Entry, ImportedPut, Memory
from alcove.core.settings import KIB, MIB, Settings
from alcove.store.memories import Memories

_MOST_LINES = 200
MOST_BYTES = MIB
"""Lines share a transaction until they are this many, or this many bytes."""
_PIECE_BYTES = 64 * KIB
_MOST_FAILURES_TOLD = 1000
_INDEX_SECONDS = 600.0
"""How long an import waits for one text to be indexed; an embedder that fails is not waited for."""


class File(Protocol):
    """Whatever bytes can be read from, a part at a time."""

    def read(self, size: int, /) -> bytes: ...


class Line(Struct, kw_only=True):
    """What an import reads of an exported memory; the rest is made anew."""

    namespace: list[str]
    key: str
    value: dict[str, Any] | None
    index: dict[str, str] | list[str] | bool | None = None
    created_at: Annotated[datetime, Meta(tz=True)] | None = None
    added_at: Annotated[datetime, Meta(tz=True)] | None = None
    ttl_seconds: int | None = None
    expires_at: Annotated[datetime, Meta(tz=True)] | None = None
    written_by: Author | None = None
    current: bool = True
    """False in a person's export for what is history, which is not brought back."""


_line = msgspec.json.Decoder(Line).decode


class Failure(Struct, frozen=True):
    line: int
    error: str


class Imports(Struct, kw_only=True):
    """What an import did; at most a thousand failures are told one by one, and all of them counted."""

    imported: int = 0
    unchanged: int = 0
    failed: list[Failure] = []
    failures: int = 0
    waiting: int | UnsetType = UNSET
    """How many of them wait to be indexed, if some still do after the import has waited for that."""

    @property
    def counts(self) -> dict[str, int]:
        return {"imported": self.imported, "unchanged": self.unchanged, "failures": self.failures}


def longest_line(settings: Settings) -> int:
    """The bytes of a line that every memory fits in, also where each byte of a text is spelled with six."""
    texts = settings.max_index_fields * (settings.max_index_bytes + MAX_KEY_BYTES)
    return 6 * (settings.max_value_bytes + texts) + _PIECE_BYTES


def pieces_of(given: File | Iterable[bytes]) -> Iterator[bytes]:
    """The text of a file as it is read, or of some lines that may lack their ends."""
    if hasattr(given, "read"):
        while piece := given.read(_PIECE_BYTES):
            yield piece
    else:
        for line in given:
            yield line.rstrip(b"\n") + b"\n"


class Lines:
    """Cuts a text that comes in pieces into lines, and holds no more of them than share a transaction.

    A line that is longer than `most` is given out with one byte more than that, by which it can be told.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._begun = bytearray()
        self._whole: list[bytes] = []
        self._bytes = 0

    @property
    def begun(self) -> int:
        """How much there is of a line whose end has not come yet."""
        return len(self._begun)

    def bundles(self, piece: bytes) -> Iterator[list[bytes]]:
        """The bundles of lines that this piece fills."""
        *ended, begun = piece.split(b"\n")
        for end in ended:
            self._go_on(end)
            self._bytes += len(self._begun)
            self._whole.append(bytes(self._begun))
            self._begun.clear()
            if len(self._whole) == _MOST_LINES or self._bytes >= MOST_BYTES:
                yield self._whole
                self._whole, self._bytes = [], 0
        self._go_on(begun)

    def all_of(self, given: File | Iterable[bytes]) -> Iterator[list[bytes]]:
        """Every bundle of a file or of some lines."""
        for piece in pieces_of(given):
            yield from self.bundles(piece)
        yield self.rest()

    def rest(self) -> list[bytes]:
        """What is left when there are no more pieces."""
        return [*self._whole, *([bytes(self._begun)] if self._begun else [])]

    def _go_on(self, part: bytes) -> None:
        self._begun += part[: self.most + 1 - len(self._begun)]


class Importer:
    """Takes bundles of lines; a line that cannot be taken is told of and holds up no other."""

    def __init__(self, memories: Memories, who: Callable[[], Principal]) -> None:
        self._memories = memories
        self._who = who
        self._number = 0
        self._written: list[Entry] = []
        self.lines = Lines(longest_line(memories.settings))
        self.report = Imports()

    def take(self, lines: Sequence[bytes]) -> None:
        """Imports some lines, in one transaction if all of them are good."""
        changed: list[tuple[int, ImportedPut]] = []
        ahead = set[tuple[str, ...]]()  # places of which an earlier line is about to be written
        same: list[Namespace] = []
        for line in lines:
            self._number += 1
            if len(line) <= self.lines.most and not line.strip():
                continue
            try:
                put = self._parsed(line)
                now = self._memories.reader.get_replaced(self._who(), put) if put else None
                if put and self._differs(put, now, ahead):
                    changed.append((self._number, put))
                    ahead.add((*put.namespace, put.key))
                else:
                    self.report.unchanged += 1
                    same += [now.namespace] if now else []
            except Unavailable:
                raise
            except (AlcoveError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._fail(self._number, str(error))
        self._memories.access.record_read(self._who(), "import", Namespace(), same)
        self._write(changed)

    def wait_for_index(self) -> None:
        """Waits until what was written last can be found by meaning, and counts what cannot yet."""
        waits = (
            self._memories.writer.wait_for_index(entry, _INDEX_SECONDS) is False for entry in self._written
        )
        if count := sum(waits):
            self.report.waiting = (self.report.waiting or 0) + count

    def _write(self, left: list[tuple[int, ImportedPut]]) -> None:
        """Writes all that can be written: what is refused is told of and left out."""
        at_once, self._written = len(left), []
        while left:
            puts = [put for _, put in left[:at_once]]
            try:
                entries = self._memories.writer.batch(self._who(), puts)
            except AlcoveError as error:
                position = error.details.get("operation")
                if isinstance(position, int):
                    self._fail(left.pop(position)[0], error.message)
                elif error.details.get("field") == "operations" and at_once > 1:
                    at_once //= 2  # a batch may be set to take fewer than we do
                else:
                    raise
            else:
                self._written += [each for each, put in zip(entries, puts, strict=True) if put.index]  # type: ignore[misc]
                self.report.imported += len(puts)
                del left[:at_once]

    def _differs(self, put: ImportedPut, now: Memory | None, ahead: Container[tuple[str, ...]]) -> bool:
        """Whether it is to be written: what has expired is gone, and stays so."""
        until = parse_moment(put.expires_at, "expires_at")
        if until is not None and to_datetime(until) <= self._memories.now():
            return False
        if now is None or (*put.namespace, put.key) in ahead:
            return True
        if (now.index, now.expires_at) != (put.index or {}, put.expires_at):
            return True
        return _spelled(now.value) != _spelled(put.value)

    def _parsed(self, line: bytes) -> ImportedPut | None:
        if len(line) > self.lines.most:
            raise msgspec.ValidationError(f"expected a line of at most {self.lines.most} bytes")
        given = msgspec.structs.asdict(parsed := _line(line))
        if parsed.value and not isinstance(parsed.index, dict):  # as texts, to be compared with what is there
            index = validation.encode_index(parsed.index, self._memories.settings, parsed.value)
            given["index"] = msgspec.json.decode(index) if index else None
        if parsed.written_by and parsed.written_by.user is not None:  # else no wipe could name them
            check_user_id(parsed.written_by.user, "written_by.user")
        return ImportedPut(**given) if given.pop("current") else None

    def _fail(self, line: int, error: str) -> None:
        self.report.failures += 1
        if len(self.report.failed) < _MOST_FAILURES_TOLD:
            self.report.failed.append(Failure(line, error))


def _spelled(value: object) -> bytes:
    """A value by which `true`, `1` and `1.0` are told apart, which are equal to Python."""
    return msgspec.json.encode(value, order="deterministic")
