"""Knowledge: documents that agents look things up in, for who manages them and for agents that name them."""

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
from alcove.agents.library import Document, DocumentText, Library, files, source_principal, source_room
from alcove.agents.runs import ALCOVE
from alcove.agents.specs.catalogue import Catalogue, includes_caller
from alcove.agents.specs.problems import quote_name
from alcove.agents.specs.records import Knowledge as Source
from alcove.agents.stored_records import decode_value
from alcove.agents.tokens import TokenCounter
from alcove.agents.tools.base import READ, Turn, quoted
from alcove.core import validation
from alcove.core.background import Worker
from alcove.core.errors import AlcoveError, Conflict, InvalidRequest, NotFound, PermissionDenied
from alcove.core.principal import Grant, Principal
from alcove.core.records import Query
from alcove.store.memories import Memories

if TYPE_CHECKING:
    from alcove.search.text.terms import ParsedQuery

log = logging.getLogger("alcove")
LOOK_SECONDS = 30.0
"""Between two looks at the files of sources."""
MAX_HITS = 100
_DATA_URL = "data:application/octet-stream;base64,"


class KnowledgeHit(Struct, frozen=True, kw_only=True):
    """A chunk that was looked up: its calibrated score from 0 to 1, and the cosine that was measured."""

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
    """A source and what is in it; `waiting` texts of the whole store cannot be found by meaning yet."""

    name: str
    path: str
    documents: int
    chunks: int
    errors: dict[str, str]
    waiting: int


