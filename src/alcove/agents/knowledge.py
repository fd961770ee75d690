"""Knowledge: documents that agents look things up in, cut into chunks and kept in step with their files.

A document is a namespace of its own (`knowledge:<source>:<document>`). Its chunks lie there under keys that
say what is in them, so that of a document that changed only what changed is written and embedded. What is
known of the document lies beside them and is written last, so that one that was broken off is taken up again.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct, structs

from alcove.agents.context import Assembly, Piece, as_data
from alcove.agents.conversations import decoded
from alcove.agents.document_reading import BadDocument
from alcove.agents.documents import MAX_BYTES, SUFFIXES, chunks
from alcove.agents.runs import ALCOVE, acting_for
from alcove.agents.specs import Catalogue, names_caller, short
from alcove.agents.specs import Knowledge as Source
from alcove.agents.tokens import TokenCounter
from alcove.agents.tools.base import READ, Turn, quoted
from alcove.core.background import Worker
from alcove.core.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from alcove.core.namespace import Namespace
from alcove.core.principal import Grant, Principal
from alcove.core.records import Delete, Operation, Put, Query
from alcove.store import validation
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.search.terms import Question

ROOT = "knowledge"
CUT = b"1"
"""Changes whenever documents are to be cut anew although they are the same."""
LOOK_SECONDS = 30.0
"""Between two looks at the files of sources."""
MOST_FOUND = 100
_ABOUT = "document"
_DATA_URL = "data:application/octet-stream;base64,"
_AT_ONCE = 200
Threshold = Annotated[float, Meta(ge=0, le=1)]


class Document(Struct, frozen=True, kw_only=True):
    """A document of a source, and what became of it."""

    name: str
    chunks: int
    bytes: int
    digest: str
    uploaded: bool = False
    """Whether it was put here, and does not come from the source's files."""
    error: str | None = None
    """Why it could not be read."""
    updated_at: datetime | None = None


class _About(Document, frozen=True, kw_only=True):
    """What is kept of a document beside its chunks."""

    order: list[str] = []
    """The keys of its chunks, in order."""


class Chunk(Struct, frozen=True, kw_only=True):
    """A piece of a document: the headings above it, and its page in a PDF."""

    text: str
    heading: str = ""
    page: int | None = None


class Found(Struct, frozen=True, kw_only=True):
    """A chunk that was looked up: its calibrated score from 0 to 1, and the cosine that was measured."""

    id: str
    source: str
    document: str
    text: str
    score: float
    cosine: float | None
    heading: str = ""
    page: int | None = None
    at: datetime


class SourceStatus(Struct, frozen=True, kw_only=True):
    """A source and what is in it; `waiting` texts of the whole store cannot be found by meaning yet."""

    name: str
    path: str
    documents: int
    chunks: int
    errors: dict[str, str]
    waiting: int


class DocumentText(Document, frozen=True, kw_only=True):
    """A document with its pieces, in order."""

    pieces: list[Chunk]


