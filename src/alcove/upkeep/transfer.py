"""Imports memories from lines of JSON; writes only those that differ from the stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
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

_MAX_LINES = 200
MAX_BATCH_BYTES = MIB
"""A batch of lines, which share a transaction, ends at this number of lines or bytes."""
_PIECE_BYTES = 64 * KIB
_MAX_FAILURES = 1000
_INDEX_SECONDS = 600.0
"""How long an import waits for one text to be indexed; it does not wait for an embedder that fails."""


class File(Protocol):
    """A source of bytes that is read in parts."""

    def read(self, size: int, /) -> bytes: ...


class Line(Struct, kw_only=True):
    """The fields of an exported memory that an import reads; it sets the others itself."""

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
    """False for old versions in a user's export, which are not imported."""


_decode_line = msgspec.json.Decoder(Line).decode


class Failure(Struct, frozen=True):
    line: int
    error: str


class Imports(Struct, kw_only=True):
    """The result of an import; lists at most a thousand failures, and counts all."""

    imported: int = 0
    unchanged: int = 0
    failed: list[Failure] = []
    failures: int = 0
    waiting: int | UnsetType = UNSET
    """How many imported memories are still not indexed after the import has waited for that."""

    @property
    def counts(self) -> dict[str, int]:
        return {"imported": self.imported, "unchanged": self.unchanged, "failures": self.failures}


def longest_line(settings: Settings) -> int:
    """The bytes of the longest line that a memory can have, with each byte of a text escaped as six."""
    texts = settings.max_index_fields * (settings.max_index_bytes + MAX_KEY_BYTES)
    return 6 * (settings.max_value_bytes + texts) + _PIECE_BYTES


def pieces_of(source: File | Iterable[bytes]) -> Iterator[bytes]:
    """The text of a file as it is read, or of lines with or without line breaks."""
    if hasattr(source, "read"):
        while piece := source.read(_PIECE_BYTES):
            yield piece
    else:
        for line in source:
            yield line.rstrip(b"\n") + b"\n"


class Lines:
    """Splits a text that comes in pieces into batches of lines, and buffers no more than one batch.

    Of a line that is longer than `max_bytes`, one byte more than that is kept, so that it can be refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._partial = bytearray()
        self._lines: list[bytes] = []
        self._bytes = 0

    @property
    def partial_bytes(self) -> int:
        """The size of the last line, whose end has not come yet."""
        return len(self._partial)

    def batches(self, piece: bytes) -> Iterator[list[bytes]]:
        """The batches of lines that this piece completes."""
        *ends, partial = piece.split(b"\n")
        for end in ends:
            self._extend(end)
            self._bytes += len(self._partial)
            self._lines.append(bytes(self._partial))
            self._partial.clear()
            if len(self._lines) == _MAX_LINES or self._bytes >= MAX_BATCH_BYTES:
                yield self._lines
                self._lines, self._bytes = [], 0
        self._extend(partial)

    def all_of(self, source: File | Iterable[bytes]) -> Iterator[list[bytes]]:
        """All batches of a file or of lines."""
        for piece in pieces_of(source):
            yield from self.batches(piece)
        yield self.last_batch()

    def last_batch(self) -> list[bytes]:
        """The buffered lines, after the last piece."""
        return [*self._lines, *([bytes(self._partial)] if self._partial else [])]

    def _extend(self, part: bytes) -> None:
        self._partial += part[: self.max_bytes + 1 - len(self._partial)]


class Importer:
    """Imports batches of lines; a line that is refused is reported and stops no other."""

    def __init__(self, memories: Memories, find_principal: Callable[[], Principal]) -> None:
        """`find_principal`: returns the caller as of now, since an import may take long."""
        self._memories, self._find_principal = memories, find_principal
        self._number = 0
        self._entries: list[Entry] = []
        self.lines = Lines(longest_line(memories.settings))
        self.report = Imports()

    def take(self, lines: Sequence[bytes]) -> None:
        """Imports some lines, in one transaction if none of them is refused."""
        changed: list[tuple[int, ImportedPut]] = []
        keys = set[tuple[str, ...]]()  # of earlier lines, which are not written yet
        unchanged: list[Namespace] = []
        for line in lines:
            self._number += 1
            if len(line) <= self.lines.max_bytes and not line.strip():
                continue
            try:
                put = self._parse(line)
                memory = self._memories.reader.get_replaced(self._find_principal(), put) if put else None
                key = (*put.namespace, put.key) if put else ()
                if put and not self._is_expired(put) and (key in keys or _differs(put, memory)):
                    changed.append((self._number, put))
                    keys.add(key)
                else:
                    self.report.unchanged += 1
                    unchanged += [memory.namespace] if memory else []
            except Unavailable:
                raise
            except (AlcoveError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self._fail(self._number, str(error))
        self._memories.access.record_read(self._find_principal(), "import", Namespace(), unchanged)
        self._write(changed)

    def wait_for_index(self) -> None:
        """Waits until the last batch can be found by meaning, and counts the memories that still cannot."""
        wait = self._memories.writer.wait_for_index
        if count := sum(wait(entry, _INDEX_SECONDS) is False for entry in self._entries):
            self.report.waiting = (self.report.waiting or 0) + count

    def _write(self, puts: list[tuple[int, ImportedPut]]) -> None:
        """Writes in as few batches as possible; a put that is refused is reported and left out."""
        batch_size, self._entries = len(puts), []
        while puts:
            batch = [put for _, put in puts[:batch_size]]
            try:
                entries = self._memories.writer.batch(self._find_principal(), batch)
            except AlcoveError as error:
                position = error.details.get("operation")
                if isinstance(position, int):
                    self._fail(puts.pop(position)[0], error.message)
                elif error.details.get("field") == "operations" and batch_size > 1:
                    batch_size //= 2  # the settings may limit a batch to fewer operations
                else:
                    raise
            else:
                self._entries += [each for each, put in zip(entries, batch, strict=True) if put.index]  # type: ignore[misc]
                self.report.imported += len(batch)
                del puts[:batch_size]

    def _is_expired(self, put: ImportedPut) -> bool:
        expires_at = parse_moment(put.expires_at, "expires_at")
        return expires_at is not None and to_datetime(expires_at) <= self._memories.now()

    def _parse(self, line: bytes) -> ImportedPut | None:
        if len(line) > self.lines.max_bytes:
            raise msgspec.ValidationError(f"expected a line of at most {self.lines.max_bytes} bytes")
        fields = msgspec.structs.asdict(parsed := _decode_line(line))
        if parsed.value and not isinstance(parsed.index, dict):  # as texts, to compare with the stored ones
            index = validation.encode_index(parsed.index, self._memories.settings, parsed.value)
            fields["index"] = msgspec.json.decode(index) if index else None
        if parsed.written_by and parsed.written_by.user is not None:  # otherwise no wipe could name them
            check_user_id(parsed.written_by.user, "written_by.user")
        return ImportedPut(**fields) if fields.pop("current") else None

    def _fail(self, line: int, error: str) -> None:
        self.report.failures += 1
        if len(self.report.failed) < _MAX_FAILURES:
            self.report.failed.append(Failure(line, error))


def _differs(put: ImportedPut, memory: Memory | None) -> bool:
    if memory is None or (memory.index, memory.expires_at) != (put.index or {}, put.expires_at):
        return True
    # As JSON, because `true`, `1` and `1.0` are equal in Python.
    encode = partial(msgspec.json.encode, order="deterministic")
    return encode(memory.value) != encode(put.value)
