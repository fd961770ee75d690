"""Knowledge sources: their documents, split into chunks and in step with files, and searches in them.

A document is a namespace of its own (`knowledge:<source>:<document>`). The key of a chunk is a digest of its
content, so that only the changed parts of a document are written and embedded again. The document's record
is stored next to its chunks and written last, so that an interrupted write starts again.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.chunking import MAX_BYTES, SUFFIXES, Chunk, split_document
from alcove.agents.document_reading import BadDocument
from alcove.agents.rooms import KNOWLEDGE, decode_value, retry_conflicts
from alcove.agents.runs import ALCOVE, acting_for
from alcove.agents.specs.records import Catalogue, includes_caller
from alcove.agents.specs.records import Knowledge as Source
from alcove.agents.tokens import TokenCounter
from alcove.core import validation
from alcove.core.background import Worker
from alcove.core.errors import (
    AlcoveError,
    Conflict,
    InvalidRequest,
    MissingExtra,
    NotFound,
    PermissionDenied,
    Unavailable,
    quote_name,
)
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import BatchOperation, Delete, KeyBinding, Put, Query
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.search.query import ParsedQuery

log = logging.getLogger("alcove")
FOLLOW_SECONDS = 30.0
"""Between two checks of the files of sources."""
MAX_HITS = 100
SPLIT_VERSION = b"1"
"""Changes whenever unchanged documents have to be split again."""
_RECORD = "document"
"""The key of a document's record."""
_BATCH = 200
_DATA_URL = "data:application/octet-stream;base64,"


class KnowledgeHit(Struct, frozen=True, kw_only=True):
    """A chunk that a search found: its calibrated score from 0 to 1, and the measured cosine."""

    id: str
    source: str
    document: str
    text: str
    heading: str
    page: int | None
    score: float
    cosine: float | None
    at: datetime


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source and its size; `waiting` counts the texts of the whole store that are not yet embedded."""

    name: str
    path: str
    documents: int
    chunks: int
    errors: dict[str, str]
    waiting: int


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
    """The part of a document's record with the keys of its chunks in order."""

    order: list[str] = []


