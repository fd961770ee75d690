"""What goes over the wire: bodies, query parameters and answers, as records that OpenAPI is made from."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from msgspec import UNSET, Meta, Struct, UnsetType

from alcove.core.errors import AlcoveError
from alcove.core.records import Author, Entry, Kind, Memory, Mode, Signal

Segments = Annotated[list[str], Meta(description="A namespace, segment by segment.")]
Value = Annotated[dict[str, Any], Meta(description="A JSON object.")]
IndexText = Annotated[dict[str, str], Meta(description="Text to be indexed, by field.")]
Key = Annotated[str, Meta(min_length=1, max_length=1024)]
Revision = Annotated[int, Meta(ge=0)]
Instant = Annotated[str, Meta(description="A time in RFC 3339, with its zone.")]


AfterCursor = Annotated[str, Meta(description="Where an earlier answer to the same request ended.")]


class PutBody(Struct, forbid_unknown_fields=True, kw_only=True):
    namespace: Segments
    key: Key
    value: Value
    index: IndexText | None = None
    ttl_seconds: Annotated[int, Meta(ge=0)] | None = None
    expected_revision: Revision | None = None
    create_only: bool = False


class PutOneBody(PutBody, kw_only=True):
    wait_for_index: bool = False


class SearchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    namespace_prefix: Segments
    query: Annotated[str, Meta(min_length=1)] | None = None
    mode: Mode = "hybrid"
    filter: dict[str, Any] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    offset: Annotated[int, Meta(ge=0)] = 0
    as_of: Instant | None = None
    explain: bool = False


class PutOperation(PutBody, tag_field="op", tag="put", kw_only=True):
    pass


class GetOperation(Struct, tag_field="op", tag="get", forbid_unknown_fields=True, kw_only=True):
    namespace: Segments
    key: Key


class DeleteOperation(GetOperation, tag_field="op", tag="delete", kw_only=True):
    expected_revision: Revision | None = None


class TouchOperation(GetOperation, tag_field="op", tag="touch", kw_only=True):
    ttl_seconds: Annotated[int, Meta(ge=0)] | None = None


class BatchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    operations: list[PutOperation | GetOperation | DeleteOperation | TouchOperation]
    after_cursor: AfterCursor | None = None


class PlaceQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    ns: Segments
    key: Key


class HistoryQuery(PlaceQuery, kw_only=True):
    after_cursor: AfterCursor | None = None


class GetQuery(PlaceQuery, kw_only=True):
    as_of: Instant | None = None


class DeleteQuery(PlaceQuery, kw_only=True):
    expected_revision: Revision | None = None


class NamespacesQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    prefix: Segments = []
    suffix: Segments = []
    max_depth: Annotated[int, Meta(ge=1)] | None = None
    limit: Annotated[int, Meta(ge=1)] | None = None
    offset: Annotated[int, Meta(ge=0)] = 0


class EventsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    ns: Segments = []
    kinds: list[Kind] | None = None
    after: Instant | None = None
    before: Instant | None = None
    after_cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class StreamQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    ns: Segments = []
    kinds: list[Kind] | None = None


class ExportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    ns: Segments = []


class ImportQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    wait_for_index: Annotated[
        Literal["true", "false"], Meta(description="Whether to answer when all can be found by meaning.")
    ] = "false"


class NoQuery(Struct, forbid_unknown_fields=True):
    pass


class EntryAnswer(Struct, kw_only=True):
    """A memory without its value. Its two times are spelled twice, for clients of either contract."""

    id: str
    namespace: list[str]
    key: str
    attributes: dict[str, Any]
    revision: int
    created_at: datetime
    expires_at: datetime | None
    createdAt: datetime  # noqa: N815
    expiresAt: datetime | None  # noqa: N815

    @classmethod
    def of(cls, entry: Entry, **more: Any) -> Self:
        return cls(
            id=entry.id,
            namespace=entry.namespace,  # type: ignore[arg-type]
            key=entry.key,
            attributes=entry.attributes,
            revision=entry.revision,
            created_at=entry.created_at,
            expires_at=entry.expires_at,
            createdAt=entry.created_at,
            expiresAt=entry.expires_at,
            **more,
        )


class MemoryAnswer(EntryAnswer, kw_only=True):
    value: dict[str, Any]
    index: dict[str, str]
    written_by: Author
    score: float | None = None
    explain: dict[str, Signal] | UnsetType = UNSET

    @classmethod
    def of_memory(cls, memory: Memory) -> Self:
        return cls.of(
            memory,
            value=memory.value,
            index=memory.index,
            written_by=memory.written_by,
            score=memory.score,
            explain=memory.explain or UNSET,
        )


class SearchAnswer(Struct):
    """`next_offset` is there where the items ended before `limit`, because they would be too large."""

    items: list[MemoryAnswer]
    degraded: str | UnsetType = UNSET
    next_offset: int | UnsetType = UNSET


class NamespacesAnswer(Struct):
    namespaces: list[list[str]]


class EventAnswer(Struct, kw_only=True):
    """`alcove.Event`, as JSON."""

    id: str
    namespace: list[str]
    key: str
    kind: Kind
    revision: int
    occurred_at: datetime
    expires_at: datetime | None
    value: dict[str, Any] | None
    attributes: dict[str, Any] | None
    written_by: Author
    cursor: str


class EventsAnswer(Struct):
    """`more` is there, and true, where others have happened after the last of these."""

    events: list[EventAnswer]
    after_cursor: str
    truncated_before: datetime | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class VersionAnswer(Struct, kw_only=True):
    """`alcove.Version`, as JSON."""

    id: str
    namespace: list[str]
    key: str
    kind: Kind
    revision: int
    created_at: datetime
    expires_at: datetime | None
    value: dict[str, Any] | None
    attributes: dict[str, Any] | None
    index: dict[str, str] | None
    written_by: Author


class HeldVersionAnswer(VersionAnswer, kw_only=True):
    """`records.HeldVersion`, as JSON: a line of a person's export."""

    current: bool


class HistoryAnswer(Struct):
    """`after_cursor` is there where older versions are left, because they would be too large."""

    versions: list[VersionAnswer]
    after_cursor: str | UnsetType = UNSET


class BatchAnswer(Struct):
    """A put's or touch's entry, a get's memory or null, a delete's outcome, in the order asked.

    `after_cursor` is there where gets are left, because they would be too large.
    """

    results: list[dict[str, Any] | None]
    after_cursor: str | UnsetType = UNSET


class HealthAnswer(Struct):
    status: Literal["ok", "unavailable"]
    checks: dict[str, str] | UnsetType = UNSET


class ErrorAnswer(Struct):
    """Every error, everywhere."""

    code: str
    error: str
    request_id: str
    details: dict[str, Any] | UnsetType = UNSET
    reason: str | UnsetType = UNSET

    @classmethod
    def of(cls, error: AlcoveError, request_id: str) -> ErrorAnswer:
        reason = getattr(error, "reason", UNSET)
        return cls(error.code, error.message, request_id, error.details or UNSET, reason)