class Knowledge:
    """The sources of the specs."""

    def __init__(
        self,
        memories: Memories,
        catalogue: Callable[[], Catalogue],
        count: TokenCounter,
        *,
        follows: bool,
    ) -> None:
        """`follows`: whether to look at the files now and then."""
        self._memories, self._catalogue, self._library = memories, catalogue, Library(memories, count)
        self._stamps: dict[str, object] = {}
        self._refused: dict[str, dict[str, str]] = {}
        """Files of each source that cannot be documents, as the last sync here found."""
        self._follows, self._worker = follows, Worker("knowledge", self._follow, LOOK_SECONDS)

    def look(self) -> None:
        """Has the files of sources looked at now and then, from now on, if there are sources."""
        if self._follows and self._catalogue().knowledge:
            self._worker.wake()

    def _follow(self) -> None:
        """Syncs the sources whose files have changed since the last look."""
        for source in [*self._catalogue().knowledge.values()]:
            try:
                stats = [(name, path.stat()) for name, path in files(source).items()]
                stamp = [(name, stat.st_mtime_ns, stat.st_size) for name, stat in stats]
                if self._stamps.get(source.name) != stamp:
                    self._refused[source.name] = self._library.sync(source)
                    self._stamps[source.name] = stamp
            except (AlcoveError, OSError) as error:  # the others are looked at all the same
                log.warning("the source %s was not synced: %s", source.name, error)

    def close(self) -> None:
        """Waits for a sync that is under way; one that is broken off is taken up at the next start."""
        self._worker.stop()

    # Managing

    def sources(self, principal: Principal) -> list[SourceStatus]:
        """The sources that the caller may manage, and what is in each."""
        every = self._catalogue().knowledge.values()
        return [self._status(each) for each in every if principal.is_auditor or _manages(principal, each)]

    def sync_source(self, principal: Principal, source: str) -> SourceStatus:
        """Brings a source in step with its files: what changed is replaced, what is gone disappears."""
        spec = self._managed(principal, source)
        self._refused[source] = self._library.sync(spec)
        return self._status(spec)

    def documents(self, principal: Principal, source: str) -> list[Document]:
        """The documents of a source."""
        return [*self._library.documents(self._managed(principal, source, reads=True).name)]

    def document(self, principal: Principal, source: str, name: str) -> DocumentText:
        """A document with its pieces."""
        if found := self._library.document(self._managed(principal, source, reads=True).name, name):
            return found
        raise NotFound(f"there is no document {quote_name(name)}")

    def put_document(self, principal: Principal, source: str, name: str, content: str | bytes) -> Document:
        """Keeps a document in a source, in place of what was put there under its name.

        `content`: Markdown, text, HTML or PDF, as the end of the name says; as text, what is no text is a
        `data:` URL in base64.
        """
        spec = self._managed(principal, source)
        if not name.lower().endswith(SUFFIXES):
            raise InvalidRequest("name", f"one that ends with {', '.join(SUFFIXES)}")
        known = self._library.document(spec.name, name) or Document(name=name, uploaded=True)
        if not known.uploaded:
            raise Conflict(f"{quote_name(name)} comes from the source's own files")
        grants = (Grant(source_room(spec.name)),)
        who = Principal(principal.user_id, principal.client_id, principal.claims, ALCOVE, grants)
        try:
            return self._library.take(spec.name, known, _as_bytes(content), who)
        except BadDocument as bad:
            raise InvalidRequest("content", f"a document that can be read; this one {bad.message}") from None

    def delete_document(self, principal: Principal, source: str, name: str) -> None:
        """Takes an uploaded document away."""
        known = self.document(principal, source, name)
        spec = self._managed(principal, source)
        if not known.uploaded:
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
        """What agents would be given from a source, as a test.

        `query`: the question. `limit`: how many at most. `threshold`: the least score.
        """
        spec = self._managed(principal, source, reads=True)
        validation.check_integer(limit, "limit", 1, MAX_HITS)
        found = self._found(source_principal(spec.name), spec.name, self._memories.parse_query(query), limit)
        return [each for each in found if each.score >= threshold]

    def _managed(self, principal: Principal, source: str, *, reads: bool = False) -> Source:
        """A source that the caller may manage: an admin, or one of its writers; auditors may look."""
        spec = self._catalogue().knowledge.get(source)
        if spec is None:
            raise NotFound(f"there is no source {quote_name(source)}")
        if not (_manages(principal, spec) or (reads and principal.is_auditor)):
            raise PermissionDenied("only an admin or a writer of this source may do that")
        return spec

    def _status(self, source: Source) -> SourceStatus:
        documents = [*self._library.documents(source.name)]
        return SourceStatus(
            name=source.name,
            path=source.path,
            documents=len(documents),
            chunks=sum(each.chunks for each in documents),
            errors={each.name: each.error for each in documents if each.error}
            | self._refused.get(source.name, {}),
            waiting=self._memories.admin.index_lag()[0],
        )

    # Looking things up

    def offer(self, turn: Turn, question: ParsedQuery, draft: ContextDraft) -> None:
        """Offers what the agent's sources have on a question, as far as it is relevant enough."""
        spec = turn.rooms.agent.memory.knowledge
        found: list[KnowledgeHit] = []
        for source, room in turn.rooms.knowledge.items():
            with draft.unless_denied("knowledge"):
                found += self._found(turn.within(room), source, question, spec.retrieval_limit)
        found.sort(key=lambda each: (-each.score, each.id))
        relevant = [each for each in found if each.score >= spec.similarity_threshold]
        draft.offer("knowledge", map(_piece, relevant[: spec.retrieval_limit]))
        for each in relevant[spec.retrieval_limit :]:
            draft.leave_out("knowledge", "retrieval limit", piece=_piece(each))
        for each in found[len(relevant) :]:
            why = f"below the threshold ({each.score:.2f})"
            draft.leave_out("knowledge", why, piece=_piece(each))

    def _found(self, who: Principal, source: str, question: ParsedQuery, limit: int) -> list[KnowledgeHit]:
        memories = self._memories.search_parsed(
            who, source_room(source), question, limit=limit, calibrated=True
        )
        pairs = [(each, decode_value(each, Chunk)) for each in memories]
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
            for memory, chunk in pairs
            if chunk
        ]


def encode_document(content: str | bytes) -> str:
    """A document as JSON can carry it: bytes as a `data:` URL."""
    return content if isinstance(content, str) else _DATA_URL + base64.b64encode(content).decode()


def _as_bytes(content: str | bytes) -> bytes:
    """The other way round; any `data:` URL in base64 will do."""
    if isinstance(content, bytes):
        return content
    head, found, rest = content[:200].partition(";base64,")
    if not (head.startswith("data:") and found):
        return validation.encode_text(content, "content")
    try:
        return base64.b64decode(rest + content[200:], validate=True)
    except ValueError:
        raise InvalidRequest("content", "base64 after data:…;base64,") from None


def _manages(principal: Principal, source: Source) -> bool:
    return principal.is_admin or includes_caller(source.writers, principal)


def _piece(found: KnowledgeHit) -> Piece:
    page = f"page {found.page}" if found.page else ""
    where = ", ".join(map(quoted, filter(None, (found.document, found.heading, page))))
    text = f"{quoted(found.text, READ)} ({where}, {found.at.date()})"
    return Piece(
        found.id, escape_tags(text), found.source, found.at, found.score, found.cosine, priority=found.score
    )