class Knowledge:
    """The knowledge sources of the specs: manages their documents and searches them."""

    def __init__(
        self, memories: Memories, catalogue: Callable[[], Catalogue], count: TokenCounter, *, follows: bool
    ) -> None:
        """`count`: counts the tokens of a text. `follows`: whether to sync sources whose files change."""
        self._memories, self._catalogue = memories, catalogue
        self._documents = _DocumentStore(memories, count)
        self._stamps: dict[str, object] = {}
        """Names, times and sizes of each source's files at its last sync."""
        self._refused: dict[str, dict[str, str]] = {}
        """Why files of each source cannot be documents, from its last sync in this process."""
        self._follows = follows
        self._worker = Worker("knowledge", self._sync_changed, FOLLOW_SECONDS)

    def follow_files(self) -> None:
        """Starts to check the files of sources in the background, if there are sources."""
        if self._follows and self._catalogue().knowledge:
            self._worker.wake()

    def _sync_changed(self) -> None:
        """Syncs the sources whose files changed since the last check."""
        for source in [*self._catalogue().knowledge.values()]:
            try:
                stats = [(name, path.stat()) for name, path in _source_files(source).items()]
                stamp = [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]
                if self._stamps.get(source.name) != stamp:
                    self._refused[source.name] = self._documents.sync(source)
                    self._stamps[source.name] = stamp
            except (AlcoveError, OSError) as error:  # the other sources are synced all the same
                log.warning("the source %s was not synced: %s", source.name, error)

    def close(self) -> None:
        """Waits for a sync that is in progress; one that is cut off continues at the next start."""
        self._worker.stop()

    def sources(self, principal: Principal) -> list[SourceStatus]:
        """The sources that the caller may manage, with their sizes."""
        sources = self._catalogue().knowledge.values()
        return [
            self._status(each) for each in sources if principal.is_auditor or _may_manage(principal, each)
        ]

    def sync_source(self, principal: Principal, source: str) -> SourceStatus:
        """Syncs a source with its files: replaces changed documents, and removes deleted ones."""
        spec = self._source(principal, source)
        self._refused[source] = self._documents.sync(spec)
        return self._status(spec)

    def documents(self, principal: Principal, source: str) -> list[Document]:
        """The documents of a source."""
        return [*self._documents.list(self._source(principal, source, reads=True).name)]

    def document(self, principal: Principal, source: str, name: str) -> DocumentText:
        """A document with its pieces."""
        document = self._documents.read(self._source(principal, source, reads=True).name, name)
        if document is None:
            raise NotFound(f"there is no document {quote_name(name)}")
        return document

    def put_document(self, principal: Principal, source: str, name: str, content: str | bytes) -> Document:
        """Stores a document in a source, replacing the one of this name.

        `content`: Markdown, text, HTML or PDF, as the name's suffix says. In JSON, binary content is a
        `data:` URL in base64.
        """
        spec = self._source(principal, source)
        if not name.lower().endswith(SUFFIXES):
            raise InvalidRequest("name", f"one that ends with {', '.join(SUFFIXES)}")
        document = self._documents.read(spec.name, name) or Document(name=name, uploaded=True)
        if not document.uploaded:
            raise Conflict(f"{quote_name(name)} comes from the source's own files")
        grants = (Grant(_source_room(spec.name)),)
        author = Principal(principal.user_id, principal.client_id, principal.claims, ALCOVE, grants)
        try:
            return self._documents.write(spec.name, document, _decode_document(content), author)
        except BadDocument as bad:
            raise InvalidRequest("content", f"a document that can be read; this one {bad.message}") from None

    def delete_document(self, principal: Principal, source: str, name: str) -> None:
        """Deletes an uploaded document."""
        document = self.document(principal, source, name)
        spec = self._source(principal, source)
        if not document.uploaded:
            raise Conflict(f"{quote_name(name)} comes from the source's own files: take it out of those")
        self._documents.remove(spec.name, name)

    def search_knowledge(
        self,
        principal: Principal,
        source: str,
        query: Query,
        *,
        limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = 5,
        threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0,
    ) -> list[KnowledgeHit]:
        """Searches a source as agents do, to test it.

        `query`: the question. `limit`: how many at most. `threshold`: the least score.
        """
        spec = self._source(principal, source, reads=True)
        validation.check_integer(limit, "limit", 1, MAX_HITS)
        parsed_query = self._memories.searcher.parse_query(query)
        hits = self.search(_source_principal(spec.name), spec.name, parsed_query, limit)
        return [hit for hit in hits if hit.score >= threshold]

    def search(self, principal: Principal, source: str, query: ParsedQuery, limit: int) -> list[KnowledgeHit]:
        """The chunks of a source that fit a query best, for a principal with a grant for the source."""
        memories = self._memories.searcher.search_parsed(
            principal, _source_room(source), query, limit=limit, calibrated=True
        )
        return [
            KnowledgeHit(
                id=memory.id,
                source=source,
                document=memory.namespace[2],
                **structs.asdict(chunk),
                score=memory.relevance or 0.0,
                cosine=memory.score,
                at=memory.created_at,
            )
            for memory in memories
            if (chunk := decode_value(memory, Chunk))
        ]

    def _source(self, principal: Principal, name: str, *, reads: bool = False) -> Source:
        """A source that the caller may manage, as an admin or a writer; auditors may read."""
        source = self._catalogue().knowledge.get(name)
        if source is None:
            raise NotFound(f"there is no source {quote_name(name)}")
        if not (_may_manage(principal, source) or (reads and principal.is_auditor)):
            raise PermissionDenied("only an admin or a writer of this source may do that")
        return source

    def _status(self, source: Source) -> SourceStatus:
        documents = [*self._documents.list(source.name)]
        errors = {document.name: document.error for document in documents if document.error}
        return SourceStatus(
            name=source.name,
            path=source.path,
            documents=len(documents),
            chunks=sum(document.chunks for document in documents),
            errors=errors | self._refused.get(source.name, {}),
            waiting=self._memories.searcher.index_lag()[0],
        )


