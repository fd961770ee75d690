"""The documents of knowledge sources: cut into chunks, stored, and kept in step with the source's files.

A document is a namespace of its own (`knowledge:<source>:<document>`). The key of a chunk is a digest of its
content, so that only the changed parts of a document are written and embedded again. The document's record
lies beside its chunks and is written last, so that an interrupted write starts again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from alcove.agents.document_reading import BadDocument
from alcove.agents.documents import MAX_BYTES, SUFFIXES, Chunk, split_document
from alcove.agents.rooms import KNOWLEDGE
from alcove.agents.runs import ALCOVE, acting_for
from alcove.agents.specs.records import Knowledge as Source
from alcove.agents.stored_records import decode_value, retry_conflicts
from alcove.agents.tokens import TokenCounter
from alcove.core.errors import InvalidRequest, MissingExtra, Unavailable
from alcove.core.namespace import Namespace
from alcove.core.principal import Principal
from alcove.core.records import BatchOperation, Delete, KeyBinding, Put
from alcove.store.memories import Memories

SPLIT_VERSION = b"1"
"""Changes whenever unchanged documents have to be split again."""
_RECORD = "document"
"""The key of a document's record."""
_BATCH = 200


class Document(Struct, frozen=True, kw_only=True):
    """A document of a source."""

    name: str
    chunks: int = 0
    bytes: int = 0
    digest: str = ""
    uploaded: bool = False
    """Whether a writer uploaded it; otherwise it comes from the source's files."""
    error: str | None = None
    """Why it could not be read."""
    updated_at: datetime | None = None


class DocumentText(Document, frozen=True, kw_only=True):
    """A document with its pieces, in order."""

    pieces: list[Chunk]


class _ChunkKeys(Struct, frozen=True):
    """The part of a document's record that says in which order its chunks stand."""

    order: list[str] = []


