"""Knowledge sources: manage their documents, and search them for the agents that use them."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, structs

from alcove.agents.context_tiers import ContextDraft, Piece, escape_tags
from alcove.agents.document_reading import BadDocument
from alcove.agents.documents import SUFFIXES, Chunk
from alcove.agents.library import Document, DocumentText, Library, source_files, source_principal, source_room
from alcove.agents.runs import ALCOVE
from alcove.agents.specs.catalogue import Catalogue, includes_caller
from alcove.agents.specs.records import Knowledge as Source
from alcove.agents.stored_records import decode_value
from alcove.agents.tokens import TokenCounter
from alcove.agents.tools.answers import MAX_READ_CHARACTERS, format_value
from alcove.agents.tools.turn import Turn
from alcove.core import validation
from alcove.core.background import Worker
from alcove.core.errors import AlcoveError, Conflict, InvalidRequest, NotFound, PermissionDenied, quote_name
from alcove.core.principal import Grant, Principal
from alcove.core.records import Query
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.search.query import ParsedQuery

log = logging.getLogger("alcove")
FOLLOW_SECONDS = 30.0
"""Between two checks of the files of sources."""
MAX_HITS = 100
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
    """A source and what is in it; `waiting` texts of the whole store are not yet embedded."""

    name: str
    path: str
    documents: int
    chunks: int
    errors: dict[str, str]
    waiting: int


class Knowledge:
    """The knowledge sources of the specs."""

    def __init__(
        self, memories: Memories, catalogue: Callable[[], Catalogue], count: TokenCounter, *, follows: bool
    ) -> None:
        """`follows`: whether to sync sources in the background when their files change."""
        self._memories, self._catalogue, self._library = memories, catalogue, Library(memories, count)
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
                stats = [(name, path.stat()) for name, path in source_files(source).items()]
                stamp = [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]
                if self._stamps.get(source.name) != stamp:
                    self._refused[source.name] = self._library.sync(source)
                    self._stamps[source.name] = stamp
            except (AlcoveError, OSError) as error:  # the other sources are synced all the same
                log.warning("the source %s was not synced: %s", source.name, error)

    def close(self) -> None:
        """Waits for a sync that is under way; one that is cut off continues at the next start."""
        self._worker.stop()

    # Managing sources

    def sources(self, principal: Principal) -> list[SourceStatus]:
        """The sources that the caller may manage, and what is in each."""
        sources = self._catalogue().knowledge.values()
        return [
            self._status(each) for each in sources if principal.is_auditor or _may_manage(principal, each)
        ]

    def sync_source(self, principal: Principal, source: str) -> SourceStatus:
        """Brings a source in step with its files: replaces what changed, and removes what is gone."""
        spec = self._source(principal, source)
        self._refused[source] = self._library.sync(spec)
        return self._status(spec)

    def documents(self, principal: Principal, source: str) -> list[Document]:
        """The documents of a source."""
        return [*self._library.documents(self._source(principal, source, reads=True).name)]

    def document(self, principal: Principal, source: str, name: str) -> DocumentText:
        """A document with its pieces."""
        document = self._library.document(self._source(principal, source, reads=True).name, name)
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
        document = self._library.document(spec.name, name) or Document(name=name, uploaded=True)
        if not document.uploaded:
            raise Conflict(f"{quote_name(name)} comes from the source's own files")
        grants = (Grant(source_room(spec.name)),)
        author = Principal(principal.user_id, principal.client_id, principal.claims, ALCOVE, grants)
        try:
            return self._library.store(spec.name, document, _decode_document(content), author)
        except BadDocument as bad:
            raise InvalidRequest("content", f"a document that can be read; this one {bad.message}") from None

    def delete_document(self, principal: Principal, source: str, name: str) -> None:
        """Deletes an uploaded document."""
        document = self.document(principal, source, name)
        spec = self._source(principal, source)
        if not document.uploaded:
            raise Conflict(f"{quote_name(name)} comes from the source's own files: take it out of those")
        self._library.clear(spec.name, name)

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
        parsed_query = self._memories.parse_query(query)
        hits = self._search(source_principal(spec.name), spec.name, parsed_query, limit)
        return [hit for hit in hits if hit.score >= threshold]

    def _source(self, principal: Principal, name: str, *, reads: bool = False) -> Source:
        """A source that the caller may manage, as an admin or a writer; auditors may read."""
        source = self._catalogue().knowledge.get(name)
        if source is None:
            raise NotFound(f"there is no source {quote_name(name)}")
        if not (_may_manage(principal, source) or (reads and principal.is_auditor)):
            raise PermissionDenied("only an admin or a writer of this source may do that")
        return source

    def _status(self, source: Source) -> SourceStatus:
        documents = [*self._library.documents(source.name)]
        errors = {document.name: document.error for document in documents if document.error}
        return SourceStatus(
            name=source.name,
            path=source.path,
            documents=len(documents),
            chunks=sum(document.chunks for document in documents),
            errors=errors | self._refused.get(source.name, {}),
            waiting=self._memories.admin.index_lag()[0],
        )

    # Searching

    def offer(self, turn: Turn, query: ParsedQuery, draft: ContextDraft) -> None:
        """Offers the relevant chunks of the agent's sources to a context."""
        spec, hits = turn.rooms.agent.memory.knowledge, list[KnowledgeHit]()
        for source, room in turn.rooms.knowledge.items():
            with draft.unless_denied("knowledge"):
                hits += self._search(turn.principal_for(room), source, query, spec.retrieval_limit)
        hits.sort(key=lambda hit: (-hit.score, hit.id))
        relevant = [hit for hit in hits if hit.score >= spec.similarity_threshold]
        draft.offer("knowledge", map(_piece, relevant[: spec.retrieval_limit]))
        for hit in relevant[spec.retrieval_limit :]:
            draft.leave_out("knowledge", "retrieval limit", piece=_piece(hit))
        for hit in hits[len(relevant) :]:
            draft.leave_out("knowledge", f"below the threshold ({hit.score:.2f})", piece=_piece(hit))

    def _search(
        self, principal: Principal, source: str, query: ParsedQuery, limit: int
    ) -> list[KnowledgeHit]:
        memories = self._memories.search_parsed(
            principal, source_room(source), query, limit=limit, calibrated=True
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


def _piece(hit: KnowledgeHit) -> Piece:
    page = f"page {hit.page}" if hit.page else ""
    place = ", ".join(map(format_value, filter(None, (hit.document, hit.heading, page))))
    text = escape_tags(f"{format_value(hit.text, MAX_READ_CHARACTERS)} ({place}, {hit.at.date()})")
    return Piece(hit.id, text, hit.source, hit.at, hit.score, hit.cosine, priority=hit.score)