class _DocumentStore:
    """Reads and writes documents without checking permissions."""

    def __init__(self, memories: Memories, count: TokenCounter) -> None:
        self._memories, self._count = memories, count

    def list(self, source: str) -> Iterator[Document]:
        """All documents of a source."""
        principal = _source_principal(source)
        for room in self._memories.reader.namespaces(principal, _source_room(source)):
            memory = self._memories.reader.get(principal, room, _RECORD) if len(room) == 3 else None
            if memory and (document := decode_value(memory, Document)):
                yield structs.replace(document, updated_at=memory.created_at)

    def read(self, source: str, name: str) -> DocumentText | None:
        """A document with its pieces; None if there is none of this name."""
        scan = self._memories.reader.scan(_source_principal(source), _source_room(source, name), exact=True)
        memories = {memory.key: memory for memory in scan}
        record = memories.get(_RECORD)
        document, keys = decode_value(record, Document), decode_value(record, _ChunkKeys)
        if record is None or document is None or keys is None:
            return None
        chunks = (decode_value(memories.get(key), Chunk) for key in keys.order)
        fields = {**structs.asdict(document), "updated_at": record.created_at}
        return DocumentText(**fields, pieces=[*filter(None, chunks)])

    def write(
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
        record = {**msgspec.to_builtins(new), "order": [*pieces]}
        principal, room = author or _source_principal(source), _source_room(source, document.name)
        bound = self._memories.writer.key_binding(author.user_id) if author else None
        retry_conflicts(lambda: self._write(principal, room, record, pieces, bound))
        return new

    def _write(
        self,
        principal: Principal,
        room: Namespace,
        record: dict[str, Any],
        pieces: Mapping[str, Chunk],
        bound: KeyBinding | None,
    ) -> None:
        """Writes the chunks that differ from the stored ones, and then the record if it is unchanged."""
        before = self._memories.reader.get(principal, room, _RECORD)
        revision = before.revision if before else 0
        scan = self._memories.reader.scan(principal, room, exact=True)
        stored = {memory.key for memory in scan} - {_RECORD}
        if before and before.value == record and stored == pieces.keys():
            return
        operations: list[BatchOperation] = [
            Put(room, key, msgspec.to_builtins(chunk), {"text": f"{chunk.heading}\n{chunk.text}".lstrip()})
            for key, chunk in pieces.items()
            if key not in stored
        ]
        operations += [Delete(room, key) for key in sorted(stored - pieces.keys())]
        if len(operations) > _BATCH:  # several transactions: a crash in between must not go unnoticed
            unfinished = {**record, "digest": "", "order": []}
            put = Put(room, _RECORD, unfinished, expected_revision=revision)
            revision = self._memories.writer.put_record(principal, put).revision
        operations.append(Put(room, _RECORD, record, expected_revision=revision))
        for start in range(0, len(operations), _BATCH):
            if bound and self._memories.writer.key_binding(principal.user_id) != bound:
                raise Unavailable("the user who uploads this document was wiped in the meantime")
            self._memories.writer.batch(principal, operations[start : start + _BATCH])

    def remove(self, source: str, name: str) -> None:
        """Erases a document with all versions."""
        self._memories.eraser.clear(_source_principal(source), _source_room(source, name))

    def sync(self, source: Source) -> dict[str, str]:
        """Brings a source in step with its files; uploaded documents stay.

        Returns, by name, why files are refused whose names no document can have. If the source's own path is
        missing, nothing is removed.
        """
        if not Path(source.path).exists():
            return {source.path: "is not there; what was read from it before stays"}
        documents = {document.name: document for document in self.list(source.name)}
        paths, refused = _source_files(source), dict[str, str]()
        for name, path in paths.items():
            document = documents.get(name, Document(name=name))
            try:
                if not document.uploaded:
                    self._write_file(source.name, document, path)
            except InvalidRequest as error:
                refused[repr(name)[:200]] = error.message
        for name in documents.keys() - paths.keys():
            if not documents[name].uploaded:
                self.remove(source.name, name)
        return refused

    def _write_file(self, source: str, document: Document, path: Path) -> None:
        """Writes a document from its file if that has changed, or notes why the file cannot be read."""
        try:
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            if document.error or document.digest != _digest(content):
                self.write(source, document, content)
            return
        except BadDocument as bad:
            problem = bad.message
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        if document.error != problem:  # what was read of the file before stays
            principal, room = _source_principal(source), _source_room(source, document.name)
            memory = self._memories.reader.get(principal, room, _RECORD)
            new = msgspec.to_builtins(Document(name=document.name))
            record = memory.value if memory and decode_value(memory, Document) else new
            self._memories.writer.put(principal, room, _RECORD, {**record, "error": problem})


def encode_document(content: str | bytes) -> str:
    """A document as JSON can carry it: bytes as a `data:` URL."""
    return content if isinstance(content, str) else _DATA_URL + base64.b64encode(content).decode()


def _decode_document(content: str | bytes) -> bytes:
    """The bytes of a document; decodes any `data:` URL in base64."""
    if isinstance(content, bytes):
        return content
    head, is_base64, data = content[:200].partition(";base64,")
    if not (head.startswith("data:") and is_base64):
        return validation.encode_text(content, "content")
    try:
        return base64.b64decode(data + content[200:], validate=True)
    except ValueError:
        raise InvalidRequest("content", "base64 after data:…;base64,") from None


def _may_manage(principal: Principal, source: Source) -> bool:
    return principal.is_admin or includes_caller(source.writers, principal)


def _source_files(source: Source) -> dict[str, Path]:
    """A source's files by document name: one file, or those of a folder; no links that lead out of it."""
    root = Path(source.path)
    if root.is_file():
        return {root.name: root}
    paths = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    inside = (path for path in paths if path.resolve().is_relative_to(root.resolve()))
    names = {path.relative_to(root).as_posix(): path for path in inside}
    return {name: names[name] for name in sorted(names) if not re.search(r"(^|/)\.", name)}


def _source_room(source: str, *document: str) -> Namespace:
    """The namespace of a document, or the one above all documents of a source."""
    return Namespace.checked((*KNOWLEDGE, source, *document), "name")


def _source_principal(source: str) -> Principal:
    """The service, with a grant for one source."""
    return acting_for(ALCOVE, _source_room(source))


def _digest(content: bytes) -> str:
    return hashlib.sha256(SPLIT_VERSION + content).hexdigest()


def _chunk_key(chunk: Chunk) -> str:
    """A digest of the content, so that an unchanged chunk keeps its key wherever it moves."""
    content = msgspec.json.encode([chunk.heading, chunk.page, chunk.text])
    return hashlib.sha256(content).hexdigest()[:24]
