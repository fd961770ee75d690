"""The documents of knowledge sources, as they are kept: cut into chunks, and in step with their files.

A document is a namespace of its own (`knowledge:<source>:<document>`). Its chunks lie there under keys that
say what is in them, so that of a document that changed only what changed is written and embedded. What is
known of the document lies beside them and is written last, so that one that was broken off is taken up again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

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

CUT = b"1"
"""Changes whenever documents are to be cut anew although they are the same."""
_ABOUT = "document"
_AT_ONCE = 200


class Document(Struct, frozen=True, kw_only=True):
    """A document of a source, and what became of it."""

    name: str
    chunks: int = 0
    bytes: int = 0
    digest: str = ""
    uploaded: bool = False
    """Whether it was put here, and does not come from the source's files."""
    error: str | None = None
    """Why it could not be read."""
    updated_at: datetime | None = None


class DocumentText(Document, frozen=True, kw_only=True):
    """A document with its pieces, in order."""

    pieces: list[Chunk]


class DocumentRecord(Document, frozen=True, kw_only=True):
    """What is kept of a document beside its chunks."""

    order: list[str] = []
    """The keys of its chunks, in order."""


class Library:
    """Keeps documents; who may have them kept is decided by who calls."""

    def __init__(self, memories: Memories, count: TokenCounter) -> None:
        self._memories, self._count = memories, count

    def documents(self, source: str) -> Iterator[Document]:
        """Every document of a source."""
        who = source_principal(source)
        for room in self._memories.namespaces(who, source_room(source)):
            memory = self._memories.get(who, room, _ABOUT) if len(room) == 3 else None
            if memory and (document := decode_value(memory, DocumentRecord)):
                yield _told(document, memory.created_at)

    def document(self, source: str, name: str) -> DocumentText | None:
        """A document with its pieces, if it is there."""
        kept = self._memories.scan(source_principal(source), source_room(source, name), exact=True)
        memories = {each.key: each for each in kept}
        about = decode_value(memories[_ABOUT], DocumentRecord) if _ABOUT in memories else None
        if about is None:
            return None
        told = structs.asdict(_told(about, memories[_ABOUT].created_at))
        pieces = [decode_value(memories[key], Chunk) for key in about.order if key in memories]
        return DocumentText(**told, pieces=[*filter(None, pieces)])

    def take(self, source: str, known: Document, content: bytes, author: Principal | None = None) -> Document:
        """Cuts a document and keeps what is new of it; raises `BadDocument`.

        `known`: its name, and whether it is uploaded. `author`: who puts it there, if it is somebody. Where
        somebody else writes it at the same time, all of it begins anew.
        """
        digest, who = hashlib.sha256(CUT + content).hexdigest(), author or source_principal(source)
        try:
            cut = split_document(known.name, content, count=self._count)
        except MissingExtra as missing:
            raise BadDocument(f"cannot be read here: {missing.message}") from None
        pieces = {_key(chunk): chunk for chunk in cut}
        about = DocumentRecord(
            name=known.name, chunks=len(pieces), bytes=len(content), digest=digest, uploaded=known.uploaded,
            order=[*pieces],
        )  # fmt: skip
        bound = self._memories.key_binding(author.user_id) if author else None
        retry_conflicts(lambda: self._write(who, source_room(source, known.name), about, pieces, bound))
        return _told(about)

    def _write(
        self,
        who: Principal,
        room: Namespace,
        about: DocumentRecord,
        pieces: Mapping[str, Chunk],
        bound: KeyBinding | None,
    ) -> None:
        """What differs from what is there; that it is whole comes last, bound to nobody else having begun."""
        found = self._memories.get(who, room, _ABOUT)
        kept, revision = (decode_value(found, DocumentRecord), found.revision) if found else (None, 0)
        there = {memory.key for memory in self._memories.scan(who, room, exact=True)} - {_ABOUT}
        if there == pieces.keys() and kept == about:
            return
        operations: list[BatchOperation] = [
            Put(room, key, msgspec.to_builtins(chunk), {"text": f"{chunk.heading}\n{chunk.text}".lstrip()})
            for key, chunk in pieces.items()
            if key not in there
        ]
        operations += [Delete(room, key) for key in sorted(there - pieces.keys())]
        if len(operations) > _AT_ONCE:  # not whole for a while, which a crash must not hide
            begun = msgspec.to_builtins(structs.replace(about, digest="", order=[]))
            put = Put(room, _ABOUT, begun, expected_revision=revision)
            revision = self._memories.put_record(who, put).revision
        operations.append(Put(room, _ABOUT, msgspec.to_builtins(about), expected_revision=revision))
        for start in range(0, len(operations), _AT_ONCE):
            if bound and self._memories.key_binding(who.user_id) != bound:
                raise Unavailable("whoever puts this document was wiped meanwhile")
            self._memories.batch(who, operations[start : start + _AT_ONCE])

    def clear(self, source: str, name: str) -> None:
        """Takes a document away, without a trace."""
        self._memories.clear(source_principal(source), source_room(source, name))

    def sync(self, source: Source) -> dict[str, str]:
        """Brings a source in step with its files; what was put into it stays.

        What cannot even be reported as a document is told, by the name of the file. Where the source's own
        path is not there, nothing is taken away.
        """
        if not Path(source.path).exists():
            return {source.path: "is not there; what was read from it before stays"}
        known = {each.name: each for each in self.documents(source.name)}
        there, refused = files(source), dict[str, str]()
        for name, path in there.items():
            before = known.get(name, Document(name=name))
            try:
                if not before.uploaded:
                    self._take_file(source.name, before, path)
            except InvalidRequest as error:
                refused[repr(name)[:200]] = error.message
        for name in known.keys() - there.keys():
            if not known[name].uploaded:
                self.clear(source.name, name)
        return refused

    def _take_file(self, source: str, known: Document, path: Path) -> None:
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if known.error or known.digest != hashlib.sha256(CUT + content).hexdigest():
                self.take(source, known, content)
        except BadDocument as bad:
            self._report(source, known, bad.message)
        except OSError as error:
            self._report(source, known, f"cannot be read: {error.strerror}")

    def _report(self, source: str, known: Document, error: str) -> None:
        """Notes that a file cannot be read; what was read of it before stays."""
        if known.error != error:
            who, room = source_principal(source), source_room(source, known.name)
            found = self._memories.get(who, room, _ABOUT)
            about = (decode_value(found, DocumentRecord) if found else None) or DocumentRecord(
                name=known.name
            )
            self._memories.put(who, room, _ABOUT, msgspec.to_builtins(structs.replace(about, error=error)))


def files(source: Source) -> dict[str, Path]:
    """The documents in a folder and below it, by name, or the one file; none that only leads elsewhere."""
    root = Path(source.path)
    if root.is_file():
        return {root.name: root}
    found = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    inside = (path for path in found if path.resolve().is_relative_to(root.resolve()))
    named = {path.relative_to(root).as_posix(): path for path in inside}
    return {name: named[name] for name in sorted(named) if not re.search(r"(^|/)\.", name)}


def source_room(source: str, *document: str) -> Namespace:
    """Where the documents of a source are, or one of them."""
    return Namespace.checked((*KNOWLEDGE, source, *document), "name")


def source_principal(source: str) -> Principal:
    """The service as it reads and writes a source."""
    return acting_for(ALCOVE, source_room(source))


def _told(about: DocumentRecord, at: datetime | None = None) -> Document:
    """What is told of a document."""
    shown = {field: getattr(about, field) for field in Document.__struct_fields__}
    return Document(**{**shown, "updated_at": at})


def _key(chunk: Chunk) -> str:
    """What is in it, so that the same piece keeps its key, wherever in the document it moves."""
    content = msgspec.json.encode([chunk.heading, chunk.page, chunk.text])
    return hashlib.sha256(content).hexdigest()[:24]