class Knowledge:
    """The sources of the specs: their documents for who may manage them, and looking things up for agents."""

    def __init__(
        self,
        memories: Memories,
        catalogue: Callable[[], Catalogue],
        counter: Callable[[], TokenCounter],
        *,
        follows: bool,
    ) -> None:
        """`counter`: what counts tokens. `follows`: whether to look at the files now and then."""
        self._memories, self._catalogue, self._counter = memories, catalogue, counter
        self._stamps: dict[str, object] = {}
        self._worker = Worker("knowledge", self._follow, LOOK_SECONDS)
        if follows and catalogue().knowledge:
            self._worker.wake()

    # Keeping in step with files

    def _follow(self) -> float:
        """Syncs the sources whose files have changed since the last look."""
        for source in [*self._catalogue().knowledge.values()]:
            stamp = [(name, (stat := path.stat()).st_mtime_ns, stat.st_size) for name, path in _files(source)]
            if self._stamps.get(source.name) != stamp:
                self._sync(source)
                self._stamps[source.name] = stamp
        return LOOK_SECONDS

    def sync_source(self, principal: Principal, source: str) -> SourceStatus:
        """Brings a source in step with its files: what changed is replaced, what is gone disappears."""
        self._sync(self._managed(principal, source))
        return self._status(self._catalogue().knowledge[source])

    def _sync(self, source: Source) -> None:
        known, who = (
            {each.name: each for each in self._documents(source.name)},
            acting_for(ALCOVE, _room(source.name)),
        )
        files = {name: path for name, path in _files(source) if not (name in known and known[name].uploaded)}
        for name, path in files.items():
            try:
                with path.open("rb") as file:
                    self._take(source.name, name, file.read(MAX_BYTES + 1), known.get(name), who)
            except BadDocument as bad:
                self._report(source.name, name, known.get(name), bad.message, who)
            except OSError as error:
                self._report(source.name, name, known.get(name), f"cannot be read: {error.strerror}", who)
        for name in known.keys() - files.keys():
            if not known[name].uploaded:
                self._clear(source.name, name)

    def _take(
        self,
        source: str,
        name: str,
        content: bytes,
        known: Document | None,
        who: Principal,
        *,
        uploaded: bool = False,
    ) -> Document:
        """Cuts a document and keeps what is new of it, unless it is as it was."""
        digest = hashlib.sha256(CUT + content).hexdigest()
        if known and not known.error and known.digest == digest:
            return known
        pieces: dict[str, Chunk] = {}
        for each in chunks(name, content, count=self._counter()):
            chunk = Chunk(text=each.text, heading=each.heading, page=each.page)
            pieces.setdefault(_key(chunk), chunk)
        room, size = _room(source, name), len(content)
        about = _About(
            name=name, chunks=len(pieces), bytes=size, digest=digest, uploaded=uploaded, order=[*pieces]
        )
        there = {memory.key for memory in self._memories.everything(who, room, exact=True)}
        operations: list[Operation] = [
            Put(
                room,
                key,
                msgspec.to_builtins(chunk),
                index={"text": f"{chunk.heading}\n{chunk.text}".lstrip()},
            )
            for key, chunk in pieces.items()
            if key not in there
        ]
        operations += [Delete(room, key) for key in sorted(there - pieces.keys() - {_ABOUT})]
        operations.append(Put(room, _ABOUT, msgspec.to_builtins(about)))
        for start in range(0, len(operations), _AT_ONCE):
            self._memories.batch(who, operations[start : start + _AT_ONCE])
        return about

    def _report(self, source: str, name: str, known: Document | None, error: str, who: Principal) -> None:
        """Notes that a file cannot be read; what was read of it before stays."""
        if known is None or known.error != error:
            found = self._memories.get(who, _room(source, name), _ABOUT)
            about = (decoded(found, _About) if found else None) or _About(
                name=name, chunks=0, bytes=0, digest=""
            )
            changed = structs.replace(about, error=error)
            self._memories.put_record(who, Put(_room(source, name), _ABOUT, msgspec.to_builtins(changed)))

    def _clear(self, source: str, name: str) -> None:
        room = _room(source, name)
        self._memories.clear(acting_for(ALCOVE, room), room)

    # Managing

    def sources(self, principal: Principal) -> list[SourceStatus]:
        """The sources that the caller may manage, and what is in each."""
        every = self._catalogue().knowledge.values()
        return [self._status(each) for each in every if principal.is_auditor or _manages(principal, each)]

    def documents(self, principal: Principal, source: str) -> list[Document]:
        """The documents of a source."""
        return [*self._documents(self._managed(principal, source, reads=True).name)]

    def document(self, principal: Principal, source: str, name: str) -> DocumentText:
        """A document with its pieces."""
        room = _room(self._managed(principal, source, reads=True).name, name)
        memories = [*self._memories.everything(_reader(source), room, exact=True)]
        about = next((decoded(each, _About) for each in memories if each.key == _ABOUT), None)
        if about is None:
            raise NotFound(f"there is no document {short(name)}")
        pieces = {each.key: piece for each in memories if (piece := decoded(each, Chunk))}
        told = {field: getattr(about, field) for field in Document.__struct_fields__}
        return DocumentText(**told, pieces=[pieces[key] for key in about.order if key in pieces])

    def put_document(self, principal: Principal, source: str, name: str, content: str | bytes) -> Document:
        """Keeps a document in a source, in place of what was put there under its name.

        `content`: Markdown, text, HTML or PDF, as the end of the name says; as text, what is no text is a
        `data:` URL in base64.
        """
        spec = self._managed(principal, source)
        if not name.lower().endswith(SUFFIXES):
            raise InvalidRequest("name", f"one that ends with {', '.join(SUFFIXES)}")
        known = next((each for each in self._documents(spec.name) if each.name == name), None)
        if known and not known.uploaded:
            raise Conflict(f"{short(name)} comes from the source's own files")
        who = Principal(
            principal.user_id, principal.client_id, agent=ALCOVE, grants=(Grant(_room(spec.name)),)
        )
        try:
            return self._take(spec.name, name, _as_bytes(content), known, who, uploaded=True)
        except BadDocument as bad:
            raise InvalidRequest("content", f"a document that can be read; this one {bad.message}") from None

    def delete_document(self, principal: Principal, source: str, name: str) -> None:
        """Takes an uploaded document away."""
        spec = self._managed(principal, source)
        known = next((each for each in self._documents(spec.name) if each.name == name), None)
        if known is None:
            raise NotFound(f"there is no document {short(name)}")
        if not known.uploaded:
            raise Conflict(f"{short(name)} comes from the source's own files: take it out of those")
        self._clear(spec.name, name)

    def search_knowledge(
        self,
        principal: Principal,
        source: str,
        query: Query,
        *,
        limit: Annotated[int, Meta(ge=1, le=MOST_FOUND)] = 5,
        threshold: Threshold = 0.0,
    ) -> list[Found]:
        """What agents would be given from a source, as a test.

        `query`: the question. `limit`: how many at most. `threshold`: the least score.
        """
        spec = self._managed(principal, source, reads=True)
        validation.query(query)
        validation.whole(limit, "limit", 1, MOST_FOUND)
        found = self._found(_reader(spec.name), spec.name, self._memories.question(query), limit)
        return [each for each in found if each.score >= threshold]

    def _managed(self, principal: Principal, source: str, *, reads: bool = False) -> Source:
        """A source that the caller may manage: an admin, or one of its writers; auditors may look."""
        spec = self._catalogue().knowledge.get(source)
        if spec is None:
            raise NotFound(f"there is no source {short(source)}")
        if not (_manages(principal, spec) or (reads and principal.is_auditor)):
            raise PermissionDenied("only an admin or a writer of this source may do that")
        return spec

    def _status(self, source: Source) -> SourceStatus:
        documents = [*self._documents(source.name)]
        return SourceStatus(
            name=source.name,
            path=source.path,
            documents=len(documents),
            chunks=sum(each.chunks for each in documents),
            errors={each.name: each.error for each in documents if each.error},
            waiting=self._memories.admin.index_lag()[0],
        )

    def _documents(self, source: str) -> Iterator[Document]:
        for room in self._memories.namespaces(_reader(source), _room(source)):
            memory = self._memories.get(_reader(source), room, _ABOUT) if len(room) == 3 else None
            if memory and (document := decoded(memory, Document)):
                yield structs.replace(document, updated_at=memory.created_at)

    # Looking things up

    def offer(self, turn: Turn, question: Question, assembly: Assembly) -> None:
        """Offers what the agent's sources have on a question, as far as it is relevant enough."""
        spec = turn.rooms.agent.memory.knowledge
        found = [
            each
            for source, room in turn.rooms.knowledge.items()
            for each in self._found(turn.within(room), source, question, spec.retrieval_limit)
        ]
        found.sort(key=lambda each: (-each.score, each.id))
        relevant = [each for each in found if each.score >= spec.similarity_threshold]
        assembly.offer("knowledge", map(_piece, relevant[: spec.retrieval_limit]))
        for each in relevant[spec.retrieval_limit :]:
            assembly.leave_out("knowledge", "retrieval limit", id=each.id)
        for each in found[len(relevant) :]:
            assembly.leave_out("knowledge", f"below the threshold ({each.score:.2f})", id=each.id)

    def _found(self, who: Principal, source: str, question: Question, limit: int) -> list[Found]:
        memories = self._memories.answers(who, _room(source), question, limit=limit, calibrated=True)
        pairs = [(each, decoded(each, Chunk)) for each in memories]
        return [
            Found(
                id=memory.id, source=source, document=memory.namespace[2], text=chunk.text,
                heading=chunk.heading,
                page=chunk.page, at=memory.created_at, cosine=memory.score,
                score=memory.relevance or 0.0,
            )
            for memory, chunk in pairs
            if chunk
        ]  # fmt: skip

    def close(self) -> None:
        """Waits for a sync that is under way; one that is broken off is taken up at the next start."""
        self._worker.stop()