class Library:
    """Reads and writes documents; callers decide who may."""

    def __init__(self, memories: Memories, count: TokenCounter) -> None:
        self._memories, self._count = memories, count

    def documents(self, source: str) -> Iterator[Document]:
        """All documents of a source."""
        principal = source_principal(source)
        for room in self._memories.namespaces(principal, source_room(source)):
            memory = self._memories.get(principal, room, _RECORD) if len(room) == 3 else None
            if memory and (document := decode_value(memory, Document)):
                yield structs.replace(document, updated_at=memory.created_at)

    def document(self, source: str, name: str) -> DocumentText | None:
        """A document with its pieces; None if there is none of this name."""
        scan = self._memories.scan(source_principal(source), source_room(source, name), exact=True)
        memories = {memory.key: memory for memory in scan}
        record = memories.get(_RECORD)
        if record is None:
            return None
        document, keys = decode_value(record, Document), decode_value(record, _ChunkKeys)
        if document is None or keys is None:
            return None
        chunks = [decode_value(memories[key], Chunk) for key in keys.order if key in memories]
        fields = {**structs.asdict(document), "updated_at": record.created_at}
        return DocumentText(**fields, pieces=[*filter(None, chunks)])

    def store(
        self, source: str, document: Document, content: bytes, author: Principal | None = None
    ) -> Document:
        """Splits a document and writes the chunks that are new; raises `BadDocument`.

        `document`: its name, and whether it was uploaded. `author`: who uploads it. If another process writes
        it at the same time, the write starts again.
        """
        try:
            chunks = split_document(document.name, content, count=self._count)
        except MissingExtra as missing:
            raise BadDocument(f"cannot be read here: {missing.message}") from None
        pieces = {_chunk_key(chunk): chunk for chunk in chunks}
        new = Document(
            name=document.name,
            chunks=len(pieces),
            bytes=len(content),
            digest=_digest(content),
            uploaded=document.uploaded,
        )
        principal, room = author or source_principal(source), source_room(source, document.name)
        bound = self._memories.key_binding(author.user_id) if author else None
        retry_conflicts(lambda: self._write(principal, room, new, pieces, bound))
        return new

    def _write(
        self,
        principal: Principal,
        room: Namespace,
        document: Document,
        pieces: Mapping[str, Chunk],
        bound: KeyBinding | None,
    ) -> None:
        """Writes what differs from the stored document; the record comes last, if nobody else changed it."""
        before = self._memories.get(principal, room, _RECORD)
        revision = before.revision if before else 0
        record = _record(document, [*pieces])
        stored = {memory.key for memory in self._memories.scan(principal, room, exact=True)} - {_RECORD}
        if before and before.value == record and stored == pieces.keys():
            return
        operations: list[BatchOperation] = [
            Put(room, key, msgspec.to_builtins(chunk), {"text": f"{chunk.heading}\n{chunk.text}".lstrip()})
            for key, chunk in pieces.items()
            if key not in stored
        ]
        operations += [Delete(room, key) for key in sorted(stored - pieces.keys())]
        if len(operations) > _BATCH:  # several transactions: a crash in between must not go unnoticed
            unfinished = _record(structs.replace(document, digest=""), [])
            put = Put(room, _RECORD, unfinished, expected_revision=revision)
            revision = self._memories.put_record(principal, put).revision
        operations.append(Put(room, _RECORD, record, expected_revision=revision))
        for start in range(0, len(operations), _BATCH):
            if bound and self._memories.key_binding(principal.user_id) != bound:
                raise Unavailable("whoever puts this document was wiped meanwhile")
            self._memories.batch(principal, operations[start : start + _BATCH])

    def clear(self, source: str, name: str) -> None:
        """Removes a document without a trace."""
        self._memories.clear(source_principal(source), source_room(source, name))

    def sync(self, source: Source) -> dict[str, str]:
        """Brings a source in step with its files; uploaded documents stay.

        Returns, by name, why files are refused whose names no document can have. If the source's own path is
        missing, nothing is removed.
        """
        if not Path(source.path).exists():
            return {source.path: "is not there; what was read from it before stays"}
        documents = {document.name: document for document in self.documents(source.name)}
        paths, refused = source_files(source), dict[str, str]()
        for name, path in paths.items():
            document = documents.get(name, Document(name=name))
            try:
                if not document.uploaded:
                    self._store_file(source.name, document, path)
            except InvalidRequest as error:
                refused[repr(name)[:200]] = error.message
        for name in documents.keys() - paths.keys():
            if not documents[name].uploaded:
                self.clear(source.name, name)
        return refused

    def _store_file(self, source: str, document: Document, path: Path) -> None:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if document.error or document.digest != _digest(content):
                self.store(source, document, content)
        except BadDocument as bad:
            self._report(source, document, bad.message)
        except OSError as error:
            self._report(source, document, f"cannot be read: {error.strerror}")

    def _report(self, source: str, document: Document, error: str) -> None:
        """Notes that a file cannot be read; what was read of it before stays."""
        if document.error != error:
            principal, room = source_principal(source), source_room(source, document.name)
            memory = self._memories.get(principal, room, _RECORD)
            is_record = memory is not None and decode_value(memory, Document) is not None
            record = memory.value if memory and is_record else _record(Document(name=document.name), [])
            self._memories.put(principal, room, _RECORD, {**record, "error": error})


def source_files(source: Source) -> dict[str, Path]:
    """A source's files by document name: one file, or those of a folder; no links that lead out of it."""
    root = Path(source.path)
    if root.is_file():
        return {root.name: root}
    paths = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    inside = (path for path in paths if path.resolve().is_relative_to(root.resolve()))
    names = {path.relative_to(root).as_posix(): path for path in inside}
    return {name: names[name] for name in sorted(names) if not re.search(r"(^|/)\.", name)}


def source_room(source: str, *document: str) -> Namespace:
    """The namespace of a document, or the one above all documents of a source."""
    return Namespace.checked((*KNOWLEDGE, source, *document), "name")


def source_principal(source: str) -> Principal:
    """The service, with a grant for one source."""
    return acting_for(ALCOVE, source_room(source))


def _record(document: Document, order: list[str]) -> dict[str, Any]:
    return {**msgspec.to_builtins(document), "order": order}


def _digest(content: bytes) -> str:
    return hashlib.sha256(SPLIT_VERSION + content).hexdigest()


def _chunk_key(chunk: Chunk) -> str:
    """A digest of the content, so that an unchanged chunk keeps its key wherever it moves."""
    content = msgspec.json.encode([chunk.heading, chunk.page, chunk.text])
    return hashlib.sha256(content).hexdigest()[:24]