def uploaded_by(memories: Memories, user: str) -> Iterator[Namespace]:
    """The documents that somebody put into sources, which go when they are wiped."""
    grant = Grant(Namespace((ROOT,)), ("read",), (user,))
    who = Principal(user, agent=ALCOVE, grants=(grant,))
    for memory in memories.everything(who, (ROOT,), unowned=True):
        if memory.key == _ABOUT and memory.value.get("uploaded") is True:
            yield memory.namespace


def as_text(content: str | bytes) -> str:
    """A document as JSON can carry it: bytes as a `data:` URL."""
    return content if isinstance(content, str) else _DATA_URL + base64.b64encode(content).decode()


def _as_bytes(content: str | bytes) -> bytes:
    """The other way round; any `data:` URL in base64 will do."""
    if isinstance(content, bytes):
        return content
    head, found, rest = content[:200].partition(";base64,")
    if not (head.startswith("data:") and found):
        return validation.text(content, "content")
    try:
        return base64.b64decode(rest + content[200:], validate=True)
    except ValueError:
        raise InvalidRequest("content", "base64 after data:…;base64,") from None


def _files(source: Source) -> list[tuple[str, Path]]:
    """The documents in a folder and below it, by name, or the one file; none that only leads elsewhere."""
    root = Path(source.path)
    if root.is_file():
        return [(root.name, root)]
    found = (path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    inside = (path for path in found if path.resolve().is_relative_to(root.resolve()))
    named = ((path.relative_to(root).as_posix(), path) for path in inside)
    return sorted((name, path) for name, path in named if not re.search(r"(^|/)\.", name))


def _room(source: str, *document: str) -> Namespace:
    return Namespace.checked((ROOT, source, *document), "name")


def _reader(source: str) -> Principal:
    return acting_for(ALCOVE, _room(source))


def _manages(principal: Principal, source: Source) -> bool:
    return principal.is_admin or names_caller(source.writers, principal)


def _key(chunk: Chunk) -> str:
    """What is in it, so that the same piece keeps its key, wherever in the document it moves."""
    content = msgspec.json.encode([chunk.heading, chunk.page, chunk.text])
    return hashlib.sha256(content).hexdigest()[:24]


def _piece(found: Found) -> Piece:
    where = [
        found.document,
        *([found.heading] if found.heading else []),
        *([f"page {found.page}"] if found.page else []),
    ]
    text = f"{quoted(found.text, READ)} ({', '.join(map(quoted, where))}, {found.at.date()})"
    return Piece(
        found.id, as_data(text), found.source, found.at, found.score, found.cosine, wanted=found.score
    )
